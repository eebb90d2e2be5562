// The drain state machine: what the database tells it.
#include "core/drain.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace outbox {

namespace {

// Delays after a failed transaction; the outcomes wait in memory meanwhile.
constexpr Backoff TRANSACTION_BACKOFF{Duration{100}, 2, Duration{5000}};
// How often a mark is tried again that failed in a transaction of its own.
constexpr Duration SET_ASIDE_INTERVAL{5000};
constexpr Duration SET_ASIDE_INTERVAL_AT_STOP{200};

}  // namespace

void Drain::transacted(Time now, const TransactionResult& result) {
    bool failed_again = false;
    take_written(result, failed_again);
    planned_rows_.clear();
    forget_dropped_rows();
    oldest_outcome_ = published_ + failed_ > 0 ? std::optional<Time>(oldest_outcome_.value_or(now))
                                               : std::nullopt;
    if (plan_.one_by_one) {
        set_aside_at_ = now + (stopping_ ? SET_ASIDE_INTERVAL_AT_STOP : SET_ASIDE_INTERVAL);
    }
    if (failed_again) {
        transaction_failures_++;
        transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
        return;
    }
    if (suspicion_ > 0 && rows_in_hand_ == set_aside_ && !plan_.marks.empty()) {
        clear_suspects();
    }
    // A plan of marks alone that went well says nothing about the claim that failed before.
    if (plan_.one_by_one || plan_.claim > 0 || !may_claim()) {
        transaction_failures_ = 0;
    }
    if (!plan_.pause.empty() && !plan_.one_by_one) {
        settings_.paused = true;
    }
    note_woken(result);
    look_for_deferred(now);
    if (plan_.claim > 0) {
        claim_limit_ = std::max(claim_limit_, 2 * plan_.walk);
        look_ = result.more || look_;
        next_look_ = now + settings_.poll_interval;
        if (result.next_due.has_value()) {
            next_look_ = std::min(next_look_, now + std::max(*result.next_due, Duration{1}));
        }
        add_claim(result);
        note_groups(result);
    }
}

// Those of which something is in hand, from this claim or from before. Where it is few because they
// are large, more is wanted at half of that.
void Drain::note_groups(const TransactionResult& result) {
    for (std::uint64_t group : result.followed) {
        groups_.set_followed(group);
    }
    for (std::uint64_t group : result.left) {
        groups_.set_more(group, std::min(wanted_in_hand(result.rows_per_group),
                                         wanted_in_hand(groups_.unsettled(group))));
    }
}

// Held rows that were made due are found by a claim beside it, or by the next one.
void Drain::note_woken(const TransactionResult& result) {
    if (!plan_.wake_held.has_value()) {
        return;
    }
    look_ = look_ || plan_.claim == 0;
    if (result.woken_to.has_value()) {
        wakes_.front().after = *result.woken_to;
    } else {
        wakes_.pop_front();
    }
}

void Drain::take_written(const TransactionResult& result, bool& failed_again) {
    const std::set<std::int64_t> unwritten(result.unwritten.begin(), result.unwritten.end());
    const std::set<std::int64_t> untried(result.untried.begin(), result.untried.end());
    for (std::size_t index : planned_rows_) {
        Row& row = rows_[index];
        const bool is_sent = row.state == RowState::sent;
        if (untried.contains(row.event->seq)) {
            failed_again = failed_again || !row.set_aside;
        } else if (unwritten.contains(row.event->seq)) {
            failed_again = failed_again || is_sent;
            if (!is_sent) {
                set_aside(index);
            }
        } else if (is_sent) {
            row.renew = false;
            to_renew_--;
            batches_.at(row.batch).leased_at = planned_at_;
        } else {
            drop_row(index);
        }
    }
}

// One row that cannot be written (somebody has locked it, a trigger refuses it) must not keep all
// others from being published.
void Drain::set_aside(std::size_t index) {
    Row& row = rows_[index];
    if (!row.set_aside) {
        uncount(row);
        row.set_aside = true;
        set_aside_++;
    }
}

