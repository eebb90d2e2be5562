// The drain state machine: exchanges, and how a message that the broker cannot take is kept from
// its neighbours.
//
// A broker closes the channel on which such a message came, and all that is unconfirmed there has
// no answer, whether it was stored or not. So no message goes to an exchange that is not known to
// exist; what a close tells is learnt; and where it tells nothing, everything that was unconfirmed
// is sent once more, one at a time, on the trial channel, until the culprit is alone there.
#include "core/drain.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

namespace {

// Rows for an exchange that refuses: more of them than this are put off, so that those who wait for
// their trial leave room in hand for others.
constexpr std::size_t MOST_ON_TRIAL = 64;
// Suspects that are not in hand any more may never come back.
constexpr std::size_t MOST_SUSPECTS = 10000;

std::string missing(std::string_view exchange) {
    return "exchange \"" + std::string(exchange) + "\" does not exist";
}

}  // namespace

std::string_view Drain::exchange_of(const Event& event) const {
    return event.destination.has_value() ? *event.destination
                                         : std::string_view(settings_.exchange);
}

bool Drain::is_suspect(const Event& event) const {
    return event.poisoned || suspects_.contains(event.seq) ||
           exchanges_.is_distrusted(exchange_of(event));
}

std::size_t Drain::max_message_bytes() const {
    const auto setting = static_cast<std::size_t>(settings_.max_message_bytes);
    return limit_is_the_brokers() ? learnt_limit_ : setting;
}

bool Drain::limit_is_the_brokers() const {
    return learnt_limit_ > 0 &&
           learnt_limit_ < static_cast<std::size_t>(settings_.max_message_bytes);
}

// ---- Exchanges ----

void Drain::sort_ready(Time now) {
    if (may_publish_at_all() && !blocked_) {
        sort(now, trials_);
        sort(now, ready_);
    }
}

// Puts aside what cannot go now, until the front of the queue can.
void Drain::sort(Time now, std::deque<std::size_t>& queue) {
    while (!queue.empty()) {
        const std::size_t index = queue.front();
        const Event& event = *rows_[index].event;
        const ExchangeBook::State state = exchanges_.state(exchange_of(event));
        const bool is_misplaced = &queue != &trials_ && is_suspect(event);
        if (state == ExchangeBook::State::exists && !is_misplaced) {
            return;
        }
        queue.pop_front();
        if (state == ExchangeBook::State::unknown) {
            exchanges_.want(exchange_of(event));
            waiting_.push_back(index);
        } else if (state == ExchangeBook::State::missing) {
            hold_missing(now, index);
        } else {
            put_on_trial(now, index);
        }
    }
}

void Drain::put_on_trial(Time now, std::size_t index) {
    const Event& event = *rows_[index].event;
    if (trials_.size() >= MOST_ON_TRIAL && !suspects_.contains(event.seq)) {
        hold(now, index,
             "waits to be sent alone, since the broker refused messages to exchange \"" +
                 std::string(exchange_of(event)) + "\"");
    } else {
        trials_.push_back(index);
    }
}

void Drain::hold_missing(Time now, std::size_t index) {
    std::string error = missing(exchange_of(*rows_[index].event));
    if (settings_.missing_exchange == MissingExchange::fail) {
        fail(now, index, "unroutable", std::move(error));
    } else {
        hold(now, index, std::move(error));
    }
}

// Put off without a charge; its group waits behind it as behind one that failed.
void Drain::hold(Time now, std::size_t index, std::string error) {
    Row& row = rows_[index];
    row.held = true;
    row.error = "held: " + std::move(error);
    row.delay = exchanges_.hold_for(now, exchange_of(*row.event), random_);
    note_failed(now, index, RowState::failed);
}

std::optional<Command> Drain::next_question(Time now) {
    if (!may_publish_at_all() || blocked_) {
        return std::nullopt;
    }
    if (!waiting_.empty() && !exchanges_.is_asking()) {
        look_over_waiting();
    }
    std::optional<std::string> exchange = exchanges_.next_question(now);
    if (!exchange.has_value()) {
        return std::nullopt;
    }
    return Command{.kind = Command::Kind::ask, .until = now, .exchange = *std::move(exchange)};
}

void Drain::answered(Time now, std::string_view exchange, std::optional<bool> exists) {
    if (exchanges_.answered(now, exchange, exists)) {
        wakes_.push_back({"held: " + missing(exchange), 0});
    }
    look_over_waiting();
}

// Who waited for an answer that has come, or for another exchange than it goes to by now.
void Drain::look_over_waiting() {
    std::vector<std::size_t> free;
    std::erase_if(waiting_, [&](std::size_t index) {
        const std::string_view exchange = exchange_of(*rows_[index].event);
        if (exchanges_.state(exchange) == ExchangeBook::State::unknown) {
            exchanges_.want(exchange);
            return false;
        }
        free.push_back(index);
        return true;
    });
    ready_.insert(ready_.begin(), free.begin(), free.end());
}

