// The drain state machine: the commands that it gives and what the broker tells it. What the
// database and the operator tell it is in drain_results.cpp and drain_control.cpp, what it decides
// in drain_decisions.cpp, and how it keeps poison from its neighbours in drain_isolation.cpp.
#include "core/drain.hpp"

#include <algorithm>
#include <utility>

#include "core/broker_uri.hpp"

namespace outbox {

namespace {

// A connection that lived this long was a good one: the next failure is a first failure again.
constexpr Duration HEALTHY_AFTER{10000};

}  // namespace

Drain::Drain(const DrainSettings& settings, std::uint64_t seed)
    : settings_(settings),
      random_(seed),
      rate_(settings.publish_rate),
      replay_(seed ^ 0x7265706c6179U) {
    replay_.configure(settings_.ordering, settings_.retry);
    reconnect_.set_brokers(Time{}, count_brokers(settings_.broker_uri));
}

Command Drain::next(Time now) {
    if (blocked_) {
        last_blocked_ = now;
    }
    if (nacks_.wants_another() && in_flight() == 0 && link_ == Link::up && !stopping_) {
        nacks_.renewed(now);
        return {.kind = Command::Kind::disconnect,
                .until = now,
                .reason =
                    "it refused again what it had refused before; another connection may do "
                    "better"};
    }
    if (std::optional<std::string> reason = fault(now)) {
        return {.kind = Command::Kind::disconnect, .until = now, .reason = *reason};
    }
    look_after_leases(now);
    if (!may_publish_at_all() || (blocked_ && is_leaving())) {
        give_up_unsent();
    }
    if (stopping_ && now >= stop_deadline_) {
        give_up_sent();
    }
    if (rows_in_hand_ == 0 && next_settings_.has_value() && adopt_settings(now)) {
        return {.kind = Command::Kind::disconnect, .until = now};
    }
    sort_ready(now);
    // It may want to know of an exchange first, or find that the job has failed.
    const Event* const replayed = next_replayed(now);
    if (std::optional<Command> question = next_question(now)) {
        return *std::move(question);
    }
    if (transaction_due(now)) {
        return {.kind = Command::Kind::transact, .until = now};
    }
    if (replay_due(now)) {
        return {.kind = Command::Kind::replay, .until = now};
    }
    if (stopping_ && (rows_in_hand_ == 0 || now >= stop_deadline_ + settings_.shutdown_timeout)) {
        return {.kind = Command::Kind::exit, .until = now};
    }
    if (wants_disconnect()) {
        return {.kind = Command::Kind::disconnect, .until = now};
    }
    if (link_ == Link::down && may_run() && !stopping_ && now >= reconnect_.at()) {
        link_ = Link::connecting;
        link_since_ = now;
        connect_timeout_ = settings_.connect_timeout;
        reconnect_.attempted(now);
        return {.kind = Command::Kind::connect, .until = now, .broker = reconnect_.broker()};
    }
    if (replayed != nullptr) {
        return publish(now, Source::replay, replayed);
    }
    if (may_try(now) && rate_.take(now)) {
        return publish(now, Source::trial, rows_[trials_.front()].event);
    }
    if (may_publish(now) && rate_.take(now)) {
        return publish(now, Source::ready, rows_[ready_.front()].event);
    }
    return wait(now);
}

Command Drain::publish(Time now, Source source, const Event* event) {
    source_ = source;
    return {.kind = Command::Kind::publish,
            .until = now,
            .event = event,
            .channel = source == Source::trial ? Channel::trial : Channel::main};
}

// ---- The broker's side ----

void Drain::connected(Time now, std::size_t send_buffer_bytes) {
    link_ = Link::up;
    link_since_ = now;
    send_buffer_bytes_ = send_buffer_bytes;
    blocked_ = false;
    look_ = true;
    main_ = trial_ = {true, now};
    // What a drainer before this one held may wait for what is there by now.
    if (!was_connected_) {
        was_connected_ = true;
        wakes_.emplace_back();
    }
}

void Drain::connection_lost(Time now, bool configuration, std::string_view why, bool by_publish) {
    const bool by_message = by_publish && in_flight() > 0;
    if (by_message) {
        accuse_unconfirmed(now, why);
    }
    // What a message brought about says nothing of the broker.
    const bool by_replay = replay_.lost(now, why);
    const bool was_healthy = link_ == Link::up && now - link_since_ >= HEALTHY_AFTER;
    reconnect_.failed(now, configuration && !by_replay, was_healthy, random_);
    connection_closed(now);
    if (by_replay || by_message) {
        reconnect_.hurry(now);
    }
}

void Drain::connection_closed(Time now) {
    link_ = Link::down;
    link_since_ = now;
    blocked_ = false;
    (void)replay_.lost(now, "");
    give_up_sent();
    give_up_unsent();
    forget_isolation();
    nacks_.forget();
}

void Drain::blocked() {
    blocked_ = true;
}

void Drain::unblocked() {
    blocked_ = false;
}

bool Drain::sent(Time now, std::uint64_t tag, std::size_t bytes) {
    if (source_ == Source::replay) {
        unconfirmed_bytes_ += bytes;
        return tags_.open(tag, replay_.sent(now, bytes));
    }
    TagTracker& tags = source_ == Source::trial ? trial_tags_ : tags_;
    const std::size_t index = source_ == Source::trial ? trials_.front() : ready_.front();
    if (!tags.open(tag, index)) {
        return false;
    }
    (void)take_front();
    Row& row = rows_[index];
    row.state = RowState::sent;
    row.since = now;
    row.bytes = bytes;
    unconfirmed_bytes_ += bytes;
    return true;
}

// The row that the last publish was about, out of its queue.
std::size_t Drain::take_front() {
    std::deque<std::size_t>& queue = source_ == Source::trial ? trials_ : ready_;
    const std::size_t index = queue.front();
    queue.pop_front();
    return index;
}

void Drain::returned(Channel channel, std::uint64_t tag, std::string_view why) {
    const std::optional<std::size_t> index = tags_of(channel).row_of(tag);
    if (index.has_value() && !ReplayLane::is_ticket(*index)) {
        rows_[*index].returned = true;
        rows_[*index].error = why;
    }
}

bool Drain::is_unconfirmed(Channel channel, std::uint64_t tag) const {
    return tags_of(channel).row_of(tag).has_value();
}

// Nothing of it was sent and nothing ever will be, so it stops nobody; but with stop_the_line the
// line stops at any end that is not a good one.
void Drain::rejected(Time now, std::string_view code, std::string_view detail) {
    if (source_ == Source::replay) {
        replay_.rejected(now, code, detail);
        return;
    }
    const std::size_t index = take_front();
    Row& row = rows_[index];
    close_row(index, RowState::ended);
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
    row.outcome = EndedMark::Outcome::dead;
    row.code = error_class;
    row.error = std::string(error_class) + ": " + std::move(error);
    note_failed(now, index, is_dead ? RowState::ended : RowState::failed);
}

void Drain::note_failed(Time now, std::size_t index, RowState state) {
    close_row(index, state);
    rows_[index].since = now;
    failed_++;
    oldest_outcome_ = oldest_outcome_.value_or(now);
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
    if (groups_.asks_for_more(*group)) {
        look_ = true;
    }
}

// What waits in hand behind a row that failed or is given back. With stop_the_line all waits, so
// nothing has to be written to the rows behind: they are just given back.
void Drain::put_behind(std::uint64_t group) {
    const bool whole_line = settings_.ordering == Ordering::stop_the_line;
    for (std::size_t index : groups_.remove_held(group)) {
        close_row(index, whole_line ? RowState::releasing : RowState::deferring);
        releasing_++;
        hold_behind(index);
        if (!whole_line) {
            groups_.set_followed(group);
        }
    }
}

bool Drain::confirmed(Time now, Channel channel, std::uint64_t tag, bool multiple, bool ack) {
    std::vector<std::size_t> settled;
    if (!tags_of(channel).settle(tag, multiple, settled)) {
        return false;
    }
    for (std::size_t index : settled) {
        if (channel == Channel::main) {
            careful_.confirmed(static_cast<std::size_t>(settings_.pipeline_depth));
        }
        if (ReplayLane::is_ticket(index)) {
            unconfirmed_bytes_ -= replay_.settled(now, index, ack);
        } else {
            acquit(channel, *rows_[index].event);
            settle_row(now, index, ack);
        }
    }
    if (published_ + failed_ > 0) {
        oldest_outcome_ = oldest_outcome_.value_or(now);
    }
    return true;
}

void Drain::settle_row(Time now, std::size_t index, bool ack) {
    Row& row = rows_[index];
    unconfirmed_bytes_ -= row.bytes;
    row.since = now;
    if (row.renew) {
        row.renew = false;
        to_renew_--;
    }
    if (!ack) {
        nacks_.nacked(now, row.event->seq);
        fail(now, index, "nack", "the broker refused the message");
    } else if (row.returned) {
        fail(now, index, "unroutable", std::exchange(row.error, {}));
    } else {
        close_row(index, RowState::published);
        published_++;
        advance_group_of(index);
    }
}

}  // namespace outbox
