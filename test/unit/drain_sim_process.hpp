#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drain_sim_broker.hpp"
#include "drain_sim_shell.hpp"

namespace outbox::test {

/// A drainer process with its connection: the loop of the worker around Drain, against a model
/// database and a model broker.
class SimProcess : public SimShell {
  public:
    SimProcess(SimDatabase& database, SimLedger& ledger, Dice& dice, SimShellOptions options,
               std::vector<SimBroker>& brokers)
        : SimShell(database, ledger, dice, std::move(options)),
          link(dice, [this](const SimMessage& message) { store(message); }),
          brokers_(brokers) {}

    /// Does what the machine asks for until it wants to wait or has done `most` things; the last
    /// command's end of waiting is left in wait_until.
    void run(Time& now, int most) {
        for (int i = 0; i < most && !exited; i++) {
            take_notice(now);
            const Command command = drain.next(now);
            check_bounds();
            if (command.kind == Command::Kind::wait) {
                EXPECT_GT(command.until, now) << "a busy loop";
                check_patience(now);
                wait_until = std::min(command.until, now + settings().poll_interval);
                idle_commands = 0;
                return;
            }
            EXPECT_LT(++idle_commands, 3000) << "never comes to rest";
            obey(command, now);
            check_bounds();
        }
        wait_until = now;
    }

    // ---- The broker ----

    void finish_connecting(Time now, bool success) {
        connecting = false;
        if (success) {
            up = true;
            is_blocked = false;
            link.open(broker_to_try());
            main_tag_ = trial_tag_ = 0;
            drain.connected(now, static_cast<std::size_t>(dice_.between(20, 400)));
        } else {
            drain.connection_lost(now, dice_.chance(0.05), "refused");
        }
    }
    SimBroker& broker_to_try() { return brokers_[broker_ % brokers_.size()]; }

    /// The connection breaks. What was sent may or may not have been stored.
    void lose_connection(Time now) {
        take_last_words(now);
        if (is(Deviation::charges_on_loss)) {
            nack_all(now, Channel::main);
            nack_all(now, Channel::trial);
        }
        cut_off();
        drain.connection_lost(now, false, "reset");
    }

    /// The next thing that the broker has said arrives.
    void hear(Time now) {
        if (std::optional<SimNews> news = up ? link.hear() : std::nullopt) {
            ledger_.events++;
            take(now, *news);
        }
    }

    /// What was on its way and what was not yet written comes again from somebody else.
    void die() {
        if (exited) {
            return;
        }
        ledger_.faults++;
        ledger_.may_be_sent_again += unsettled.size();
        unsettled.clear();
        cut_off();
        bury();
    }

    Time wait_until{};
    Time stalled_until{};
    bool connecting = false;
    bool up = false;
    bool is_blocked = false;
    bool silent = false;
    SimLink link;
    int idle_commands = 0;
    double publish_failure = 0;
    std::size_t killed = 0;  ///< by a row

  private:
    using End = SimRow::End;

    // ---- What the broker says ----

    void take(Time now, const SimNews& news) {
        switch (news.kind) {
            case SimNews::Kind::confirm:
                take_confirm(now, news);
                break;
            case SimNews::Kind::nonsense:
                take_nonsense(now, news.channel);
                break;
            case SimNews::Kind::returned:
                drain.returned(news.channel, news.tag, "312 NO_ROUTE");
                break;
            case SimNews::Kind::closed:
                take_close(now, news);
                break;
            case SimNews::Kind::opened:
                link.end(news.channel).is_known = true;
                drain.channel_opened(news.channel);
                if (is(Deviation::tries_beside_others)) {
                    main_tag_ = trial_tag_ = 0;
                    drain.channel_opened(Channel::trial);
                }
                break;
            case SimNews::Kind::answer:
                take_answer(now, news);
                break;
            case SimNews::Kind::blocked:
                is_blocked = true;
                drain.blocked();
                break;
            case SimNews::Kind::unblocked:
                is_blocked = false;
                last_blocked_ = now;
                drain.unblocked();
                break;
            case SimNews::Kind::gone:
                take_end(now, news);
                break;
        }
    }

