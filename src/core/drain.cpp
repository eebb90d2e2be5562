#include "core/drain.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace outbox {

namespace {

// How long an outcome may wait for company before it is written: few published rows are ever
// unmarked.
constexpr Duration SETTLE_INTERVAL{10};

// Delays after a failed transaction; the outcomes wait in memory meanwhile.
constexpr Backoff TRANSACTION_BACKOFF{Duration{100}, 2, Duration{5000}};
// How often a mark is tried again that failed in a transaction of its own.
constexpr Duration SET_ASIDE_INTERVAL{5000};

// Reconnects: soon after a first failure, never hammering.
constexpr Backoff RECONNECT_BACKOFF{Duration{500}, 2, Duration{30000}};
constexpr Duration CONFIGURATION_DELAY{10000};
// A connection that lived this long was a good one: the next failure is a first failure again.
constexpr Duration HEALTHY_AFTER{10000};

constexpr Duration lease_half(const DrainSettings& settings) {
    return settings.lease_ttl / 2;
}
// What is left of a lease must cover the way of a message to the broker and back.
constexpr Duration lease_last_publish(const DrainSettings& settings) {
    return settings.lease_ttl / 4 * 3;
}

}  // namespace

Drain::Drain(const DrainSettings& settings, std::uint64_t seed)
    : settings_(settings), random_(seed) {}

Command Drain::next(Time now) {
    if (blocked_) {
        last_blocked_ = now;
    }
    if (std::optional<std::string> reason = fault(now)) {
        return {Command::Kind::disconnect, now, *reason, nullptr};
    }
    look_after_leases(now);
    if (!may_run() || link_ != Link::up || stopping_) {
        give_up_unsent();
    }
    if (stopping_ && now >= stop_deadline_) {
        give_up_sent();
    }
    if (rows_in_hand_ == 0 && next_settings_.has_value()) {
        settings_ = *std::exchange(next_settings_, std::nullopt);
        reconnect_at_ = now;
        connect_failures_ = 0;
        if (link_ != Link::down) {
            return {Command::Kind::disconnect, now, "", nullptr};
        }
    }
    if (transaction_due(now)) {
        return {Command::Kind::transact, now, "", nullptr};
    }
    if (stopping_ && (rows_in_hand_ == 0 || now >= stop_deadline_ + settings_.shutdown_timeout)) {
        return {Command::Kind::exit, now, "", nullptr};
    }
    if (wants_disconnect()) {
        return {Command::Kind::disconnect, now, "", nullptr};
    }
    if (link_ == Link::down && may_run() && !stopping_ && now >= reconnect_at_) {
        link_ = Link::connecting;
        link_since_ = now;
        return {Command::Kind::connect, now, "", nullptr};
    }
    if (may_publish(now)) {
        return {Command::Kind::publish, now, "", rows_[ready_.front()].event};
    }
    return wait(now);
}

// ---- The broker's side ----

void Drain::connected(Time now, std::size_t send_buffer_bytes) {
    link_ = Link::up;
    link_since_ = now;
    send_buffer_bytes_ = send_buffer_bytes;
    blocked_ = false;
    look_ = true;
}

void Drain::connection_lost(Time now, bool configuration, std::string_view) {
    const bool was_healthy = link_ == Link::up && now - link_since_ >= HEALTHY_AFTER;
    connect_failures_ = was_healthy ? 1 : connect_failures_ + 1;
    Duration delay = RECONNECT_BACKOFF.delay(connect_failures_, random_);
    if (configuration) {
        delay = std::max(delay, CONFIGURATION_DELAY);
    }
    connection_closed(now);
    reconnect_at_ = now + delay;
}

void Drain::connection_closed(Time now) {
    link_ = Link::down;
    link_since_ = now;
    blocked_ = false;
    give_up_sent();
    give_up_unsent();
}

void Drain::blocked() {
    blocked_ = true;
}

void Drain::unblocked() {
    blocked_ = false;
}

bool Drain::sent(Time now, std::uint64_t tag, std::size_t bytes) {
    const std::size_t index = ready_.front();
    if (!tags_.open(tag, index)) {
        return false;
    }
    ready_.pop_front();
    Row& row = rows_[index];
    row.state = RowState::sent;
    row.since = now;
    row.bytes = bytes;
    unconfirmed_bytes_ += bytes;
    return true;
}

