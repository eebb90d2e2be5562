#include "core/replay_lane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace outbox {
namespace {

constexpr Backoff RETRY{Duration{1000}, 2, Duration{300000}};
constexpr Time LATER{1'000'000};

/// The database's side of one job, and the events, in memory.
struct Database {
    explicit Database(std::int64_t count, std::int32_t rate = 1'000'000) {
        job = {7, 0, count, rate};
        for (std::int64_t seq = 1; seq <= count; seq++) {
            Event event;
            event.seq = seq;
            event.source = "shop";
            rows[seq] = event;
        }
    }

    ReplayResult run(const ReplayPlan& plan) {
        ReplayResult result;
        if (plan.job != 0 && !locked) {
            result.saved = true;
            job.position = std::max(job.position, plan.position);
            sent += plan.sent;
            skipped += plan.skipped;
            error = plan.error.empty() ? error : plan.error;
            if (running && plan.end != ReplayPlan::End::none) {
                running = false;
                end = plan.end;
            }
        }
        if (running) {
            result.active = job;
        }
        if (plan.chunk_of == 0 || plan.chunk_of != result.active.id) {
            return result;
        }
        chunk.clear();
        result.chunk_of = plan.chunk_of;
        result.looked_to = plan.last_seq;
        for (auto row = rows.upper_bound(plan.read_after);
             row != rows.end() && row->first <= plan.last_seq; ++row) {
            if (row->first == in_hand || chunk.size() == chunk_limit) {
                result.looked_to = row->first - 1;
                break;
            }
            chunk.push_back(row->second);
        }
        result.events = chunk;
        return result;
    }

    ReplayJob job;
    std::map<std::int64_t, Event> rows;
    std::vector<Event> chunk;
    std::size_t chunk_limit = 10;
    std::int64_t in_hand = 0;  ///< an event that a drainer still holds
    bool running = true;
    bool locked = false;
    ReplayPlan::End end = ReplayPlan::End::none;
    std::int64_t sent = 0;
    std::int64_t skipped = 0;
    std::string error;
};

struct Bench {
    explicit Bench(std::int64_t count, std::int32_t rate = 1'000'000) : database(count, rate) {
        lane.configure(Ordering::per_key, RETRY);
    }

    void transact() {
        const ReplayPlan plan = lane.plan(now);
        lane.transacted(now, database.run(plan));
    }
    /// Runs transactions while they are due.
    void settle() {
        for (int i = 0; i < 100 && lane.transaction_due(now); i++) {
            transact();
        }
        ASSERT_FALSE(lane.transaction_due(now)) << "it never rests";
    }
    /// Sends what may be sent now; gives the numbers of the events.
    std::vector<std::int64_t> send() {
        std::vector<std::int64_t> seqs;
        while (const Event* event = lane.next(now)) {
            seqs.push_back(event->seq);
            tickets.push_back(lane.sent(now, 100));
        }
        return seqs;
    }
    void settle_oldest(bool ack) {
        EXPECT_EQ(lane.settled(now, tickets.front(), ack), 100U);
        tickets.pop_front();
    }
    void ack_all() {
        while (!tickets.empty()) {
            settle_oldest(true);
        }
    }
    void pass(Duration duration) { now += duration; }