    void take_confirm(Time now, const SimNews& news) {
        std::vector<SimMessage>& sent = link.end(news.channel).sent;
        const auto is_settled = [&](const SimMessage& message) {
            return news.multiple ? message.tag <= news.tag : message.tag == news.tag;
        };
        for (const SimMessage& message : sent) {
            if (is_settled(message)) {
                note_verdict(message, !news.ack          ? Verdict::nack
                                      : message.returned ? Verdict::returned
                                                         : Verdict::ack);
            }
        }
        const bool all = news.multiple && !sent.empty() && sent.back().tag == news.tag;
        const std::uint64_t tag = all && dice_.chance(0.3) ? 0 : news.tag;
        if (is(Deviation::tries_beside_others)) {
            confirm_each(now, news, is_settled);
            return;
        }
        std::erase_if(sent, is_settled);
        const bool multiple = news.multiple || is(Deviation::confirms_by_high_water);
        const bool known = drain.confirmed(now, news.channel, tag, multiple, news.ack);
        // At the deadline of a stop the machine has given up what is on its way.
        EXPECT_TRUE(known || drain.stopping());
    }

    // ---- Ways to go wrong ----

    template <class IsSettled>
    void confirm_each(Time now, const SimNews& news, IsSettled&& is_settled) {
        std::vector<SimMessage>& sent = link.end(news.channel).sent;
        std::vector<SimMessage> settled;
        std::copy_if(sent.begin(), sent.end(), std::back_inserter(settled), is_settled);
        std::erase_if(sent, is_settled);
        for (const SimMessage& message : settled) {
            drain.confirmed(now, message.as_channel, message.as_tag, false, news.ack);
        }
    }

    void nack_all(Time now, Channel channel) {
        for (const SimMessage& message : link.end(channel).sent) {
            drain.confirmed(now, channel, message.tag, false, false);
        }
    }

    Channel channel_for(const Command& command) const {
        return is(Deviation::tries_beside_others) ? Channel::main : command.channel;
    }

    void note_verdict(const SimMessage& message, Verdict verdict) {
        ledger_.verdicts[{message.token, message.seq}] = verdict;
        if (verdict != Verdict::ack) {
            ledger_.charges[message.seq]++;
        }
        if (verdict == Verdict::nack && message.is_stored) {
            ledger_.may_be_sent_again++;
        }
        unsettled.insert(message.seq);
    }

    // P2: a confirm of what was never sent, or was confirmed before, says nothing of any message.
    void take_nonsense(Time now, Channel channel) {
        const SimLink::End& end = link.end(channel);
        std::uint64_t tag = end.next_tag + dice_.below(3);
        bool multiple = dice_.chance(0.5);
        if (end.next_tag > 1 && dice_.chance(0.5)) {
            tag = 1 + dice_.below(end.next_tag - 1);
            multiple = false;
        }
        if (std::any_of(end.sent.begin(), end.sent.end(),
                        [tag](const SimMessage& message) { return message.tag == tag; })) {
            return;
        }
        ledger_.protocol_errors++;
        EXPECT_FALSE(drain.confirmed(now, channel, tag, multiple, true))
            << "P2: takes the confirm of a message that is not open";
        lose_connection(now);
    }

    void take_answer(Time now, const SimNews& news) {
        const bool may_publish = news.exists.value_or(true);
        link.known[news.exchange] = may_publish;
        if (!may_publish) {
            ledger_.told_missing.insert({owner, news.exchange});
        }
        drain.answered(now, EXCHANGES[news.exchange], news.exists);
    }

