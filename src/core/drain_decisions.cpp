// The drain state machine: its decisions.
#include "core/drain.hpp"
#include "core/uuid.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

namespace {

// How long an outcome may wait for company before it is written: few published rows are ever
// unmarked.
constexpr Duration SETTLE_INTERVAL{10};
// A claim is worth its walk when there is room for this part of a batch.
constexpr std::size_t LEAST_CLAIM = 4;
// The most payload that one claim reads. Nothing is sent meanwhile, and the socket's buffers keep a
// broker busy for about as much.
constexpr std::size_t CLAIM_BYTES = std::size_t{4} * 1024 * 1024;

constexpr Duration lease_half(const DrainSettings& settings) {
    return settings.lease_ttl / 2;
}
// What is left of a lease must cover the way of a message to the broker and back.
constexpr Duration lease_last_publish(const DrainSettings& settings) {
    return settings.lease_ttl / 4 * 3;
}

}  // namespace

bool Drain::may_run() const noexcept {
    return settings_.enabled && !misconfigured_ && !settings_.broker_uri.empty();
}

bool Drain::may_publish_at_all() const noexcept {
    return may_run() && !settings_.paused && link_ == Link::up && !stopping_;
}

// Another broker, or none, is wanted: this one is left as soon as nothing is on its way.
bool Drain::is_leaving() const noexcept {
    return next_settings_.has_value() || !may_run();
}

// A claim that would take a few rows only waits for more room, since it costs a walk.
bool Drain::may_claim() const {
    if (!may_publish_at_all() || blocked_ || claims_held_ || next_settings_.has_value()) {
        return false;
    }
    if (suspicion_ > 0) {
        return rows_in_hand_ == set_aside_;
    }
    return rows_to_stay() + std::max<std::size_t>(most_claimed() / LEAST_CLAIM, 1) <=
               2 * most_claimed() &&
           (rows_in_hand_ == 0 ||
            bytes_in_hand_ + std::min(batch_bytes() / LEAST_CLAIM, CLAIM_BYTES) <= batch_bytes());
}

// What is still in hand when the outcomes that are known are written.
std::size_t Drain::rows_to_stay() const noexcept {
    return rows_in_hand_ - std::min(rows_in_hand_, published_ + failed_ + releasing_);
}

std::size_t Drain::batch_bytes() const noexcept {
    return static_cast<std::size_t>(std::max<std::int64_t>(settings_.batch_bytes, 1));
}

// A batch; under a publish_rate no more than goes in a second, so that little is leased for long.
std::size_t Drain::most_claimed() const {
    const auto batch = static_cast<std::size_t>(settings_.batch_size);
    if (settings_.publish_rate == 0) {
        return batch;
    }
    const std::int32_t share = std::max(settings_.publish_rate / sharers_, 1);
    return std::min(batch, static_cast<std::size_t>(share));
}

// The front of the queue, which sort_ready() has looked at.
bool Drain::may_publish(Time now) const {
    return main_.open && !is_silent() && !ready_.empty() &&
           may_be_sent(rows_[ready_.front()], now) && window_takes(rows_[ready_.front()]);
}

// Its size does not count: one message more is bounded memory, and waiting for an empty window
// could take for ever.
bool Drain::may_try(Time now) const {
    return trial_.open && !trials_.empty() && trial_tags_.open_count() == 0 &&
           (tags_.open_count() == 0 || !needs_silence(rows_[trials_.front()])) &&
           may_be_sent(rows_[trials_.front()], now);
}

// What ends the whole connection takes both channels with it, so nothing may be beside it on
// either.
bool Drain::is_silent() const {
    if (trial_tags_.open_count() > 0) {
        return needs_silence(rows_[trial_tags_.oldest()]);
    }
    return !trials_.empty() && needs_silence(rows_[trials_.front()]);
}

bool Drain::may_be_sent(const Row& row, Time now) const {
    const auto depth = static_cast<std::size_t>(settings_.pipeline_depth);
    return link_ == Link::up && !blocked_ && !stopping_ && !nacks_.wants_another() &&
           in_flight() < depth && in_flight() + published_ + failed_ + set_aside_ < 2 * depth &&
           now < batches_.at(row.batch).leased_at + lease_last_publish(settings_) &&
           rate_.next(now) <= now;
}