    Database database;
    ReplayLane lane{1};
    std::deque<std::size_t> tickets;
    Time now = LATER;
};

using Seqs = std::vector<std::int64_t>;

TEST(ReplayLane, LooksForAJobAtOnceThenNowAndThenAndWhenWoken) {
    Bench bench(1);
    bench.database.running = false;
    ASSERT_TRUE(bench.lane.transaction_due(bench.now));
    EXPECT_EQ(bench.lane.plan(bench.now).job, 0);
    bench.settle();
    EXPECT_EQ(bench.lane.wake_at(bench.now), LATER + Duration{5000});
    bench.pass(Duration{4999});
    EXPECT_FALSE(bench.lane.transaction_due(bench.now));
    bench.lane.woken();
    EXPECT_TRUE(bench.lane.transaction_due(bench.now));
    bench.settle();
    // Each new event wakes: no reason to look at each.
    bench.lane.woken();
    EXPECT_FALSE(bench.lane.transaction_due(bench.now));
    EXPECT_EQ(bench.lane.wake_at(bench.now), bench.now + Duration{1000});
    EXPECT_EQ(bench.lane.next(bench.now), nullptr);
}

TEST(ReplayLane, SendsEachEventOnceInOrderAndFinishes) {
    Bench bench(35);
    Seqs all;
    for (int i = 0; i < 100 && bench.database.running; i++) {
        bench.settle();
        for (const std::int64_t seq : bench.send()) {
            all.push_back(seq);
        }
        bench.ack_all();
        bench.pass(Duration{1});
    }
    Seqs expected;
    for (std::int64_t seq = 1; seq <= 35; seq++) {
        expected.push_back(seq);
    }
    EXPECT_EQ(all, expected);
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
    EXPECT_EQ(bench.database.job.position, 35);
    EXPECT_EQ(bench.database.sent, 35);
    EXPECT_EQ(bench.database.error, "");
    EXPECT_EQ(bench.lane.job(), 0);
}

TEST(ReplayLane, AJobWithoutEventsIsFinishedAtOnce) {
    Bench bench(0);
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
    Bench gaps(1000);
    gaps.database.rows.clear();
    gaps.settle();
    EXPECT_EQ(gaps.database.end, ReplayPlan::End::finished);
    EXPECT_EQ(gaps.database.job.position, 1000) << "the position passes what is not sent";
}

TEST(ReplayLane, ThePositionIsWhatIsConfirmedWithoutAGap) {
    Bench bench(8);
    bench.settle();
    EXPECT_EQ(bench.send(), (Seqs{1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(bench.lane.position(), 0);
    EXPECT_FALSE(bench.lane.has_unsaved());
    EXPECT_EQ(bench.lane.settled(bench.now, bench.tickets[1], true), 100U);
    EXPECT_EQ(bench.lane.position(), 0);
    EXPECT_TRUE(bench.lane.has_unsaved()) << "the count of what was sent";
    EXPECT_EQ(bench.lane.settled(bench.now, bench.tickets[0], true), 100U);
    EXPECT_EQ(bench.lane.position(), 2);
    EXPECT_FALSE(bench.lane.transaction_due(bench.now)) << "not for each confirm";
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.database.job.position, 2);
    EXPECT_EQ(bench.database.sent, 2);
    EXPECT_TRUE(bench.database.running);
    EXPECT_FALSE(bench.lane.has_unsaved());
}

TEST(ReplayLane, TheWindowIsSmall) {
    Bench bench(1000);
    bench.database.chunk_limit = 500;
    bench.settle();
    EXPECT_EQ(bench.send().size(), ReplayLane::WINDOW);
    EXPECT_EQ(bench.lane.in_flight(), ReplayLane::WINDOW);
    bench.settle_oldest(true);
    EXPECT_EQ(bench.send(), (Seqs{101}));
}

TEST(ReplayLane, TheRateIsTheJobs) {
    Bench bench(1000, 20);
    bench.database.chunk_limit = 500;
    bench.settle();
    const Time start = bench.now;
    EXPECT_EQ(bench.send().size(), 2U) << "a tenth of a second's worth";
    EXPECT_EQ(bench.lane.wake_at(bench.now), start + Duration{50});
    std::size_t count = 0;
    while (bench.now < start + Duration{10'000}) {
        bench.pass(Duration{1});
        count += bench.send().size();
        bench.ack_all();
        bench.settle();
    }
    EXPECT_EQ(count, 200U);
    // Changed by an operator on the way.
    bench.database.job.rate = 1'000'000;
    bench.pass(Duration{1000});
    bench.settle();
    bench.pass(Duration{1});
    EXPECT_EQ(bench.send().size(), ReplayLane::WINDOW);
}

TEST(ReplayLane, EventsOfAGroupGoOneByOne) {
    const auto sent_at_once = [](Ordering ordering) {
        Bench bench(6);
        bench.lane.configure(ordering, RETRY);
        // Keys a, b, a, b, none, none; the fourth is another source's b.
        for (const std::int64_t seq : {1, 3}) {
            bench.database.rows[seq].key = "a";
        }
        for (const std::int64_t seq : {2, 4}) {
            bench.database.rows[seq].key = "b";
        }
        bench.database.rows[4].source = "other";
        bench.settle();
        Seqs seqs = bench.send();
        if (ordering == Ordering::per_key) {
            bench.settle_oldest(true);
            EXPECT_EQ(bench.send(), (Seqs{3, 4, 5, 6}));
        }
        return seqs;
    };
    EXPECT_EQ(sent_at_once(Ordering::per_key), (Seqs{1, 2}));
    EXPECT_EQ(sent_at_once(Ordering::per_source), (Seqs{1}));
    EXPECT_EQ(sent_at_once(Ordering::stop_the_line), (Seqs{1}));
    EXPECT_EQ(sent_at_once(Ordering::best_effort), (Seqs{1, 2, 3, 4, 5, 6}));
}

TEST(ReplayLane, ANackHoldsUpTheJobAndIsTriedAgain) {
    Bench bench(8);
    bench.settle();
    EXPECT_EQ(bench.send().size(), 8U);
    bench.settle_oldest(true);
    bench.settle_oldest(false);
    bench.settle_oldest(true);
    bench.settle_oldest(false);
    bench.ack_all();
    EXPECT_EQ(bench.lane.position(), 1);
    EXPECT_EQ(bench.send(), Seqs{});
    EXPECT_GE(bench.lane.wake_at(bench.now), bench.now + Duration{500});
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.database.error, "nack: the broker refused event with seq 2");
    EXPECT_EQ(bench.database.job.position, 1);
    EXPECT_EQ(bench.send(), (Seqs{2, 4}));
    bench.ack_all();
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
    EXPECT_EQ(bench.database.sent, 8);
    EXPECT_EQ(bench.database.error, "nack: the broker refused event with seq 2") << "it stays";
}

TEST(ReplayLane, TheDelayGrowsFromNackToNackAndAnAckEndsThat) {
    Bench bench(300);
    bench.database.chunk_limit = 300;
    bench.settle();
    const auto refuse_all = [&] {
        while (!bench.tickets.empty()) {
            bench.settle_oldest(false);
        }
    };
    const auto delay = [&] {
        const Time start = bench.now;
        while (bench.lane.next(bench.now) == nullptr) {
            bench.pass(Duration{1});
        }
        return bench.now - start;
    };
    for (const int expected : {1000, 2000, 4000, 8000}) {
        EXPECT_EQ(bench.send().size(), ReplayLane::WINDOW);
        refuse_all();
        const Duration waited = delay();
        EXPECT_LE(waited, Duration{expected});
        EXPECT_GE(waited, Duration{expected / 2}) << "a window refused is one failure";
    }
    EXPECT_EQ(bench.send().size(), ReplayLane::WINDOW);
    bench.settle_oldest(true);
    refuse_all();
    EXPECT_LE(delay(), Duration{1000});
}

TEST(ReplayLane, WhatCannotBeSentIsSkippedAndNamed) {
    Bench bench(3);
    bench.settle();
    ASSERT_NE(bench.lane.next(bench.now), nullptr);
    bench.tickets.push_back(bench.lane.sent(bench.now, 100));
    ASSERT_EQ(bench.lane.next(bench.now)->seq, 2);
    bench.lane.rejected(bench.now, "headers_too_large", "too many");
    EXPECT_EQ(bench.send(), (Seqs{3}));
    bench.ack_all();
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
    EXPECT_EQ(bench.database.sent, 2);
    EXPECT_EQ(bench.database.skipped, 1);
    EXPECT_EQ(bench.database.error,
              "rejected: headers_too_large: too many; skipped event with seq 2");
}

TEST(ReplayLane, AfterALostConnectionWhatWasUnconfirmedGoesAgain) {
    Bench bench(5);
    bench.settle();
    EXPECT_EQ(bench.send().size(), 5U);
    bench.settle_oldest(true);
    EXPECT_EQ(bench.lane.settled(bench.now, bench.tickets[1], true), 100U);
    (void)bench.lane.lost(bench.now, "broker closed the connection");
    EXPECT_EQ(bench.lane.in_flight(), 0U);
    EXPECT_EQ(bench.send(), Seqs{}) << "perhaps it was the replay's doing";
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.database.error, "connection lost: broker closed the connection");
    bench.tickets.clear();
    EXPECT_EQ(bench.send(), (Seqs{2, 4, 5}));
    // Closed because somebody wanted it: nobody's fault.
    (void)bench.lane.lost(bench.now, "");
    bench.tickets.clear();
    EXPECT_EQ(bench.send(), (Seqs{2, 4, 5}));
    bench.ack_all();
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
}

TEST(ReplayLane, ConnectionsLostWithNothingOnItsWayAreNotItsMatter) {
    Bench bench(1);
    bench.settle();
    for (int i = 0; i < 20; i++) {
        EXPECT_FALSE(bench.lane.lost(bench.now, "connection refused"));
    }
    EXPECT_EQ(bench.send(), (Seqs{1}));
    EXPECT_TRUE(bench.database.running);
}

TEST(ReplayLane, AMissingExchangeFailsTheJobAtOnce) {
    const std::string why = "NOT_FOUND - no exchange 'backfill' in vhost '/'";
    Bench bench(20);
    for (auto& [seq, event] : bench.database.rows) {
        event.destination = "backfill";
    }
    bench.settle();
    EXPECT_EQ(bench.send().size(), 10U);
    bench.settle_oldest(true);
    EXPECT_TRUE(bench.lane.lost(bench.now, why));
    EXPECT_FALSE(bench.lane.lost(bench.now, why)) << "once";
    EXPECT_TRUE(bench.lane.transaction_due(bench.now));
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::failed);
    EXPECT_EQ(bench.database.error, why);
    EXPECT_EQ(bench.database.job.position, 1);
    EXPECT_EQ(bench.lane.next(bench.now + Duration{100000}), nullptr);
    // Resumed when the exchange is there.
    bench.database.running = true;
    bench.database.end = ReplayPlan::End::none;
    bench.tickets.clear();
    bench.pass(Duration{1000});
    bench.lane.woken();
    bench.settle();
    EXPECT_EQ(bench.send().front(), 2);
}

TEST(ReplayLane, AnotherExchangeMissingIsNotItsFault) {
    Bench bench(5);
    for (auto& [seq, event] : bench.database.rows) {
        event.destination = "backfill";
    }
    bench.settle();
    bench.send();
    EXPECT_FALSE(bench.lane.lost(bench.now, "NOT_FOUND - no exchange 'backfill2' in vhost '/'"));
    bench.settle();
    EXPECT_TRUE(bench.database.running);
}

TEST(ReplayLane, AJobThatBreaksConnectionAfterConnectionFails) {
    Bench bench(5);
    bench.settle();
    int losses = 0;
    for (int i = 0; i < 20 && bench.database.running; i++) {
        bench.pass(Duration{300000});
        bench.settle();
        bench.send();
        bench.tickets.clear();
        (void)bench.lane.lost(bench.now, "PRECONDITION_FAILED - message size too large");
        bench.settle();
        losses++;
    }
    EXPECT_EQ(losses, 5);
    EXPECT_EQ(bench.database.end, ReplayPlan::End::failed);
    EXPECT_EQ(bench.database.error,
              "connection lost 5 times without a confirm between: PRECONDITION_FAILED - message "
              "size too large");
}

TEST(ReplayLane, AStopIsNoticedAndLosesNothing) {
    Bench bench(30);
    bench.settle();
    bench.send();
    bench.settle_oldest(true);
    bench.settle_oldest(true);
    bench.database.running = false;
    bench.lane.woken();
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.lane.job(), 0);
    EXPECT_EQ(bench.database.job.position, 2) << "the last confirms are saved";
    EXPECT_EQ(bench.send(), Seqs{});
    // What is still on its way is confirmed in vain, and its bytes come back.
    EXPECT_EQ(bench.lane.in_flight(), 8U);
    bench.ack_all();
    EXPECT_EQ(bench.lane.in_flight(), 0U);
    bench.settle();
    EXPECT_EQ(bench.database.sent, 2);
    // Resumed.
    bench.database.running = true;
    bench.pass(Duration{5000});
    bench.settle();
    EXPECT_EQ(bench.send().front(), 3);
}