    void take_close(Time now, const SimNews& news) {
        SimLink::End& end = link.end(news.channel);
        note_close(news, end.sent.size());
        const auto culprit = find_culprit(end.sent, news.culprit);
        if (culprit == end.sent.end()) {
            EXPECT_TRUE(drain.stopping()) << "row " << news.culprit;
        } else if (news.code == 404) {
            link.known[news.exchange] = false;
            ledger_.told_missing.insert({owner, news.exchange});
            ledger_.told_refusing.insert({owner, news.exchange});
        } else if (news.code == 406 && culprit->bytes > link.broker().limit) {
            link.told_limit = link.broker().limit;
        } else {
            if (news.code == 403) {
                ledger_.told_refusing.insert({owner, news.exchange});
            }
            convict(*culprit, end.sent.size());
        }
        ledger_.may_be_sent_again += link.stored_on(news.channel);
        if (is(Deviation::charges_the_window)) {
            nack_all(now, news.channel);
        }
        end.sent.clear();
        end.is_known = false;
        end.wants_open = true;
        EXPECT_TRUE(drain.channel_closed(now, news.channel, news.code, news.text));
        if (is(Deviation::tries_beside_others)) {
            drain.channel_closed(now, Channel::trial, news.code, news.text);
        }
    }

    void take_end(Time now, const SimNews& news) {
        std::vector<SimMessage> sent = link.end(Channel::main).sent;
        const auto& tried = link.end(Channel::trial).sent;
        sent.insert(sent.end(), tried.begin(), tried.end());
        note_close(news, sent.size());
        const auto culprit = find_culprit(sent, news.culprit);
        if (culprit != sent.end()) {
            convict(*culprit, sent.size());
        }
        cut_off();
        drain.connection_lost(now, false, news.text, true);
    }

    static std::vector<SimMessage>::const_iterator find_culprit(const std::vector<SimMessage>& sent,
                                                                std::int64_t seq) {
        return std::find_if(sent.begin(), sent.end(),
                            [seq](const SimMessage& message) { return message.seq == seq; });
    }

    // P7: blamed is who was alone.
    void convict(const SimMessage& culprit, std::size_t unconfirmed) {
        if (unconfirmed == 1) {
            ledger_.found++;
            note_verdict(culprit, Verdict::poison);
        }
    }

    // P4: of what one culprit does, its neighbours suffer once.
    void note_close(const SimNews& news, std::size_t unconfirmed) {
        ledger_.closes++;
        if (unconfirmed > 1) {
            ledger_.neighbours += unconfirmed - 1;
            const std::string cause =
                news.cause + (news.kind == SimNews::Kind::gone
                                  ? ", charge " + std::to_string(ledger_.charges[news.culprit])
                                  : "");
            EXPECT_TRUE(ledger_.isolations.insert({owner, cause}).second)
                << "P4: the neighbours of a known culprit are sent again: " << cause << ", "
                << unconfirmed << " unconfirmed";
        }
    }

    // What the broker had said before the connection broke still counts.
    void take_last_words(Time now) {
        while (up && dice_.chance(0.5)) {
            const std::optional<SimNews> news = link.hear();
            if (!news.has_value()) {
                return;
            }
            if (news->kind == SimNews::Kind::confirm || news->kind == SimNews::Kind::returned ||
                news->kind == SimNews::Kind::closed) {
                take(now, *news);
            }
        }
    }

    // ---- What the machine wants ----

    void obey(const Command& command, Time& now) {
        switch (command.kind) {
            case Command::Kind::connect:
                connect(command, now);
                break;
            case Command::Kind::disconnect:
                disconnect(command, now);
                break;
            case Command::Kind::publish:
                publish(command, now);
                break;
            case Command::Kind::ask:
                ask(command, now);
                break;
            case Command::Kind::transact:
                transact(now);
                break;
            case Command::Kind::exit:
                leave();
                die();
                break;
            case Command::Kind::replay:
            case Command::Kind::wait:
                break;
        }
    }

