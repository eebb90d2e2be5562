// Rows whose retention is over are removed in the background, a chunk at a time, when core says so.
#include <algorithm>

#include "postgres/event_retention.hpp"
#include "postgres/log.hpp"
#include "postgres/wait.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

namespace {

// As often as the floor, for the same reasons.
constexpr Duration POSITION_INTERVAL{5000};
constexpr Duration RETRY_READING{60000};

}  // namespace

// Off means hands off; a pause only stops publishing.
bool Drainer::may_collect() const {
    const bool anything =
        settings_.retention > Duration{0} || settings_.dead_retention > Duration{0};
    return collects_ && anything && settings_.enabled && prepared_ && !drain_.stopping();
}

Duration Drainer::until_collection(Time now) const {
    if (!may_collect()) {
        return Duration::max();
    }
    const Time next = std::max(retention_.next_look(), retention_retry_at_);
    return std::max(next - now, Duration{0});
}

void Drainer::collect() {
    const Time now = postgres::monotonic_now();
    // Also when there is nothing to do, so that a retention which comes back counts at once.
    retention_.configure(now, settings_.retention, settings_.dead_retention);
    if (!may_collect() || now < retention_retry_at_) {
        return;
    }
    if (!retention_position_.has_value() && !begin_retention()) {
        retention_retry_at_ = now + RETRY_READING;
        return;
    }
    if (now >= retention_.next_look()) {
        // The floor is that of all drainers, and ours is news to them. Which may end our lead.
        share_buckets(now);
        if (!may_collect() || !retention_position_.has_value()) {
            return;
        }
    }
    if (retention_.begin(now, shares_.lowest_floor())) {
        collect_chunk(now);
    } else if (position_is_due(now)) {
        write_position_alone(now);
    }
}

bool Drainer::begin_retention() {
    postgres::Transaction transaction("outbox_drainer: looking where retention stands");
    const auto position = begin(transaction) ? postgres::read_retention_position(transaction)
                                             : std::optional<std::int64_t>();
    if (!position.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    retention_ = Retention(*position);
    retention_.configure(postgres::monotonic_now(), settings_.retention, settings_.dead_retention);
    retention_position_ = position;
    return true;
}

void Drainer::collect_chunk(Time now) {
    postgres::Transaction transaction("outbox_drainer: removing events after their retention");
    std::span<const std::int64_t> chosen;
    std::vector<std::int64_t> removed;
    std::optional<std::int64_t> written;
    const bool ok = begin(transaction) && remove_chunk(transaction, now, chosen, removed) &&
                    write_position_if_due(transaction, now, written);
    if (!ok || transaction.commit() == postgres::CommitOutcome::failed) {
        transaction.abort();
        note_failed_collection(chosen, transaction.error());
        return;
    }
    retention_position_ = written.has_value() ? written : retention_position_;
    const Time end = postgres::monotonic_now();
    retention_.finish(end, end - now, removed);
    postgres::add(slot_.counters().collected, removed.size());
}

bool Drainer::remove_chunk(postgres::Transaction& transaction, Time now,
                           std::span<const std::int64_t>& chosen,
                           std::vector<std::int64_t>& removed) {
    const postgres::Kept kept{settings_.retention, settings_.dead_retention};
    const auto rows =
        postgres::read_retained(transaction, retention_.turn(), retention_.refused(now), kept);
    if (!rows.has_value()) {
        return false;
    }
    chosen = retention_.choose(now, *rows);
    if (chosen.empty()) {
        return true;
    }
    const auto hit = postgres::remove_ended(transaction, chosen, kept);
    if (hit.has_value()) {
        removed.assign(hit->begin(), hit->end());
    }
    return hit.has_value();
}

bool Drainer::position_is_due(Time now) const {
    return retention_.position() != *retention_position_ &&
           now >= retention_position_at_ + POSITION_INTERVAL;
}

// What the turns before this one have reached. `written` is for when the transaction has committed.
bool Drainer::write_position_if_due(postgres::Transaction& transaction, Time now,
                                    std::optional<std::int64_t>& written) {
    if (!position_is_due(now)) {
        return true;
    }
    retention_position_at_ = now;
    written = retention_.position();
    return postgres::write_retention_position(transaction, *written);
}

// When the work is done, so that a restart has none of it again.
void Drainer::write_position_alone(Time now) {
    postgres::Transaction transaction("outbox_drainer: writing where retention stands");
    std::optional<std::int64_t> written;
    if (!begin(transaction) || !write_position_if_due(transaction, now, written) ||
        transaction.commit() == postgres::CommitOutcome::failed) {
        retention_position_at_ = now;
        note_database_error(transaction.error());
        return;
    }
    retention_position_ = written;
}

// A chunk that fails is tried again with half as many rows, until the row at fault is alone: a
// trigger or a foreign key of the user's refuses it, say.
void Drainer::note_failed_collection(std::span<const std::int64_t> chosen,
                                     const postgres::PgError& error) {
    if (chosen.empty()) {
        note_database_error(error);
    } else if (chosen.size() == 1 && refusal_ != error.message) {
        refusal_ = error.message;
        const std::string problem = "event with seq " + std::to_string(chosen.front()) +
                                    " cannot be removed after its retention: ";
        slot_.set_error(problem + error.message);
        postgres::log_warning("outbox_drainer: " + problem + error.message, error.detail,
                              "It is kept and tried again later; other events go on.");
    }
    retention_.fail(postgres::monotonic_now());
}

}  // namespace outbox::worker