TEST(ReplayLane, ConfirmsOfADroppedJobDoNotTouchTheNext) {
    Bench bench(5);
    bench.settle();
    bench.send();
    bench.database.job.id = 8;
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.lane.job(), 8);
    const std::deque<std::size_t> old = std::exchange(bench.tickets, {});
    EXPECT_EQ(bench.send().size(), 5U);
    for (const std::size_t ticket : old) {
        EXPECT_EQ(bench.lane.settled(bench.now, ticket, false), 100U);
    }
    EXPECT_EQ(bench.lane.position(), 0);
    bench.ack_all();
    bench.settle();
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
    EXPECT_EQ(bench.database.error, "");
}

TEST(ReplayLane, TicketsAreNeverRowNumbersAndNeverComeAgain) {
    EXPECT_FALSE(ReplayLane::is_ticket(0));
    EXPECT_FALSE(ReplayLane::is_ticket(SIZE_MAX >> 1));
    Bench bench(20);
    std::set<std::size_t> tickets;
    for (int i = 0; i < 10; i++) {
        bench.settle();
        bench.send();
        for (const std::size_t ticket : bench.tickets) {
            EXPECT_TRUE(ReplayLane::is_ticket(ticket));
            EXPECT_TRUE(tickets.insert(ticket).second);
            EXPECT_EQ(bench.lane.sent_at(ticket), bench.now);
        }
        bench.tickets.clear();
        (void)bench.lane.lost(bench.now, "");
        EXPECT_EQ(bench.lane.settled(bench.now, *tickets.begin(), true), 0U);
    }
}