void Drain::rejected(Time now, std::string_view code, std::string_view detail) {
    const std::size_t index = ready_.front();
    ready_.pop_front();
    Row& row = rows_[index];
    row.state = RowState::failed;
    row.since = now;
    row.error = "rejected: " + std::string(code) + ": " + std::string(detail);
    failed_++;
    oldest_outcome_ = oldest_outcome_.value_or(now);
}

bool Drain::confirmed(Time now, std::uint64_t tag, bool multiple, bool ack) {
    std::vector<std::size_t> settled;
    if (!tags_.settle(tag, multiple, settled)) {
        return false;
    }
    for (std::size_t index : settled) {
        Row& row = rows_[index];
        unconfirmed_bytes_ -= row.bytes;
        row.since = now;
        if (row.renew) {
            row.renew = false;
            to_renew_--;
        }
        if (ack) {
            row.state = RowState::published;
            published_++;
        } else {
            row.state = RowState::failed;
            row.error = "nack: the broker refused the message";
            failed_++;
        }
    }
    if (!settled.empty()) {
        oldest_outcome_ = oldest_outcome_.value_or(now);
    }
    return true;
}

// ---- The database's side ----

void Drain::transacted(Time now, const TransactionResult& result) {
    bool failed_again = false;
    take_written(result, failed_again);
    planned_rows_.clear();
    forget_dropped_rows();
    oldest_outcome_ = published_ + failed_ > 0 ? std::optional<Time>(oldest_outcome_.value_or(now))
                                               : std::nullopt;
    if (plan_.one_by_one) {
        set_aside_at_ = now + SET_ASIDE_INTERVAL;
    }
    if (failed_again) {
        transaction_failures_++;
        transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
        return;
    }
    if (plan_.one_by_one) {
        transaction_failures_ = 0;
    }
    if (plan_.claim > 0) {
        transaction_failures_ = 0;
        look_ = result.more || look_;
        next_look_ = now + settings_.poll_interval;
        if (result.next_due.has_value()) {
            next_look_ = std::min(next_look_, now + std::max(*result.next_due, Duration{1}));
        }
        add_claim(now, result);
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

void Drain::add_claim(Time, const TransactionResult& result) {
    if (result.claimed.empty()) {
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
        ready_.push_back(index);
        rows_in_hand_++;
    }
    next_batch_++;
    if (!result.durable) {
        give_up_unsent();
    }
}

void Drain::transaction_failed(Time now) {
    planned_rows_.clear();
    transaction_failures_++;
    look_ = look_ || plan_.claim > 0;
    transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
}

std::vector<BatchId> Drain::finished_batches() {
    return std::exchange(finished_, {});
}

// ---- The operator's side ----

void Drain::configure(Time now, const DrainSettings& settings) {
    if (settings == settings_) {
        next_settings_.reset();
        return;
    }
    const bool same_broker = settings.broker_uri == settings_.broker_uri &&
                             settings.password_file == settings_.password_file &&
                             settings.heartbeat == settings_.heartbeat;
    if (same_broker) {
        next_settings_.reset();
        settings_ = settings;
        look_ = true;
    } else {
        next_settings_ = settings;
    }
    reconnect_at_ = std::min(reconnect_at_, now);
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

DrainerState Drain::state(Time now) const {
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
    if (link_ == Link::down || (transaction_failures_ > 0 && now < transact_at_)) {
        return DrainerState::backoff;
    }
    if (blocked_) {
        return DrainerState::blocked;
    }
    return rows_in_hand_ > 0 ? DrainerState::publishing : DrainerState::idle;
}

std::optional<std::int64_t> Drain::lowest_kept() const {
    std::optional<std::int64_t> lowest;
    for (const auto& [id, batch] : batches_) {
        for (std::size_t index : batch.rows) {
            const Row& row = rows_[index];
            const bool ends = (row.state == RowState::published || row.state == RowState::failed) &&
                              !row.set_aside && !plan_.one_by_one;
            if (!row.event->deferred && !ends) {
                lowest = std::min(lowest.value_or(row.event->seq), row.event->seq);
            }
        }
    }
    return lowest;
}

// ---- Decisions ----

bool Drain::may_run() const noexcept {
    return settings_.enabled && !misconfigured_ && !settings_.broker_uri.empty();
}

bool Drain::may_claim() const {
    return may_run() && link_ == Link::up && !blocked_ && !stopping_ && !claims_held_ &&
           !next_settings_.has_value() &&
           rows_in_hand_ <= static_cast<std::size_t>(settings_.batch_size);
}

bool Drain::may_publish(Time now) const {
    if (link_ != Link::up || blocked_ || stopping_ || ready_.empty()) {
        return false;
    }
    const Row& row = rows_[ready_.front()];
    const Batch& batch = batches_.at(row.batch);
    return window_takes(row) && now < batch.leased_at + lease_last_publish(settings_);
}

// Unconfirmed bytes stay below what the socket takes without blocking; a message larger than that
// goes alone.
bool Drain::window_takes(const Row& row) const {
    const auto depth = static_cast<std::size_t>(settings_.pipeline_depth);
    if (tags_.open_count() >= depth ||
        tags_.open_count() + published_ + failed_ + set_aside_ >= 2 * depth) {
        return false;
    }
    return tags_.open_count() == 0 || unconfirmed_bytes_ + row.bytes <= send_buffer_bytes_;
}

std::optional<std::string> Drain::fault(Time now) const {
    if (link_ == Link::connecting && now >= link_since_ + settings_.connect_timeout) {
        return "connection attempt timed out after " +
               std::to_string(settings_.connect_timeout.count()) + " ms";
    }
    if (link_ == Link::up && !blocked_ && tags_.open_count() > 0 && now >= confirm_deadline()) {
        return "no confirm from the broker for " +
               std::to_string(settings_.confirm_timeout.count()) + " ms";
    }
    return std::nullopt;
}

bool Drain::wants_disconnect() const {
    return link_ != Link::down && !may_run() && rows_in_hand_ == 0;
}

// At half of a lease, what is not sent is given back and what is sent is renewed: a row is never
// published on a lease that may have passed to somebody else.
void Drain::look_after_leases(Time now) {
    bool given_up = false;
    for (const auto& [id, batch] : batches_) {
        if (now < batch.leased_at + lease_half(settings_)) {
            continue;
        }
        for (std::size_t index : batch.rows) {
            Row& row = rows_[index];
            if (row.state == RowState::ready) {
                row.state = RowState::releasing;
                releasing_++;
                given_up = true;
            } else if (row.state == RowState::sent && !row.renew) {
                row.renew = true;
                to_renew_++;
            }
        }
    }
    if (given_up) {
        std::erase_if(ready_,
                      [this](std::size_t index) { return rows_[index].state != RowState::ready; });
    }
}

void Drain::give_up_unsent() {
    for (std::size_t index : ready_) {
        rows_[index].state = RowState::releasing;
        releasing_++;
    }
    ready_.clear();
}

// Nobody knows whether the broker has these; they are given back uncharged and will be sent again.
void Drain::give_up_sent() {
    for (std::size_t index : tags_.reset()) {
        Row& row = rows_[index];
        row.state = RowState::releasing;
        if (row.renew) {
            row.renew = false;
            to_renew_--;
        }
        releasing_++;
    }
    unconfirmed_bytes_ = 0;
}

// Outcomes are streamed: written when there are many, when one has waited, or when nothing else
// moves.
bool Drain::transaction_due(Time now) {
    if (now < transact_at_) {
        return false;
    }
    if (set_aside_ > 0 && now >= set_aside_at_) {
        plan_rows_set_aside(now);
        return true;
    }
    const std::size_t outcomes = published_ + failed_;
    const bool settle = releasing_ > 0 || to_renew_ > 0 || outcomes >= settle_threshold() ||
                        (outcomes > 0 && ((tags_.open_count() == 0 && !may_publish(now)) ||
                                          stopping_ || transaction_failures_ > 0 ||
                                          now >= oldest_outcome_.value_or(now) + SETTLE_INTERVAL));
    // After a failure the settling is tried alone; only when nothing is left of it, the claim.
    const bool claim =
        may_claim() && (transaction_failures_ > 0 ? !settle : look_ || now >= next_look_);
    if (!settle && !claim) {
        return false;
    }
    make_plan(now, claim);
    return true;
}

std::size_t Drain::settle_threshold() const noexcept {
    return static_cast<std::size_t>(std::max(settings_.pipeline_depth / 2, 1));
}

void Drain::make_plan(Time now, bool claim) {
    plan_ = {};
    planned_at_ = now;
    plan_.one_by_one = transaction_failures_ > 1 && !claim;
    add_marks(false);
    if (claim) {
        plan_.claim = static_cast<std::size_t>(settings_.batch_size);
        look_ = false;
    }
}

void Drain::plan_rows_set_aside(Time now) {
    plan_ = {};
    planned_at_ = now;
    plan_.one_by_one = true;
    add_marks(true);
}

void Drain::add_marks(bool set_aside) {
    planned_rows_.clear();
    for (const auto& [id, batch] : batches_) {
        BatchMarks marks;
        marks.batch = id;
        marks.token = batch.token;
        const std::size_t planned_before = planned_rows_.size();
        for (std::size_t index : batch.rows) {
            const Row& row = rows_[index];
            if (row.set_aside != set_aside) {
                continue;
            }
            if (row.state == RowState::published) {
                marks.published.push_back(row.event->seq);
            } else if (row.state == RowState::failed) {
                marks.failed.push_back({row.event->seq, row.error,
                                        settings_.retry.delay(row.event->attempts + 1, random_)});
            } else if (row.state == RowState::releasing) {
                marks.released.push_back(row.event->seq);
            } else if (row.renew) {
                marks.renewed.push_back(row.event->seq);
            } else {
                continue;
            }
            planned_rows_.push_back(index);
        }
        if (planned_rows_.size() > planned_before) {
            plan_.marks.push_back(std::move(marks));
        }
    }
}

void Drain::uncount(const Row& row) {
    if (row.set_aside) {
        set_aside_--;
    } else if (row.state == RowState::published) {
        published_--;
    } else if (row.state == RowState::failed) {
        failed_--;
    } else if (row.state == RowState::releasing) {
        releasing_--;
    }
}

void Drain::drop_row(std::size_t index) {
    Row& row = rows_[index];
    uncount(row);
    look_ = look_ || row.state == RowState::releasing;
    row = Row{};
    free_rows_.push_back(index);
    rows_in_hand_--;
}

// Takes the rows that drop_row freed out of their batches, and ends batches that have none left.
void Drain::forget_dropped_rows() {
    for (auto batch = batches_.begin(); batch != batches_.end();) {
        std::erase_if(batch->second.rows,
                      [this](std::size_t index) { return rows_[index].state == RowState::free; });
        if (batch->second.rows.empty()) {
            finished_.push_back(batch->first);
            batch = batches_.erase(batch);
        } else {
            ++batch;
        }
    }
}

// Until the next moment at which time alone changes what there is to do. A moment that has passed
// without a command waits for something else than time.
Command Drain::wait(Time now) const {
    Time until = now + settings_.poll_interval;
    const auto not_after = [&until, now](Time time) {
        if (time > now) {
            until = std::min(until, time);
        }
    };
    if (stopping_) {
        not_after(stop_deadline_);
        not_after(stop_deadline_ + settings_.shutdown_timeout);
    }
    if (transaction_failures_ > 0) {
        not_after(transact_at_);
    }
    if (link_ == Link::down && may_run()) {
        not_after(reconnect_at_);
    }
    if (link_ == Link::connecting) {
        not_after(link_since_ + settings_.connect_timeout);
    }
    if (link_ == Link::up) {
        not_after(next_look_);
    }
    if (tags_.open_count() > 0 && !blocked_) {
        not_after(confirm_deadline());
    }
    if (set_aside_ > 0) {
        not_after(set_aside_at_);
    }
    if (oldest_outcome_.has_value()) {
        not_after(*oldest_outcome_ + SETTLE_INTERVAL);
    }
    for (const auto& [id, batch] : batches_) {
        not_after(batch.leased_at + lease_half(settings_));
    }
    return {Command::Kind::wait, until, "", nullptr};
}

// A broker that blocked could not answer meanwhile.
Time Drain::confirm_deadline() const {
    return std::max(rows_[tags_.oldest()].since, last_blocked_) + settings_.confirm_timeout;
}

}  // namespace outbox