void Drain::add_claim(const TransactionResult& result) {
    suspected_ = plan_.suspicion > 0 ? result.claimed.size() : 0;
    if (result.claimed.empty()) {
        // A walk that comes from the floor finds nothing at first; the suspect lies ahead.
        if (plan_.claim > 0 && !result.more) {
            end_suspicion();
        }
        return;
    }
    Batch& batch = batches_[next_batch_];
    batch.token = result.token;
    batch.leased_at = planned_at_;
    for (const Event& event : result.claimed) {
        std::size_t index = rows_.size();
        if (free_rows_.empty()) {
            rows_.emplace_back();
        } else {
            index = free_rows_.back();
            free_rows_.pop_back();
        }
        Row& row = rows_[index];
        row = Row{};
        row.event = &event;
        row.batch = next_batch_;
        row.state = RowState::ready;
        row.bytes = event.payload.size();
        batch.rows.push_back(index);
        by_seq_[event.seq] = index;
        rows_in_hand_++;
        open_row(index);
        rows_of_bucket_[bucket_of_event(event)]++;
        let_in(index);
    }
    next_batch_++;
    if (!result.durable) {
        give_up_unsent();
    }
}

void Drain::open_row(std::size_t index) {
    const Event& event = *rows_[index].event;
    Batch& batch = batches_.at(rows_[index].batch);
    batch.open++;
    bytes_in_hand_ += event.payload.size();
    if (event.payload_memory == nullptr) {
        batch.shared_bytes += event.payload.size();
    }
    if (event.group.has_value() && !event.payload.empty()) {
        bytes_of_group_[*event.group] += event.payload.size();
    }
}

// It is not going to be sent any more, whatever is still to be written of it: its payload need not
// be kept. What has no memory of its own goes with the last of its batch.
void Drain::close_row(std::size_t index, RowState state) {
    Row& row = rows_[index];
    const bool was_open = row.state == RowState::ready || row.state == RowState::sent;
    row.state = state;
    if (!was_open) {
        return;
    }
    const Event& event = *row.event;
    Batch& batch = batches_.at(row.batch);
    if (event.payload_memory != nullptr) {
        bytes_in_hand_ -= event.payload.size();
        spent_.push_back(&event);
    }
    if (--batch.open == 0) {
        bytes_in_hand_ -= std::exchange(batch.shared_bytes, 0);
    }
    if (event.group.has_value() && !event.payload.empty()) {
        const auto of_group = bytes_of_group_.find(*event.group);
        of_group->second -= event.payload.size();
        if (of_group->second == 0) {
            bytes_of_group_.erase(of_group);
        }
    }
}

void Drain::let_in(std::size_t index) {
    const Event& event = *rows_[index].event;
    if (!event.group.has_value()) {
        ready_.push_back(index);
        return;
    }
    if (const std::optional<std::size_t> out = groups_.add(*event.group, event.seq, index)) {
        ready_.push_back(*out);
    }
    if (event.leads) {
        groups_.set_followed(*event.group);
    }
    put_behind(*event.group);
}

void Drain::transaction_failed(Time now) {
    planned_rows_.clear();
    transaction_failures_++;
    if (plan_.claim > 0 && plan_.marks.empty()) {
        claim_limit_ = std::max<std::size_t>(plan_.walk / 2, 1);
    }
    look_ = look_ || plan_.claim > 0;
    transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
    // They come due by themselves, if later.
    if (plan_.wake_held.has_value()) {
        wakes_.pop_front();
    }
}

std::vector<BatchId> Drain::finished_batches() {
    return std::exchange(finished_, {});
}

std::vector<const Event*> Drain::spent_payloads() {
    return std::exchange(spent_, {});
}

// A claim beside the marks knows when the next deferred row is due; marks alone tell nobody.
void Drain::look_for_deferred(Time now) {
    if (plan_.claim > 0) {
        return;
    }
    look_ = look_ || !plan_.release_behind.empty();
    for (const BatchMarks& marks : plan_.marks) {
        for (const FailedMark& mark : marks.failed) {
            next_look_ = std::min(next_look_, now + mark.delay + Duration{1});
        }
    }
}

// What was claimed under suspicion has come to an end without killing anybody.
void Drain::clear_suspects() noexcept {
    look_ = true;
    cleared_ += std::exchange(suspected_, 0);
    if (cleared_ >= suspicion_until_) {
        end_suspicion();
    }
}

void Drain::end_suspicion() noexcept {
    suspicion_ = 0;
    suspicion_until_ = 0;
    cleared_ = 0;
}

}  // namespace outbox