TEST(ReplayLane, WaitsForAnEventThatADrainerStillHolds) {
    Bench bench(5);
    bench.database.in_hand = 3;
    bench.settle();
    EXPECT_EQ(bench.send(), (Seqs{1, 2}));
    bench.ack_all();
    bench.settle();
    EXPECT_EQ(bench.lane.wake_at(bench.now), bench.now + Duration{500}) << "no hurry";
    EXPECT_TRUE(bench.database.running);
    bench.database.in_hand = 0;
    bench.pass(Duration{500});
    bench.settle();
    EXPECT_EQ(bench.send(), (Seqs{3, 4, 5}));
}

TEST(ReplayLane, AJobThatIsLockedGoesOnAndIsSavedLater) {
    Bench bench(15);
    bench.settle();
    bench.send();
    bench.ack_all();
    bench.database.locked = true;
    bench.settle();
    EXPECT_EQ(bench.database.sent, 0);
    EXPECT_EQ(bench.send().size(), 5U);
    bench.ack_all();
    bench.settle();
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_TRUE(bench.database.running);
    bench.database.locked = false;
    bench.pass(Duration{1000});
    bench.settle();
    EXPECT_EQ(bench.database.sent, 15) << "counted once";
    EXPECT_EQ(bench.database.end, ReplayPlan::End::finished);
}

TEST(ReplayLane, AFailedTransactionIsRepeatedLaterAndLosesNothing) {
    Bench bench(15);
    bench.settle();
    bench.send();
    bench.ack_all();
    (void)bench.lane.plan(bench.now);
    bench.lane.transaction_failed(bench.now);
    EXPECT_FALSE(bench.lane.transaction_due(bench.now));
    EXPECT_GT(bench.lane.wake_at(bench.now), bench.now);
    bench.pass(Duration{500});
    bench.settle();
    EXPECT_EQ(bench.database.sent, 10);
    EXPECT_EQ(bench.send().size(), 5U);
}

TEST(ReplayLane, LeavesWhenReplaysAreAnotherDrainersMatter) {
    Bench bench(15);
    bench.settle();
    bench.send();
    bench.lane.leave();
    EXPECT_EQ(bench.lane.job(), 0);
    EXPECT_EQ(bench.lane.next(bench.now), nullptr);
    bench.ack_all();
    EXPECT_FALSE(bench.lane.has_unsaved());
    EXPECT_TRUE(bench.lane.transaction_due(bench.now)) << "looks at once when it comes back";
}

}  // namespace
}  // namespace outbox
