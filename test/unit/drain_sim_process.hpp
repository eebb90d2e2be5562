#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drain_sim_shell.hpp"

namespace outbox::test {

/// A drainer process with its connection: the loop of the worker around Drain, against a model
/// database and a model broker.
class SimProcess : public SimShell {
  public:
    using SimShell::SimShell;

    /// Does what the machine asks for until it wants to wait or has done `most` things; the last
    /// command's end of waiting is left in wait_until.
    void run(Time& now, int most) {
        for (int i = 0; i < most && !exited; i++) {
            take_notice(now);
            const Command command = drain.next(now);
            check_bounds();
            if (command.kind == Command::Kind::wait) {
                EXPECT_GT(command.until, now) << "a busy loop";
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

    struct Message {
        std::uint64_t tag = 0;
        std::int64_t seq = 0;
        std::string token;
        std::optional<std::uint64_t> group;
    };

    void finish_connecting(Time now, bool success) {
        connecting = false;
        if (success) {
            up = true;
            is_blocked = false;
            next_tag_ = 1;
            drain.connected(now, static_cast<std::size_t>(dice_.between(20, 400)));
        } else {
            drain.connection_lost(now, dice_.chance(0.05), "refused");
        }
    }

    /// The connection breaks. What was sent may or may not have been stored.
    void lose_connection(Time now) {
        cut_off();
        drain.connection_lost(now, false, "reset");
    }

    /// The broker answers about one message or some; it may refuse them or find no queue for them.
    void answer(Time now, double refusals, std::optional<int> failing_key = std::nullopt) {
        const std::size_t at = dice_.below(unconfirmed.size());
        const bool multiple = !failing_key.has_value() && dice_.chance(0.3);
        const bool fails =
            failing_key.has_value() && database_.row(unconfirmed[at].seq).key == *failing_key;
        const bool ack = !fails && !dice_.chance(refusals);
        const std::size_t from = multiple ? 0 : at;
        for (std::size_t i = from; i <= at; i++) {
            settle(unconfirmed[i], ack, settings().mandatory && dice_.chance(refusals));
        }
        const bool all = multiple && at + 1 == unconfirmed.size() && dice_.chance(0.3);
        const std::uint64_t tag = all ? 0 : unconfirmed[at].tag;
        // At the deadline of a stop the machine has given up what is on its way.
        EXPECT_TRUE(drain.confirmed(now, Channel::main, tag, multiple, ack) || drain.stopping());
        unconfirmed.erase(unconfirmed.begin() + static_cast<std::ptrdiff_t>(from),
                          unconfirmed.begin() + static_cast<std::ptrdiff_t>(at) + 1);
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
    std::vector<Message> unconfirmed;
    int idle_commands = 0;
    double publish_failure = 0;
    std::size_t killed = 0;  ///< by a row

  private:
    void settle(const Message& message, bool ack, bool returned) {
        if (ack && !returned) {
            store(message);
            ledger_.acked.insert({message.token, message.seq});
        } else {
            ledger_.charges[message.seq]++;
            if (!ack && dice_.chance(0.2)) {  // another queue has it
                store(message);
                ledger_.may_be_sent_again++;
            } else if (returned) {
                drain.returned(Channel::main, message.tag, "no queue");
            }
        }
        unsettled.insert(message.seq);
    }

    void obey(const Command& command, Time& now) {
        switch (command.kind) {
            case Command::Kind::connect:
                EXPECT_FALSE(up || connecting);
                connecting = true;
                break;
            case Command::Kind::disconnect:
                EXPECT_TRUE(up || connecting);
                if (command.reason.empty()) {
                    EXPECT_TRUE(unconfirmed.empty() || drain.stopping())
                        << "closed with messages on their way";
                    cut_off();
                    drain.connection_closed(now);
                } else {
                    lose_connection(now);
                }
                break;
            case Command::Kind::publish:
                publish(*command.event, now);
                break;
            case Command::Kind::ask:
                drain.answered(now, command.exchange, true);
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

    void publish(const Event& event, Time now) {
        EXPECT_TRUE(up && !is_blocked);
        SimRow& row = database_.row(event.seq);
        if (row.token.starts_with(owner)) {
            EXPECT_LT(now, row.leased_at + settings().lease_ttl) << "published on an old lease";
            EXPECT_EQ(row.end, SimRow::End::none);
        } else {
            EXPECT_TRUE(row.deleted) << "published without a claim: " << event.seq;
        }
        if (row.bad) {
            row.refused = true;
            drain.rejected(now, "bad", "this row cannot be sent");
            return;
        }
        if (row.killer) {
            killed++;
            die();
            return;
        }
        unconfirmed.push_back({next_tag_, event.seq, row.token, event.group});
        if (dice_.chance(publish_failure)) {
            lose_connection(now);
            return;
        }
        ledger_.sent.insert({row.token, event.seq});
        drain.sent(now, next_tag_++, event.payload.size());
    }

    void cut_off() {
        ledger_.faults += unconfirmed.empty() ? 0 : 1;
        for (const Message& message : unconfirmed) {
            ledger_.may_be_sent_again++;
            if (dice_.chance(0.5)) {
                store(message);
            }
        }
        unconfirmed.clear();
        up = connecting = false;
    }

    void store(const Message& message) {
        if (++ledger_.copies[message.seq] == 1) {
            check_order(database_.row(message.seq));
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
               // An operator revived the later one before the earlier one's turn had come.
               b.requeued_at > 0;
    }

    void check_bounds() {
        const auto depth = static_cast<std::size_t>(settings().pipeline_depth);
        EXPECT_LE(unconfirmed.size(), depth);
        EXPECT_LE(unconfirmed.size() + unsettled.size(), 2 * depth);
        EXPECT_LE(drain.in_hand(), 2 * static_cast<std::size_t>(settings().batch_size));
        if (!drain.stopping() && !exited) {
            EXPECT_EQ(drain.in_flight(), unconfirmed.size());
        }
    }

    std::uint64_t next_tag_ = 1;
};

}  // namespace outbox::test
