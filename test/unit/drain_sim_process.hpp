#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drain_sim_database.hpp"

namespace outbox::test {

/// A drainer process with its connection: the loop that the worker runs around Drain, against a
/// model database and a model broker.
class SimProcess {
  public:
    SimProcess(SimDatabase& database, SimLedger& ledger, Dice& dice, const DrainSettings& with,
               int slot, int generation)
        : slot_name("slot" + std::to_string(slot) + "/"),
          owner(slot_name + std::to_string(generation) + "/"),
          settings(with),
          drain(with, dice.below(1U << 30U)),
          database_(database),
          ledger_(ledger),
          dice_(dice),
          lane_(database.floor) {
        // Whoever had this slot is dead.
        for (SimDatabase::Row& row : database_.rows) {
            if (row.token.starts_with(slot_name)) {
                give_back(row);
            }
        }
    }

    /// Does what the machine asks for until it wants to wait or has done `most` things; the last
    /// command's end of waiting is left in wait_until.
    void run(Time& now, int most) {
        for (int i = 0; i < most && !exited; i++) {
            const Command command = drain.next(now);
            check_bounds();
            if (command.kind == Command::Kind::wait) {
                EXPECT_GT(command.until, now) << "a busy loop";
                wait_until = command.until;
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

    /// The broker answers about one message or some.
    void answer(Time now, bool may_nack) {
        const std::size_t at = dice_.below(unconfirmed.size());
        const bool multiple = dice_.chance(0.3);
        const bool ack = !may_nack || !dice_.chance(0.1);
        const std::size_t from = multiple ? 0 : at;
        for (std::size_t i = from; i <= at; i++) {
            const Message& message = unconfirmed[i];
            if (ack) {
                store(message.seq);
                ledger_.acked.insert({message.token, message.seq});
            } else {
                ledger_.charges[message.seq]++;
                if (dice_.chance(0.2)) {  // another queue has it
                    store(message.seq);
                    ledger_.may_be_sent_again++;
                }
            }
            unsettled.insert(message.seq);
        }
        const bool all = multiple && at + 1 == unconfirmed.size() && dice_.chance(0.3);
        const std::uint64_t tag = all ? 0 : unconfirmed[at].tag;
        // At the deadline of a stop the machine has given up what is on its way.
        EXPECT_TRUE(drain.confirmed(now, tag, multiple, ack) || drain.stopping());
        unconfirmed.erase(unconfirmed.begin() + static_cast<std::ptrdiff_t>(from),
                          unconfirmed.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }

    /// What was on its way and what was not yet written comes again from somebody else.
    void die() {
        ledger_.faults++;
        ledger_.may_be_sent_again += unsettled.size();
        unsettled.clear();
        cut_off();
        exited = true;
    }

    std::string slot_name;
    std::string owner;  ///< what its tokens begin with
    DrainSettings settings;
    Drain drain;
    Time wait_until{};
    Time stalled_until{};
    bool exited = false;
    bool connecting = false;
    bool up = false;
    bool is_blocked = false;
    bool silent = false;
    std::vector<Message> unconfirmed;
    std::set<std::int64_t> unsettled;  ///< answered, not written
    int idle_commands = 0;
    double transaction_failure = 0;
    double publish_failure = 0;

  private:
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
            case Command::Kind::transact:
                transact(now);
                break;
            case Command::Kind::exit:
                leave(now);
                break;
            case Command::Kind::wait:
                break;
        }
    }

    void publish(const Event& event, Time now) {
        EXPECT_TRUE(up && !is_blocked);
        const SimDatabase::Row& row = database_.row(event.seq);
        EXPECT_TRUE(row.token.starts_with(owner)) << "published without a claim: " << event.seq;
        EXPECT_LT(now, row.leased_at + settings.lease_ttl) << "published on an old lease";
        EXPECT_FALSE(row.published);
        if (row.bad) {
            ledger_.charges[event.seq]++;
            unsettled.insert(event.seq);
            drain.rejected(now, "bad", "this row cannot be sent");
            return;
        }
        if (dice_.chance(publish_failure)) {
            unconfirmed.push_back({next_tag_, event.seq, row.token});
            lose_connection(now);
            return;
        }
        ledger_.sent.insert({row.token, event.seq});
        unconfirmed.push_back({next_tag_, event.seq, row.token});
        drain.sent(now, next_tag_++, event.payload.size());
    }

    void transact(Time& now) {
        const TransactionPlan& plan = drain.plan();
        now += Duration{dice_.chance(0.002) ? dice_.between(1000, 6000) : dice_.between(0, 3)};
        if (database_.down || (!plan.one_by_one && dice_.chance(transaction_failure))) {
            drain.transaction_failed(now);
            return;
        }
        TransactionResult result;
        for (const BatchMarks& marks : plan.marks) {
            write(marks, plan.one_by_one, now, result.unwritten);
        }
        std::optional<std::int64_t> lowest_claimed;
        if (plan.claim > 0) {
            EXPECT_TRUE(up && !is_blocked && !drain.stopping());
            reap(now);
            result.token = owner + std::to_string(++claims_);
            std::vector<Event> events =
                SimClaim(database_, lane_, now, result.token).run(plan.claim);
            result.more = events.size() == plan.claim;
            for (const Event& event : events) {
                if (!event.deferred && (!lowest_claimed || event.seq < *lowest_claimed)) {
                    lowest_claimed = event.seq;
                }
            }
            if (!events.empty()) {
                result.claimed = memory_[drain.next_batch()] = std::move(events);
            }
            result.next_due = next_due(now);
            result.durable = !dice_.chance(0.01);
        }
        const std::int64_t open =
            std::min({lane_.lowest_open(), drain.lowest_kept().value_or(INT64_MAX),
                      lowest_claimed.value_or(INT64_MAX)});
        database_.floor = std::max(database_.floor, open - 1);
        drain.transacted(now, result);
        for (BatchId id : drain.finished_batches()) {
            EXPECT_EQ(memory_.erase(id), 1U);
        }
        EXPECT_LE(database_.claimed_by(owner), drain.in_hand()) << "a claim is stranded";
    }

    // Writes marks under the guard of their token.
    void write(const BatchMarks& marks, bool one_by_one, Time now,
               std::vector<std::int64_t>& unwritten) {
        const auto each = [&](std::int64_t seq, auto&& change) {
            if (one_by_one && dice_.chance(transaction_failure)) {
                unwritten.push_back(seq);
                return;
            }
            SimDatabase::Row& row = database_.row(seq);
            if (row.token == marks.token) {
                change(row);
            } else {
                ledger_.stale_marks++;
                lane_.add_hole(seq);
            }
        };
        for (std::int64_t seq : marks.published) {
            each(seq, [&](SimDatabase::Row& row) {
                EXPECT_TRUE(ledger_.acked.contains({marks.token, seq}))
                    << seq << " is marked published without an ack";
                row.published = true;
                row.token.clear();
            });
        }
        for (const FailedMark& mark : marks.failed) {
            each(mark.seq, [&](SimDatabase::Row& row) {
                row.attempts++;
                EXPECT_LE(row.attempts, ledger_.charges[mark.seq]) << "charged for nothing";
                EXPECT_GT(mark.delay, Duration{0});
                row.deferred = true;
                row.due = now + mark.delay;
                row.token.clear();
            });
        }
        for (std::int64_t seq : marks.released) {
            each(seq, [&](SimDatabase::Row& row) { give_back(row); });
        }
        for (std::int64_t seq : marks.renewed) {
            each(seq, [&](SimDatabase::Row& row) { row.leased_at = now; });
        }
        forget_settled(marks, unwritten);
    }

    void forget_settled(const BatchMarks& marks, const std::vector<std::int64_t>& unwritten) {
        const auto forget = [&](std::int64_t seq) {
            if (std::find(unwritten.begin(), unwritten.end(), seq) == unwritten.end()) {
                unsettled.erase(seq);
            }
        };
        std::for_each(marks.published.begin(), marks.published.end(), forget);
        for (const FailedMark& mark : marks.failed) {
            forget(mark.seq);
        }
    }

    // Takes back what other drainers held for longer than their lease.
    void reap(Time now) {
        for (SimDatabase::Row& row : database_.rows) {
            if (!row.token.empty() && !row.token.starts_with(owner) &&
                now >= row.leased_at + settings.lease_ttl) {
                ledger_.reaped++;
                ledger_.may_be_sent_again += ledger_.sent.contains({row.token, row.seq}) ? 1 : 0;
                give_back(row);
            }
        }
    }

    void give_back(SimDatabase::Row& row) {
        row.token.clear();
        if (!row.deferred) {
            lane_.add_hole(row.seq);
        }
    }

    std::optional<Duration> next_due(Time now) const {
        std::optional<Duration> next;
        for (const SimDatabase::Row& row : database_.rows) {
            if (row.is_free() && row.deferred) {
                const Duration left = std::max(row.due - now, Duration{0});
                next = std::min(next.value_or(left), left);
            }
        }
        return next;
    }

    void leave(Time) {
        if (drain.in_hand() == 0) {
            EXPECT_EQ(database_.claimed_by(owner), 0U) << "stopped with claims";
        }
        die();
    }

    void cut_off() {
        ledger_.faults += unconfirmed.empty() ? 0 : 1;
        for (const Message& message : unconfirmed) {
            ledger_.may_be_sent_again++;
            if (dice_.chance(0.5)) {
                store(message.seq);
            }
        }
        unconfirmed.clear();
        up = connecting = false;
    }

    void store(std::int64_t seq) { ledger_.copies[seq]++; }

    void check_bounds() {
        const auto depth = static_cast<std::size_t>(settings.pipeline_depth);
        EXPECT_LE(unconfirmed.size(), depth);
        EXPECT_LE(unconfirmed.size() + unsettled.size(), 2 * depth);
        EXPECT_LE(drain.in_hand(), 2 * static_cast<std::size_t>(settings.batch_size));
        if (!drain.stopping()) {
            EXPECT_EQ(drain.in_flight(), unconfirmed.size());
        }
    }

    SimDatabase& database_;
    SimLedger& ledger_;
    Dice& dice_;
    FreshLane lane_;
    std::uint64_t next_tag_ = 1;
    std::uint64_t claims_ = 0;
    std::map<BatchId, std::vector<Event>> memory_;
};

}  // namespace outbox::test