// Its rate bounds what it takes from the live lanes, so it goes first.
const Event* Drain::next_replayed(Time now) {
    if (!may_replay_ || !may_publish_at_all() || !main_.open || is_silent() || blocked_ ||
        is_leaving() || nacks_.wants_another() ||
        in_flight() >= static_cast<std::size_t>(settings_.pipeline_depth) ||
        tags_.open_count() >= window()) {
        return nullptr;
    }
    const Event* event = replay_.next(now);
    if (event == nullptr ||
        (in_flight() > 0 && unconfirmed_bytes_ + event->payload.size() > send_buffer_bytes_)) {
        return nullptr;
    }
    const std::string_view exchange = exchange_of(*event);
    switch (exchanges_.state(exchange)) {
        case ExchangeBook::State::exists:
            return event;
        case ExchangeBook::State::missing:
            // Whoever resumes a replay may have declared it just now.
            if (replay_.takes_another_look(exchange)) {
                exchanges_.doubt(exchange);
            } else {
                replay_.exchange_missing(exchange);
            }
            break;
        case ExchangeBook::State::unknown:
            exchanges_.want(exchange);
            break;
    }
    return nullptr;
}

bool Drain::replay_due(Time now) const {
    if (!may_replay_ || claims_held_ || misconfigured_) {
        return false;
    }
    return stopping_
               ? tags_.open_count() == 0 && replay_.has_unsaved() && replay_.transaction_due(now)
               : may_run() && replay_.transaction_due(now);
}

std::size_t Drain::window() const {
    return careful_.limit(static_cast<std::size_t>(settings_.pipeline_depth));
}

// Unconfirmed bytes are bounded, since we keep what the socket does not take; a message larger than
// that goes alone.
bool Drain::window_takes(const Row& row) const {
    return tags_.open_count() < window() &&
           (in_flight() == 0 || unconfirmed_bytes_ + row.bytes <= send_buffer_bytes_);
}

std::optional<std::string> Drain::fault(Time now) const {
    if (link_ == Link::connecting && now >= link_since_ + connect_timeout_) {
        return "connection attempt timed out after " + std::to_string(connect_timeout_.count()) +
               " ms";
    }
    const std::optional<Time> deadline = confirm_deadline();
    if (deadline.has_value() && now >= *deadline) {
        return std::string(in_flight() > 0 ? "no confirm" : "no answer") + " from the broker for " +
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
                give_up(index);
                given_up = true;
            } else if (row.state == RowState::sent && !row.renew) {
                row.renew = true;
                to_renew_++;
            }
        }
    }
    if (given_up) {
        const auto is_gone = [this](std::size_t index) {
            return rows_[index].state != RowState::ready;
        };
        std::erase_if(ready_, is_gone);
        std::erase_if(trials_, is_gone);
        std::erase_if(waiting_, is_gone);
    }
}

// A row that is given back takes all of its group with it that is not sent: none may go before it.
void Drain::give_up(std::size_t index) {
    release_later(index);
    const std::optional<std::uint64_t> group = rows_[index].event->group;
    if (!group.has_value()) {
        return;
    }
    give_up_waiting(*group);
    for (std::size_t other : unsent()) {
        if (rows_[other].event->group == group) {
            groups_.take_back(*group);
            release_later(other);
        }
    }
}

// Rows that are out of their groups' queues and not sent.
std::vector<std::size_t> Drain::unsent() const {
    std::vector<std::size_t> rows(ready_.begin(), ready_.end());
    rows.insert(rows.end(), trials_.begin(), trials_.end());
    rows.insert(rows.end(), waiting_.begin(), waiting_.end());
    return rows;
}

void Drain::give_up_waiting(std::uint64_t group) {
    for (std::size_t index : groups_.remove_waiting(group)) {
        release_later(index);
    }
}

// Nothing later of its group may go before the row is back in the table and claimed again.
void Drain::release_later(std::size_t index) {
    if (rows_[index].state == RowState::releasing) {
        return;
    }
    close_row(index, RowState::releasing);
    releasing_++;
    hold_behind(index);
}

void Drain::give_up_unsent() {
    for (std::size_t index : unsent()) {
        release_later(index);
        if (const std::optional<std::uint64_t> group = rows_[index].event->group) {
            groups_.take_back(*group);
        }
    }
    ready_.clear();
    trials_.clear();
    waiting_.clear();
    for (std::size_t index : groups_.remove_all_waiting()) {
        release_later(index);
    }
}