void Drain::forget_isolation() {
    exchanges_.forget();
    learnt_limit_ = 0;
}

// ---- Isolation ----

bool Drain::channel_closed(Time now, Channel channel, std::uint16_t code, std::string_view why) {
    const ChannelFault fault = read_channel_fault(code, why);
    if (fault.kind == ChannelFault::Kind::other) {
        return false;
    }
    (channel == Channel::main ? main_ : trial_) = {false, now};
    std::vector<std::size_t> rows = tags_of(channel).reset();
    const bool has_replays =
        std::erase_if(rows, [](std::size_t index) { return ReplayLane::is_ticket(index); }) > 0;
    if (has_replays) {
        unconfirmed_bytes_ -= replay_.bytes_in_flight();
    }
    const bool by_replay = has_replays && replay_.lost(now, why);
    learn(now, fault);
    const bool explained = by_replay || std::any_of(rows.begin(), rows.end(), [&](std::size_t row) {
                               return is_culprit(fault, *rows_[row].event);
                           });
    const bool alone = rows.size() == 1 && !has_replays;
    unsend(rows);
    if (alone && is_at_fault(fault, *rows_[rows.front()].event)) {
        ready_.pop_front();
        fail(now, rows.front(), "poison", std::to_string(code) + " " + std::string(why));
    } else if (!explained) {
        suspect_rows(rows);
    }
    return true;
}

void Drain::channel_opened(Channel channel) {
    (channel == Channel::main ? main_ : trial_).open = true;
}

void Drain::learn(Time now, const ChannelFault& fault) {
    switch (fault.kind) {
        case ChannelFault::Kind::missing_exchange:
            exchanges_.vanished(now, *fault.exchange);
            break;
        case ChannelFault::Kind::refused:
            if (fault.exchange.has_value()) {
                exchanges_.distrust(now, *fault.exchange);
            }
            break;
        case ChannelFault::Kind::too_large:
            learnt_limit_ = *fault.size_limit;
            break;
        case ChannelFault::Kind::content:
        case ChannelFault::Kind::other:
            break;
    }
}

// Whether the event may be what the broker complained of, so that no other need be suspected.
bool Drain::is_culprit(const ChannelFault& fault, const Event& event) const {
    switch (fault.kind) {
        case ChannelFault::Kind::missing_exchange:
        case ChannelFault::Kind::refused:
            return fault.exchange == exchange_of(event);
        case ChannelFault::Kind::too_large:
            return event.payload.size() > *fault.size_limit;
        case ChannelFault::Kind::content:
        case ChannelFault::Kind::other:
            break;
    }
    return false;
}

// Whether an event that was alone is to be charged: not where what was learnt keeps it from being
// sent again, uncharged until its exchange is there, or as one that can never be sent.
bool Drain::is_at_fault(const ChannelFault& fault, const Event& event) const {
    const bool will_not_be_sent = fault.kind == ChannelFault::Kind::missing_exchange ||
                                  fault.kind == ChannelFault::Kind::too_large;
    return !will_not_be_sent || !is_culprit(fault, event);
}

// To be sent again, before all others and in the same order; they are still out of their groups.
void Drain::unsend(const std::vector<std::size_t>& rows) {
    for (std::size_t index : rows) {
        Row& row = rows_[index];
        row.state = RowState::ready;
        row.returned = false;
        row.error.clear();
        unconfirmed_bytes_ -= row.bytes;
        if (row.renew) {
            row.renew = false;
            to_renew_--;
        }
    }
    ready_.insert(ready_.begin(), rows.begin(), rows.end());
}

void Drain::suspect_rows(const std::vector<std::size_t>& rows) {
    for (std::size_t index : rows) {
        suspects_.insert(rows_[index].event->seq);
    }
    while (suspects_.size() > MOST_SUSPECTS) {
        accused_.erase(*suspects_.begin());
        suspects_.erase(suspects_.begin());
    }
    careful_.shrink();
}

// The broker closed the whole connection over a message.
void Drain::accuse_unconfirmed(Time now, std::string_view why) {
    std::vector<std::size_t> rows;
    bool has_replays = false;
    for (TagTracker* tags : {&tags_, &trial_tags_}) {
        for (std::size_t index : tags->reset()) {
            if (ReplayLane::is_ticket(index)) {
                has_replays = true;
            } else {
                rows.push_back(index);
            }
        }
    }
    unsend(rows);
    if (rows.size() == 1 && !has_replays) {
        ready_.pop_front();
        fail(now, rows.front(), "poison", std::string(why));
    } else {
        suspect_rows(rows);
        for (std::size_t index : rows) {
            accused_.insert(rows_[index].event->seq);
        }
    }
}

// A message that was confirmed, or refused by itself, closed nothing.
void Drain::acquit(Channel channel, const Event& event) {
    if (!suspects_.empty()) {
        suspects_.erase(event.seq);
        accused_.erase(event.seq);
    }
    if (channel == Channel::trial) {
        exchanges_.trial_passed(exchange_of(event));
    }
}

}  // namespace outbox