    void connect(const Command& command, Time now) {
        EXPECT_FALSE(up || connecting);
        EXPECT_GE(now, attempted_at_ + Duration{1000}) << "two attempts within a second";
        attempted_at_ = now;
        connecting = true;
        broker_ = command.broker;
    }

    void disconnect(const Command& command, Time now) {
        EXPECT_TRUE(up || connecting);
        if (command.reason.empty()) {
            EXPECT_TRUE(link.unconfirmed() == 0 || !up || drain.stopping())
                << "closed with messages on their way";
            cut_off();
            drain.connection_closed(now);
        } else {
            lose_connection(now);
        }
    }

    void ask(const Command& command, Time now) {
        if (is(Deviation::believes_without_asking)) {
            drain.answered(now, command.exchange, true);
            return;
        }
        const auto exchange = static_cast<std::size_t>(
            std::find(EXCHANGES.begin(), EXCHANGES.end(), command.exchange) - EXCHANGES.begin());
        EXPECT_TRUE(up && !is_blocked);
        EXPECT_FALSE(link.is_asked()) << "two questions at once";
        ASSERT_LT(exchange, EXCHANGES.size());
        EXPECT_NE(exchange, 0U) << "the default exchange is always there";
        link.ask(exchange);
    }

    void publish(const Command& command, Time now) {
        const Event& event = *command.event;
        SimRow& row = database_.row(event.seq);
        check_publish(command, row, now);
        EXPECT_NE(event.payload_memory, &spent_payload_memory) << "its payload was given back";
        if (row.bad || row.bytes > drain.max_message_bytes()) {
            row.refused = true;
            drain.rejected(now, "bad", "this row cannot be sent");
            return;
        }
        if (row.killer) {
            killed++;
            die();
            return;
        }
        row.refused = false;
        SimMessage message;
        message.seq = event.seq;
        message.token = row.token;
        message.group = event.group;
        message.key = row.key;
        message.exchange = row.exchange;
        message.bytes = row.bytes;
        message.poison = row.poison;
        message.mandatory = settings().mandatory;
        message.sent_at = now;
        message.as_channel = command.channel;
        if (is(Deviation::tries_beside_others)) {
            message.as_tag = command.channel == Channel::main ? ++main_tag_ : ++trial_tag_;
        }
        const std::uint64_t as_tag = message.as_tag;
        std::uint64_t tag = link.publish(channel_for(command), std::move(message));
        tag = as_tag > 0 ? as_tag : tag;
        if (dice_.chance(publish_failure)) {
            lose_connection(now);
            return;
        }
        ledger_.sent.insert({row.token, event.seq});
        EXPECT_TRUE(drain.sent(now, tag, event.payload.size()));
    }

    void check_publish(const Command& command, const SimRow& row, Time now) const {
        EXPECT_TRUE(up && !is_blocked);
        EXPECT_TRUE(link.end(channel_for(command)).is_known) << "published on a closed channel";
        EXPECT_TRUE(command.channel == Channel::main || link.end(Channel::trial).sent.empty())
            << "P7: a suspect beside another one";
        if (row.token.starts_with(owner)) {
            EXPECT_LT(now, row.leased_at + settings().lease_ttl) << "published on an old lease";
            EXPECT_EQ(row.end, End::none);
        } else {
            EXPECT_TRUE(row.deleted) << "published without a claim: " << row.seq;
        }
        EXPECT_TRUE(row.bad || link.known[row.exchange])
            << "P4: row " << row.seq << " goes to '" << EXCHANGES[row.exchange]
            << "', of which the broker has not said that it is there";
        EXPECT_TRUE(row.bytes <= link.told_limit || row.bytes > drain.max_message_bytes())
            << "P4: row " << row.seq << " is larger than the broker said it takes";
        EXPECT_TRUE(row.bytes <= drain.max_message_bytes() ||
                    drain.max_message_bytes() == link.told_limit)
            << "row " << row.seq << " is refused by a limit that nobody has set";
    }