// Nobody knows whether the broker has these; they are given back uncharged and will be sent again.
void Drain::give_up_sent() {
    std::vector<std::size_t> rows = tags_.reset();
    const std::vector<std::size_t> tried = trial_tags_.reset();
    rows.insert(rows.end(), tried.begin(), tried.end());
    for (std::size_t index : rows) {
        if (ReplayLane::is_ticket(index)) {
            continue;
        }
        Row& row = rows_[index];
        release_later(index);
        row.returned = false;
        if (row.renew) {
            row.renew = false;
            to_renew_--;
        }
        if (row.event->group.has_value()) {
            groups_.take_back(*row.event->group);
            give_up_waiting(*row.event->group);
        }
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
    // The broker gets work first, to have it while the transaction runs. That ends soon: the window
    // fills up, and unwritten outcomes are bounded too.
    if (may_publish(now) && transaction_failures_ == 0) {
        return false;
    }
    const std::size_t outcomes = published_ + failed_;
    const bool idle = in_flight() == 0 && !may_publish(now) && !may_try(now);
    const bool settle = releasing_ > 0 || to_renew_ > 0 || outcomes >= settle_threshold() ||
                        (outcomes > 0 && (idle || stopping_ || transaction_failures_ > 0 ||
                                          now >= oldest_outcome_.value_or(now) + SETTLE_INTERVAL));
    // After a failure the settling is tried alone; only when nothing is left of it, the claim.
    // What is in hand goes first: a claim only waits, while a full window or an empty hand lets it.
    const bool sends_soon = may_publish(now) || !waiting_.empty();
    const bool claim =
        may_claim() &&
        (transaction_failures_ > 0 ? !settle
                                   : (settle || !sends_soon) && (look_ || now >= next_look_));
    // The way through a long deferred lane takes many transactions, and stops nobody meanwhile.
    const bool wake = may_wake_held() && (settle || claim || !(may_publish(now) || may_try(now)));
    if (!settle && !claim && !wake) {
        return false;
    }
    make_plan(now, claim);
    if (wake && !plan_.one_by_one) {
        plan_.wake_held = wakes_.front();
    }
    return true;
}

bool Drain::may_wake_held() const {
    return !wakes_.empty() && transaction_failures_ == 0 && may_publish_at_all() && !claims_held_;
}

std::size_t Drain::settle_threshold() const noexcept {
    return static_cast<std::size_t>(std::max(settings_.pipeline_depth / 2, 1));
}

void Drain::make_plan(Time now, bool claim) {
    plan_ = {};
    planned_at_ = now;
    plan_.one_by_one = transaction_failures_ > 1 && !claim;
    add_marks(false);
    plan_followers();
    if (claim && plan_.pause.empty()) {
        plan_.claim = claim_size();
        plan_.walk = suspicion_ > 0
                         ? std::min(claim_limit_, static_cast<std::size_t>(settings_.batch_size))
                         : plan_.claim;
        plan_.claim_bytes =
            std::min(batch_bytes() - std::min(bytes_in_hand_, batch_bytes() - 1), CLAIM_BYTES);
        plan_.suspicion = suspicion_;
        look_ = false;
    }
}

// What is in hand is topped up often rather than filled seldom: while a large claim runs, the
// broker has nothing new to do.
std::size_t Drain::claim_size() const {
    const std::size_t size =
        std::min({claim_limit_, most_claimed(), 2 * most_claimed() - rows_to_stay()});
    return suspicion_ > 0 ? std::min(size, suspicion_) : size;
}

void Drain::plan_rows_set_aside(Time now) {
    plan_ = {};
    planned_at_ = now;
    plan_.one_by_one = true;
    add_marks(true);
    plan_followers();
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
            if (row.set_aside == set_aside && add_mark(marks, row)) {
                planned_rows_.push_back(index);
            }
        }
        if (planned_rows_.size() > planned_before) {
            plan_.marks.push_back(std::move(marks));
        }
    }
}

bool Drain::add_mark(BatchMarks& marks, const Row& row) {
    const std::int64_t seq = row.event->seq;
    switch (row.state) {
        case RowState::published:
            marks.published.push_back(seq);
            marks.places.push_back(row.event->place);
            return true;
        case RowState::failed:
            marks.failed.push_back(
                {seq, row.error,
                 row.held ? row.delay : settings_.retry.delay(row.event->attempts + 1, random_),
                 !row.held});
            return true;
        case RowState::ended:
            marks.ended.push_back({seq, row.outcome, row.event->id, row.code, row.error});
            if (settings_.ordering == Ordering::stop_the_line) {
                plan_.pause =
                    "event " + to_string(row.event->id) + " was not published: " + row.error;
            }
            return true;
        case RowState::deferring:
            marks.deferred.push_back(seq);
            return true;
        case RowState::releasing:
            marks.released.push_back(seq);
            return true;
        case RowState::free:
        case RowState::ready:
        case RowState::sent:
            break;
    }
    if (row.renew) {
        marks.renewed.push_back(seq);
    }
    return row.renew;
}

