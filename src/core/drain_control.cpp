// The drain state machine: what the operator tells it, and what it tells of itself.
#include "core/drain.hpp"

#include <algorithm>
#include <utility>

#include "core/broker_uri.hpp"

namespace outbox {

namespace {

bool same_broker(const DrainSettings& a, const DrainSettings& b) {
    return a.broker_uri == b.broker_uri && a.password_file == b.password_file &&
           a.heartbeat == b.heartbeat;
}

}  // namespace

// What the settings name may have been mended too, a file for instance, so an attempt is due at
// once.
void Drain::configure(Time now, const DrainSettings& settings) {
    reconnect_.hurry(now);
    if (settings == settings_) {
        next_settings_.reset();
        return;
    }
    if (same_broker(settings, settings_) && settings.ordering == settings_.ordering) {
        next_settings_.reset();
        settings_ = settings;
        look_ = true;
    } else {
        next_settings_ = settings;
        DrainSettings now_settings = settings;
        now_settings.broker_uri = settings_.broker_uri;
        now_settings.password_file = settings_.password_file;
        now_settings.heartbeat = settings_.heartbeat;
        now_settings.exchange = settings_.exchange;
        now_settings.ordering = settings_.ordering;
        settings_ = now_settings;
    }
    look_over_waiting();
    rate_.set_rate(settings_.publish_rate, sharers_);
    replay_.configure(settings_.ordering, settings_.retry);
}

void Drain::let_replay(bool may_replay) {
    if (may_replay_ && !may_replay) {
        replay_.leave();
    }
    may_replay_ = may_replay;
}

void Drain::share_with(std::size_t drainers) {
    sharers_ = static_cast<std::int32_t>(std::max<std::size_t>(drainers, 1));
    rate_.set_rate(settings_.publish_rate, sharers_);
}

// With nothing in hand, what had to wait for that takes effect. Gives whether the connection is to
// be left.
bool Drain::adopt_settings(Time now) {
    const bool keeps_link = same_broker(*next_settings_, settings_);
    settings_ = *std::exchange(next_settings_, std::nullopt);
    replay_.configure(settings_.ordering, settings_.retry);
    look_ = true;
    if (keeps_link) {
        return false;
    }
    reconnect_.set_brokers(now, count_brokers(settings_.broker_uri));
    return link_ != Link::down;
}

void Drain::suspect(std::size_t rows) noexcept {
    const std::size_t half = std::max<std::size_t>(rows / 2, 1);
    suspicion_ = suspicion_ == 0 ? half : std::min(suspicion_, half);
    suspicion_until_ += rows;
}

void Drain::stop(Time now) {
    if (!stopping_) {
        stopping_ = true;
        stop_deadline_ = now + settings_.shutdown_timeout;
        // The database gets another chance at once.
        transact_at_ = std::min(transact_at_, now);
        set_aside_at_ = std::min(set_aside_at_, now);
    }
}

DrainerState Drain::state() const {
    if (stopping_) {
        return DrainerState::stopping;
    }
    if (misconfigured_) {
        return DrainerState::misconfigured;
    }
    if (!settings_.enabled) {
        return DrainerState::disabled;
    }
    if (settings_.broker_uri.empty()) {
        return DrainerState::idle;
    }
    if (link_ == Link::connecting) {
        return DrainerState::connecting;
    }
    if (link_ == Link::down || transaction_failures_ > 0) {
        return DrainerState::backoff;
    }
    if (settings_.paused) {
        return DrainerState::paused;
    }
    if (blocked_) {
        return DrainerState::blocked;
    }
    return rows_in_hand_ > 0 ? DrainerState::publishing : DrainerState::idle;
}

bool Drain::holds(std::string_view token) const {
    return std::any_of(batches_.begin(), batches_.end(),
                       [token](const auto& batch) { return batch.second.token == token; });
}

bool Drain::carries(std::int64_t seq) const {
    const auto found = by_seq_.find(seq);
    if (found == by_seq_.end()) {
        return false;
    }
    const RowState state = rows_[found->second].state;
    return state == RowState::ready || state == RowState::sent || state == RowState::published;
}

std::size_t Drain::carried_bytes(std::uint64_t group) const {
    const auto found = bytes_of_group_.find(group);
    return found == bytes_of_group_.end() ? 0 : found->second;
}

bool Drain::is_held(std::uint64_t group, std::int64_t seq) const {
    return groups_.is_held(group, seq) &&
           std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
               return row.holds_group && row.event->group == group && row.event->seq < seq &&
                      (row.state == RowState::releasing || row.set_aside);
           });
}

BucketMask Drain::buckets_in_hand() const noexcept {
    BucketMask mask = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        if (rows_of_bucket_[static_cast<std::size_t>(bucket)] > 0) {
            mask |= mask_of(bucket);
        }
    }
    return mask;
}

std::optional<std::int64_t> Drain::lowest_in_hand() const {
    std::optional<std::int64_t> lowest;
    for (const auto& [id, batch] : batches_) {
        for (std::size_t index : batch.rows) {
            const Event& event = *rows_[index].event;
            if (!event.deferred) {
                lowest = std::min(lowest.value_or(event.seq), event.seq);
            }
        }
    }
    return lowest;
}

}  // namespace outbox