    void cut_off() {
        ledger_.faults += link.unconfirmed() > 0 ? 1 : 0;
        if (up) {
            ledger_.may_be_sent_again += link.cut();
        }
        up = connecting = false;
    }

    // A broker that says nothing is left in time.
    void check_patience(Time now) {
        if (!up || is_blocked || drain.stopping()) {
            return;
        }
        for (Channel channel : {Channel::main, Channel::trial}) {
            for (const SimMessage& message : link.end(channel).sent) {
                EXPECT_LT(now,
                          std::max(message.sent_at, last_blocked_) + settings().confirm_timeout)
                    << "row " << message.seq << " is waited for too long";
            }
        }
    }

    void store(const SimMessage& message) {
        const SimRow& row = database_.row(message.seq);
        EXPECT_NE(row.committed_at, 0U) << "P3: row " << row.seq << " was never written";
        if (++ledger_.copies[message.seq] == 1) {
            check_order(row);
        }
    }

    // P6: consumers see B for the first time. See what they must have seen before.
    void check_order(const SimRow& b) {
        const auto group = group_of(b, b.claim_ordering);
        // Of what was there when the ordering changed, no order is promised.
        if (!group.has_value() || b.is_scheduled() || b.drawn_at < database_.reordered_at) {
            return;
        }
        for (std::int64_t seq = 1; seq < b.seq; seq++) {
            const SimRow& a = database_.row(seq);
            const bool before = a.visible() && (a.txn == b.txn || a.committed_at < b.drawn_at) &&
                                group_of(a, b.claim_ordering) == group;
            if (!before) {
                continue;
            }
            ledger_.order_checks++;
            EXPECT_TRUE(may_come_after(a, b))
                << "row " << b.seq << " overtook row " << a.seq
                << " of its group, which is held by '" << a.token << "', end "
                << static_cast<int>(a.end) << ", deferred " << a.next_attempt.has_value()
                << ", attempts " << a.attempts;
        }
    }

    // Whether `a`, earlier and of the same group, is stored, or is excused.
    bool may_come_after(const SimRow& a, const SimRow& b) const {
        return ledger_.copies[a.seq] > 0 || a.end != SimRow::End::none ||
               // Goes when it is due, in no order.
               a.is_scheduled() ||
               // Could not be called when the ordering changed.
               (a.was_locked && a.drawn_at < database_.reordered_at) ||
               // Will never be sent, so it stops nobody but the line.
               (a.refused && b.claim_ordering != Ordering::stop_the_line) ||
               // An operator revived it when the other one was claimed, or others between them.
               a.requeued_at > b.claim_snapshot || a.revived_too_late ||
               // The line goes on with those that failed before it was revived.
               (b.claim_ordering == Ordering::stop_the_line && b.put_off_at > 0 &&
                a.requeued_at > b.put_off_at) ||
               // An operator revived the later one before the earlier one's turn had come.
               b.requeued_at > 0;
    }

    void check_bounds() {
        const auto depth = static_cast<std::size_t>(settings().pipeline_depth);
        EXPECT_LE(link.unconfirmed(), depth);
        EXPECT_LE(link.unconfirmed() + unsettled.size(), 2 * depth);
        EXPECT_LE(drain.in_hand(), 2 * static_cast<std::size_t>(settings().batch_size));
        if (!drain.stopping() && !exited && !is(Deviation::confirms_by_high_water)) {
            EXPECT_EQ(drain.in_flight(), link.unconfirmed());
        }
    }

    std::vector<SimBroker>& brokers_;
    std::size_t broker_ = 0;
    Time attempted_at_{Duration{-1000}};
    Time last_blocked_{};
    std::uint64_t main_tag_ = 0;
    std::uint64_t trial_tag_ = 0;
};

}  // namespace outbox::test