// What waits behind the rows of a group in the deferred lane follows when all of them have come to
// their end. One that failed goes on holding it, and one that is given back comes again first.
void Drain::plan_followers() {
    struct Ending {
        std::size_t rows = 0;
        std::int64_t ended = 0;
    };
    std::map<std::uint64_t, Ending> endings;
    for (std::size_t index : planned_rows_) {
        const Row& row = rows_[index];
        if (!row.event->group.has_value() || !groups_.is_followed(*row.event->group)) {
            continue;
        }
        Ending& ending = endings[*row.event->group];
        if (row.state == RowState::published || row.state == RowState::ended) {
            ending.ended = row.event->seq;
            ending.rows++;
        } else if (row.state == RowState::deferring) {
            ending.rows++;
        }
    }
    for (const auto& [group, ending] : endings) {
        if (ending.ended != 0 && ending.rows == groups_.in_hand(group)) {
            plan_.release_behind.push_back(ending.ended);
        }
    }
}

void Drain::uncount(const Row& row) {
    if (row.set_aside) {
        set_aside_--;
    } else if (row.state == RowState::published) {
        published_--;
    } else if (row.state == RowState::failed || row.state == RowState::ended) {
        failed_--;
    } else if (row.state == RowState::releasing || row.state == RowState::deferring) {
        releasing_--;
    }
}

void Drain::drop_row(std::size_t index) {
    Row& row = rows_[index];
    uncount(row);
    look_ = look_ || row.state == RowState::releasing;
    by_seq_.erase(row.event->seq);
    rows_of_bucket_[bucket_of_event(*row.event)]--;
    if (row.event->group.has_value()) {
        if (row.holds_group) {
            groups_.release(*row.event->group, row.event->seq);
        }
        groups_.forget(*row.event->group);
    }
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
        not_after(reconnect_.at());
    }
    if (link_ == Link::connecting) {
        not_after(link_since_ + connect_timeout_);
    }
    if (link_ == Link::up) {
        not_after(next_look_);
    }
    if (const std::optional<Time> deadline = confirm_deadline()) {
        not_after(*deadline);
    }
    if (const std::optional<Time> look = exchanges_.next_look();
        look.has_value() && may_publish_at_all()) {
        not_after(*look);
    }
    if (set_aside_ > 0) {
        not_after(set_aside_at_);
    }
    if (link_ == Link::up && !stopping_) {
        not_after(replay_.wake_at(now));
    }
    if (oldest_outcome_.has_value()) {
        not_after(*oldest_outcome_ + SETTLE_INTERVAL);
    }
    if (!ready_.empty() || !trials_.empty()) {
        not_after(rate_.next(now));
    }
    for (const auto& [id, batch] : batches_) {
        not_after(batch.leased_at + lease_half(settings_));
    }
    return {.kind = Command::Kind::wait, .until = until};
}

// A broker that blocked could not answer meanwhile; but one that is to be left is not waited for
// longer.
std::optional<Time> Drain::confirm_deadline() const {
    const std::optional<Time> since = oldest_wait();
    if (!since.has_value() || link_ != Link::up || (blocked_ && !is_leaving())) {
        return std::nullopt;
    }
    return (is_leaving() ? *since : std::max(*since, last_blocked_)) + settings_.confirm_timeout;
}

// Since when the broker owes us something: a confirm, an answer, a channel.
std::optional<Time> Drain::oldest_wait() const {
    std::optional<Time> oldest = exchanges_.asked_since();
    const auto consider = [&oldest](Time since) {
        oldest = std::min(oldest.value_or(since), since);
    };
    for (const TagTracker* tags : {&tags_, &trial_tags_}) {
        if (tags->open_count() > 0) {
            const std::size_t row = tags->oldest();
            consider(ReplayLane::is_ticket(row) ? replay_.sent_at(row) : rows_[row].since);
        }
    }
    for (const ChannelState* channel : {&main_, &trial_}) {
        if (!channel->open) {
            consider(channel->since);
        }
    }
    return oldest;
}

}  // namespace outbox
