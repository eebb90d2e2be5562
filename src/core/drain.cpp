// The drain state machine: what it is told. What it decides is in drain_decisions.cpp.
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

// Reconnects: soon after a first failure, never hammering.
constexpr Backoff RECONNECT_BACKOFF{Duration{500}, 2, Duration{30000}};
constexpr Duration CONFIGURATION_DELAY{10000};
// A connection that lived this long was a good one: the next failure is a first failure again.
constexpr Duration HEALTHY_AFTER{10000};

bool same_broker(const DrainSettings& a, const DrainSettings& b) {
    return a.broker_uri == b.broker_uri && a.password_file == b.password_file &&
           a.heartbeat == b.heartbeat;
}

}  // namespace

Drain::Drain(const DrainSettings& settings, std::uint64_t seed)
    : settings_(settings),
      random_(seed),
      rate_(settings.publish_rate),
      replay_(seed ^ 0x7265706c6179U) {
    replay_.configure(settings_.ordering, settings_.retry);
}

Command Drain::next(Time now) {
    if (blocked_) {
        last_blocked_ = now;
    }
    if (std::optional<std::string> reason = fault(now)) {
        return {Command::Kind::disconnect, now, *reason, nullptr};
    }
    look_after_leases(now);
    if (!may_publish_at_all() || (blocked_ && is_leaving())) {
        give_up_unsent();
    }
    if (stopping_ && now >= stop_deadline_) {
        give_up_sent();
    }
    if (rows_in_hand_ == 0 && next_settings_.has_value() && adopt_settings(now)) {
        return {Command::Kind::disconnect, now, "", nullptr};
    }
    if (transaction_due(now)) {
        return {Command::Kind::transact, now, "", nullptr};
    }
    if (replay_due(now)) {
        return {Command::Kind::replay, now, "", nullptr};
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
    if (const Event* event = next_replayed(now)) {
        replaying_ = true;
        return {Command::Kind::publish, now, "", event};
    }
    replaying_ = false;
    if (may_publish(now) && rate_.take(now)) {
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

void Drain::connection_lost(Time now, bool configuration, std::string_view why) {
    // A replay to an exchange that is missing says nothing of the broker.
    const bool by_replay = replay_.lost(now, why);
    const bool was_healthy = link_ == Link::up && now - link_since_ >= HEALTHY_AFTER;
    connect_failures_ = was_healthy ? 1 : connect_failures_ + 1;
    Duration delay = RECONNECT_BACKOFF.delay(connect_failures_, random_);
    if (by_replay) {
        connect_failures_ = 0;
        delay = Duration{0};
    } else if (configuration) {
        delay = std::max(delay, CONFIGURATION_DELAY);
    }
    connection_closed(now);
    reconnect_at_ = now + delay;
}

void Drain::connection_closed(Time now) {
    link_ = Link::down;
    link_since_ = now;
    blocked_ = false;
    (void)replay_.lost(now, "");
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
    if (replaying_) {
        unconfirmed_bytes_ += bytes;
        return tags_.open(tag, replay_.sent(now, bytes));
    }
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

void Drain::returned(std::uint64_t tag, std::string_view why) {
    const std::optional<std::size_t> index = tags_.row_of(tag);
    if (index.has_value() && !ReplayLane::is_ticket(*index)) {
        rows_[*index].returned = true;
        rows_[*index].error = why;
    }
}

// Nothing of it was sent and nothing ever will be, so it stops nobody; but with stop_the_line the
// line stops at any end that is not a good one.
void Drain::rejected(Time now, std::string_view code, std::string_view detail) {
    if (replaying_) {
        replay_.rejected(now, code, detail);
        return;
    }
    const std::size_t index = ready_.front();
    ready_.pop_front();
    Row& row = rows_[index];
    row.state = RowState::ended;
    row.outcome = EndedMark::Outcome::rejected;
    row.since = now;
    row.code = code;
    row.error = "rejected: " + std::string(code) + ": " + std::string(detail);
    failed_++;
    oldest_outcome_ = oldest_outcome_.value_or(now);
    if (settings_.ordering == Ordering::stop_the_line) {
        hold_group_of(index);
    } else {
        advance_group_of(index);
    }
}

// A row that used its last attempt holds its group like any other until that is written: after a
// crash before it is, it is tried once more.
void Drain::fail(Time now, std::size_t index, std::string_view error_class, std::string error) {
    Row& row = rows_[index];
    const bool is_dead =
        settings_.max_attempts > 0 && row.event->attempts + 1 >= settings_.max_attempts;
    row.state = is_dead ? RowState::ended : RowState::failed;
    row.outcome = EndedMark::Outcome::dead;
    row.since = now;
    row.code = error_class;
    row.error = std::string(error_class) + ": " + std::move(error);
    failed_++;
    hold_group_of(index);
}

void Drain::hold_group_of(std::size_t index) {
    if (const std::optional<std::uint64_t> group = rows_[index].event->group) {
        hold_behind(index);
        put_behind(*group);
        advance_group_of(index);
    }
}

// Until what became of the row is written, no later one of its group may go.
void Drain::hold_behind(std::size_t index) {
    Row& row = rows_[index];
    if (row.event->group.has_value() && !row.holds_group) {
        row.holds_group = true;
        groups_.hold(*row.event->group, row.event->seq);
    }
}

void Drain::advance_group_of(std::size_t index) {
    const std::optional<std::uint64_t> group = rows_[index].event->group;
    if (!group.has_value()) {
        return;
    }
    if (const std::optional<std::size_t> next = groups_.advance(*group)) {
        ready_.push_back(*next);
    }
}

// What waits in hand behind a row that failed or is given back. With stop_the_line all waits, so
// nothing has to be written to the rows behind: they are just given back.
void Drain::put_behind(std::uint64_t group) {
    const bool whole_line = settings_.ordering == Ordering::stop_the_line;
    for (std::size_t index : groups_.remove_held(group)) {
        rows_[index].state = whole_line ? RowState::releasing : RowState::deferring;
        releasing_++;
        hold_behind(index);
        if (!whole_line) {
            groups_.set_followed(group);
        }
    }
}

bool Drain::confirmed(Time now, std::uint64_t tag, bool multiple, bool ack) {
    std::vector<std::size_t> settled;
    if (!tags_.settle(tag, multiple, settled)) {
        return false;
    }
    for (std::size_t index : settled) {
        if (ReplayLane::is_ticket(index)) {
            unconfirmed_bytes_ -= replay_.settled(now, index, ack);
            continue;
        }
        Row& row = rows_[index];
        unconfirmed_bytes_ -= row.bytes;
        row.since = now;
        if (row.renew) {
            row.renew = false;
            to_renew_--;
        }
        if (!ack) {
            fail(now, index, "nack", "the broker refused the message");
        } else if (row.returned) {
            fail(now, index, "unroutable", std::exchange(row.error, {}));
        } else {
            row.state = RowState::published;
            published_++;
            advance_group_of(index);
        }
    }
    if (published_ + failed_ > 0) {
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
        set_aside_at_ = now + (stopping_ ? SET_ASIDE_INTERVAL_AT_STOP : SET_ASIDE_INTERVAL);
    }
    if (failed_again) {
        transaction_failures_++;
        transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
        return;
    }
    if (suspicion_ > 0 && rows_in_hand_ == 0 && !plan_.marks.empty()) {
        clear_suspects();
    }
    // A plan of marks alone that went well says nothing about the claim that failed before.
    if (plan_.one_by_one || plan_.claim > 0 || !may_claim()) {
        transaction_failures_ = 0;
    }
    if (!plan_.pause.empty() && !plan_.one_by_one) {
        settings_.paused = true;
    }
    look_for_deferred(now);
    if (plan_.claim > 0) {
        claim_limit_ = std::max(claim_limit_, 2 * plan_.claim);
        look_ = result.more || look_;
        next_look_ = now + settings_.poll_interval;
        if (result.next_due.has_value()) {
            next_look_ = std::min(next_look_, now + std::max(*result.next_due, Duration{1}));
        }
        add_claim(result);
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
    suspected_ = result.claimed.size();
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
        rows_of_bucket_[bucket_of_event(event)]++;
        let_in(index);
    }
    for (std::uint64_t group : result.followed) {
        groups_.set_followed(group);
    }
    next_batch_++;
    if (!result.durable) {
        give_up_unsent();
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
        claim_limit_ = std::max<std::size_t>(plan_.claim / 2, 1);
    }
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
        now_settings.ordering = settings_.ordering;
        settings_ = now_settings;
    }
    reconnect_at_ = std::min(reconnect_at_, now);
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
    reconnect_at_ = now;
    connect_failures_ = 0;
    return link_ != Link::down;
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
    cleared_ += suspected_;
    if (cleared_ >= suspicion_until_) {
        end_suspicion();
    }
}

void Drain::end_suspicion() noexcept {
    suspicion_ = 0;
    suspicion_until_ = 0;
    cleared_ = 0;
}

void Drain::suspect(std::size_t rows) noexcept {
    const std::size_t half = std::max<std::size_t>(rows / 2, 1);
    suspicion_ = suspicion_ == 0 ? half : std::min(suspicion_, half);
    suspicion_until_ = std::max(suspicion_until_, rows);
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
