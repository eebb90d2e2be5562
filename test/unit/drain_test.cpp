#include "core/drain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drain_bench.hpp"

namespace outbox {
namespace {

using Kind = Command::Kind;
using Seqs = std::vector<std::int64_t>;
using test::Bench;
using test::bench_settings;
using namespace std::chrono_literals;

// A bench that is connected, has claimed `claimed` rows and sent `sent` of them.
Bench running(std::size_t claimed, std::size_t sent,
              const DrainSettings& settings = bench_settings()) {
    Bench bench(settings);
    bench.connect();
    bench.claim(claimed);
    bench.publish(sent);
    return bench;
}

// ---- The connection ----

TEST(Drain, ConnectsFirstThenClaims) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    ASSERT_EQ(bench.next().kind, Kind::wait);
    ASSERT_EQ(bench.next().until, bench.now + 1000ms);
    bench.drain.connected(bench.now, 1000);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 10U);
    EXPECT_TRUE(bench.drain.plan().marks.empty());
    bench.commit(2);
    bench.publish(2);
    EXPECT_EQ(bench.published, (Seqs{1, 2}));
}

TEST(Drain, ClaimsNothingWhileTheBrokerIsAway) {
    Bench bench;
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(bench.kind(), Kind::connect);
        bench.lose_connection();
        bench.drain.woken();
        const Command command = bench.next();
        ASSERT_EQ(command.kind, Kind::wait);
        bench.now += 60s;
    }
}

// How long after a loss the machine connects again.
Duration reconnect_delay(Bench& bench, bool configuration = false) {
    const Time lost = bench.now;
    bench.drain.connection_lost(bench.now, configuration, "why");
    while (true) {
        const Command command = bench.next();
        if (command.kind == Kind::connect) {
            return bench.now - lost;
        }
        if (command.kind == Kind::transact) {
            bench.commit(0);
        } else {
            bench.now = command.until;
        }
    }
}

TEST(Drain, ReconnectsMoreAndMoreSlowly) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    Duration longest = 500ms;
    for (int i = 0; i < 12; i++) {
        const Duration delay = reconnect_delay(bench);
        EXPECT_GE(delay, std::max<Duration>(longest / 2, 1s)) << "at most one attempt a second";
        EXPECT_LE(delay, std::max<Duration>(longest, 1s));
        longest = std::min<Duration>(longest * 2, 30s);
    }
}

TEST(Drain, AConnectionThatLivedMakesTheNextFailureAFirstOne) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    for (int i = 0; i < 8; i++) {
        reconnect_delay(bench);
    }
    bench.drain.connected(bench.now, 1000);
    bench.claim(0);
    bench.now += 20s;
    EXPECT_LE(reconnect_delay(bench), 500ms);
}

TEST(Drain, WaitsLongWhenOnlyAPersonCanHelp) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    EXPECT_GE(reconnect_delay(bench, true), 10s);
}

TEST(Drain, GivesUpAConnectionAttempt) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    bench.now += 2999ms;
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 1ms;
    const Command command = bench.next();
    EXPECT_EQ(command.kind, Kind::disconnect);
    EXPECT_NE(command.reason.find("3000 ms"), std::string::npos) << command.reason;
}

// ---- The window ----

TEST(Drain, NeverHasMoreUnconfirmedThanTheDepth) {
    Bench bench = running(10, 4);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.confirm(1);
    EXPECT_EQ(bench.publish_all(), 1U);
    EXPECT_EQ(bench.drain.in_flight(), 4U);
}

TEST(Drain, UnconfirmedAndUnsettledStayWithinTwiceTheDepth) {
    Bench bench = running(10, 4);
    // Two outcomes are half the depth: a transaction is due, and it fails.
    bench.confirm(2, true);
    EXPECT_EQ(bench.publish_all(), 2U) << "the broker gets work first";
    bench.fail();
    bench.confirm(4, true);
    EXPECT_EQ(bench.publish_all(), 2U);
    bench.confirm(6, true);
    EXPECT_EQ(bench.publish_all(), 0U) << "6 unsettled and 2 unconfirmed are 8";
    bench.now += 100ms;
    bench.settle();
    EXPECT_EQ(bench.drain.in_hand(), 4U);
    bench.claim(0);
    EXPECT_EQ(bench.publish_all(), 2U);
}

TEST(Drain, UnconfirmedBytesStayWithinTheSendBuffer) {
    Bench bench;
    bench.connect(1000);
    bench.payload.assign(400, 'x');
    bench.claim(4);
    EXPECT_EQ(bench.publish_all(), 2U);
    bench.confirm(2);
    EXPECT_EQ(bench.publish_all(), 1U);
}

TEST(Drain, AMessageLargerThanTheSendBufferGoesAlone) {
    Bench bench;
    bench.connect(1000);
    bench.payload.assign(5000, 'x');
    bench.claim(2);
    EXPECT_EQ(bench.publish_all(), 1U);
    bench.confirm(1);
    if (bench.kind() == Kind::transact) {
        bench.commit(0);
    }
    EXPECT_EQ(bench.publish_all(), 1U);
}

// ---- Outcomes ----

TEST(Drain, AnAckBecomesAPublishedMark) {
    Bench bench = running(3, 3);
    bench.confirm(3, true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, (Seqs{1, 2, 3}));
    bench.commit(0);
    EXPECT_EQ(bench.drain.in_hand(), 0U);
    EXPECT_EQ(bench.finished_batches, std::vector<BatchId>{1});
}

TEST(Drain, ANackBecomesAFailedMarkWithBackoff) {
    Bench bench;
    bench.connect();
    bench.attempts = 3;
    bench.claim(1);
    bench.publish(1);
    bench.confirm(1, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    ASSERT_EQ(marks.failed.size(), 1U);
    EXPECT_TRUE(marks.published.empty());
    EXPECT_EQ(marks.failed[0].seq, 1);
    EXPECT_EQ(marks.failed[0].error.substr(0, 6), "nack: ");
    // The fourth failure: 1 s doubled three times, of which the jitter leaves at least half.
    EXPECT_GE(marks.failed[0].delay, 4s);
    EXPECT_LE(marks.failed[0].delay, 8s);
}

TEST(Drain, ARejectedRowEndsWithoutBeingSent) {
    Bench bench;
    bench.connect();
    bench.claim(2);
    bench.publish(1);
    ASSERT_EQ(bench.next().event->seq, 2);
    bench.drain.rejected(bench.now, "routing_key_too_long", "256 bytes, at most 255");
    EXPECT_EQ(bench.publish_all(), 0U);
    bench.confirm(1);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    EXPECT_TRUE(marks.failed.empty());
    ASSERT_EQ(marks.ended.size(), 1U);
    EXPECT_EQ(marks.ended[0].seq, 2);
    EXPECT_EQ(marks.ended[0].outcome, EndedMark::Outcome::rejected);
    EXPECT_EQ(marks.ended[0].code, "routing_key_too_long");
    EXPECT_EQ(marks.ended[0].error, "rejected: routing_key_too_long: 256 bytes, at most 255");
    EXPECT_EQ(marks.published, Seqs{1});
}

TEST(Drain, WhatCanBeSentGoesBeforeAFewOutcomesAreWritten) {
    Bench bench;
    bench.connect();
    bench.claim(3);
    ASSERT_EQ(bench.next().event->seq, 1);
    bench.drain.rejected(bench.now, "no_event_type", "neither event_type nor routing_key");
    EXPECT_EQ(bench.kind(), Kind::publish) << "else a batch of bad rows is a transaction per row";
}

TEST(Drain, OutcomesAreStreamed) {
    DrainSettings settings = bench_settings();
    settings.pipeline_depth = 8;
    Bench bench = running(8, 8, settings);
    bench.confirm(3, true);
    Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::wait) << "three outcomes wait for company";
    EXPECT_LE(command.until, bench.now + 10ms);
    bench.confirm(4);
    ASSERT_EQ(bench.kind(), Kind::transact) << "four are half the depth";
    bench.commit(0);
    bench.confirm(5);
    ASSERT_EQ(bench.kind(), Kind::wait);
    bench.now += 10ms;
    ASSERT_EQ(bench.kind(), Kind::transact) << "one has waited";
}

TEST(Drain, AConfirmOfWhatWasNotSentIsReported) {
    Bench bench = running(2, 2);
    EXPECT_FALSE(bench.drain.confirmed(bench.now, Channel::main, 3, false, true));
    bench.confirm(1);
    EXPECT_FALSE(bench.drain.confirmed(bench.now, Channel::main, 1, false, true));
}

TEST(Drain, ALostConnectionReleasesAllUncharged) {
    Bench bench = running(6, 4);
    bench.confirm(2);
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    const BatchMarks marks = bench.marks();
    EXPECT_EQ(marks.published, Seqs{2});
    EXPECT_EQ(marks.released, (Seqs{1, 3, 4, 5, 6}));
    EXPECT_TRUE(marks.failed.empty());
    bench.commit(0);
    EXPECT_EQ(bench.drain.in_hand(), 0U);
    EXPECT_FALSE(bench.drain.confirmed(bench.now, Channel::main, 3, false, true))
        << "of the old channel";
}

TEST(Drain, ASilentBrokerIsLeft) {
    Bench bench = running(3, 1);
    bench.now += 100ms;
    bench.publish(2);
    bench.now += 4900ms;
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::disconnect);
    EXPECT_NE(command.reason.find("5000 ms"), std::string::npos) << command.reason;
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
}

// ---- Blocked ----

TEST(Drain, ABlockedBrokerGetsNothingAndLosesNothing) {
    Bench bench = running(6, 2);
    bench.drain.blocked();
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 20s;
    EXPECT_EQ(bench.kind(), Kind::wait) << "no confirm timeout while blocked";
    bench.confirm(1);
    bench.now += 10ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_EQ(bench.marks().published, Seqs{1});
    bench.commit(0);
    bench.drain.unblocked();
    bench.confirm(2);
    EXPECT_EQ(bench.publish_all(), 4U);
}

TEST(Drain, ABlockedBrokerThatIsToBeLeftIsNotWaitedForLonger) {
    Bench bench = running(6, 2);
    bench.drain.blocked();
    DrainSettings settings = bench.settings;
    settings.broker_uri = "amqp://other";
    bench.drain.configure(bench.now, settings);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{3, 4, 5, 6}));
    bench.commit(0);
    bench.now += settings.confirm_timeout;
    ASSERT_EQ(bench.kind(), Kind::disconnect);
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2}));
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::connect);
}

TEST(Drain, AClaimThatFailsIsTriedWithFewerRows) {
    Bench bench;
    bench.connect();
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 6; i++) {
        ASSERT_EQ(bench.kind(), Kind::transact);
        sizes.push_back(bench.drain.plan().claim);
        bench.fail();
        bench.now += 5s;
    }
    EXPECT_EQ(sizes, (std::vector<std::size_t>{10, 5, 2, 1, 1, 1}));
    TransactionResult more;
    more.more = true;
    sizes.clear();
    for (int i = 0; i < 5; i++) {
        ASSERT_EQ(bench.kind(), Kind::transact);
        sizes.push_back(bench.drain.plan().claim);
        bench.commit(0, more);
    }
    EXPECT_EQ(sizes, (std::vector<std::size_t>{1, 2, 4, 8, 10}));
}

TEST(Drain, ABrokerThatWasBlockedGetsTimeToAnswer) {
    Bench bench = running(2, 2);
    bench.drain.blocked();
    bench.now += 20s;
    ASSERT_EQ(bench.kind(), Kind::wait);
    bench.drain.unblocked();
    bench.claim(0);
    bench.now += 4s;
    EXPECT_NE(bench.kind(), Kind::disconnect)
        << "it could not answer while it did not read, so the confirm timeout starts again";
}

// ---- Leases ----

TEST(Drain, AtHalfALeaseTheUnsentIsReleasedAndTheSentRenewed) {
    DrainSettings settings = bench_settings();
    settings.confirm_timeout = 1h;
    Bench bench = running(6, 4, settings);
    bench.now += 29999ms;
    bench.claim(0);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 1ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{5, 6}));
    EXPECT_EQ(bench.marks().renewed, (Seqs{1, 2, 3, 4}));
    bench.commit(0);
    EXPECT_EQ(bench.drain.in_hand(), 4U);
    bench.claim(0);  // what was released is looked for at once
    // The renewed lease has a half of its own.
    bench.now += 29s;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_TRUE(bench.drain.plan().marks.empty());
    bench.commit(0);
    bench.now += 1s;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().renewed, (Seqs{1, 2, 3, 4}));
}

TEST(Drain, PublishesNothingOnAnOldLease) {
    Bench bench;
    bench.connect();
    ASSERT_EQ(bench.kind(), Kind::transact);
    bench.now += 31s;  // the transaction itself took so long
    bench.commit(3);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
}

TEST(Drain, AClaimThatIsNotDurableIsReleased) {
    Bench bench;
    bench.connect();
    TransactionResult result;
    result.durable = false;
    bench.claim(3, result);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
    bench.commit(0);
    EXPECT_TRUE(bench.published.empty());
}

// ---- Transactions ----

TEST(Drain, AFailedTransactionIsSettledAloneThenOneByOne) {
    Bench bench = running(4, 4);
    bench.confirm(4, true);
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 10U);
    EXPECT_EQ(bench.drain.plan().marks.size(), 1U);
    bench.drain.transaction_failed(bench.now);
    EXPECT_EQ(bench.kind(), Kind::wait);

    bench.now += 100ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_FALSE(bench.drain.plan().one_by_one);
    EXPECT_EQ(bench.marks().published, (Seqs{1, 2, 3, 4}));
    bench.drain.transaction_failed(bench.now);

    bench.now += 200ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_TRUE(bench.drain.plan().one_by_one);
    TransactionResult result;
    result.unwritten = {2};
    bench.commit(0, result);
    EXPECT_EQ(bench.drain.in_hand(), 1U);
    EXPECT_TRUE(bench.finished_batches.empty());

    bench.claim(1);
    EXPECT_EQ(bench.publish_all(), 1U) << "a row that cannot be written holds up nobody else";
    bench.confirm(5);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, Seqs{5});
    bench.commit(0);

    bench.now += 5000ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_TRUE(bench.drain.plan().one_by_one);
    EXPECT_EQ(bench.marks().published, Seqs{2});
    bench.commit(0);
    EXPECT_EQ(bench.finished_batches, (std::vector<BatchId>{2, 1}));
}

TEST(Drain, APassRowByRowThatWasGivenUpIsTriedAgainWithBackoff) {
    Bench bench = running(4, 4);
    bench.confirm(4, true);
    bench.fail();
    bench.now += 100ms;
    bench.fail();
    bench.now += 200ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_TRUE(bench.drain.plan().one_by_one);
    TransactionResult result;
    result.unwritten = {1};
    result.untried = {2, 3, 4};
    bench.drain.woken();
    bench.commit(0, result);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 400ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U) << "nothing is claimed meanwhile";
    EXPECT_EQ(bench.marks().published, (Seqs{2, 3, 4}));
    bench.commit(0);
    EXPECT_EQ(bench.drain.in_hand(), 1U);
}

TEST(Drain, AStopTriesRowsSetAsideAgainSoon) {
    Bench bench = running(1, 1);
    bench.confirm(1);
    bench.fail();
    bench.now += 100ms;
    bench.fail();
    bench.now += 200ms;
    TransactionResult result;
    result.unwritten = {1};
    ASSERT_EQ(bench.kind(), Kind::transact);
    bench.commit(0, result);
    bench.drain.stop(bench.now);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, Seqs{1});
    bench.commit(0, result);
    bench.now += 200ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

TEST(Drain, AFailedClaimIsTriedAgainWithBackoff) {
    Bench bench;
    bench.connect();
    Duration longest = 100ms;
    for (int i = 0; i < 10; i++) {
        bench.fail();
        const Command command = bench.next();
        ASSERT_EQ(command.kind, Kind::wait);
        EXPECT_EQ(bench.drain.state(), DrainerState::backoff);
        bench.now += longest;
        longest = std::min<Duration>(longest * 2, 5s);
        ASSERT_EQ(bench.kind(), Kind::transact);
        ASSERT_GT(bench.drain.plan().claim, 0U);
        ASSERT_FALSE(bench.drain.plan().one_by_one);
    }
    bench.commit(1);
    EXPECT_EQ(bench.publish_all(), 1U);
}

TEST(Drain, NeverMoreThanTwoBatchesInHand) {
    DrainSettings settings = bench_settings();
    settings.pipeline_depth = 100;
    settings.confirm_timeout = 1h;
    settings.lease_ttl = 10h;
    Bench bench = running(10, 10, settings);
    bench.drain.woken();
    bench.claim(10);
    // One outcome at a time is settled, at first without success: each time the claim follows.
    for (std::uint64_t tag = 1; tag <= 8; tag++) {
        bench.confirm(tag);
        bench.now += 5s;
        bench.drain.woken();
        bench.publish_all();
        bench.fail();
        bench.now += 5s;
        for (int i = 0; i < 3 && bench.kind() == Kind::transact; i++) {
            bench.commit(bench.drain.plan().claim);
        }
        ASSERT_LE(bench.drain.in_hand(), 20U) << "after " << tag << " failures";
    }
}

TEST(Drain, TheBrokerGetsWorkBeforeATransactionRuns) {
    Bench bench = running(10, 4);
    bench.confirm(4, true);
    EXPECT_EQ(bench.publish_all(), 4U);
    bench.settle();
    EXPECT_EQ(bench.drain.in_flight(), 4U);
}

TEST(Drain, ToppedUpWithWhatHasRoomAndNotForLessThanAQuarterOfABatch) {
    DrainSettings settings = bench_settings();
    settings.batch_size = 20;
    settings.pipeline_depth = 40;
    Bench bench = running(20, 20, settings);
    bench.drain.woken();
    bench.claim(16);
    bench.publish_all();
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "36 are in hand, there is room for 4";
    bench.confirm(1);
    bench.now += 10ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 5U);
}

TEST(Drain, ClaimsAgainWhenWokenOrWhenThereIsMoreOrWhenItIsTime) {
    Bench bench;
    bench.connect();
    TransactionResult result;
    result.more = true;
    bench.claim(0, result);
    bench.claim(0);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.drain.woken();
    result = {};
    result.next_due = 300ms;
    bench.claim(0, result);
    Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::wait);
    EXPECT_EQ(command.until, bench.now + 300ms);
    bench.now = command.until;
    bench.claim(0);
    command = bench.next();
    ASSERT_EQ(command.kind, Kind::wait);
    EXPECT_EQ(command.until, bench.now + 1000ms);
    bench.now = command.until;
    bench.claim(0);
}

TEST(Drain, RowsInHandHoldTheFloorUntilTheirOutcomeIsWritten) {
    Bench bench = running(4, 4);
    EXPECT_EQ(bench.drain.lowest_in_hand(), 1);
    bench.confirm(1);
    bench.confirm(2, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.lowest_in_hand(), 1) << "nothing is written yet";
    bench.commit(0);
    EXPECT_EQ(bench.drain.lowest_in_hand(), 3);
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.lowest_in_hand(), 3) << "given back, but not yet";
    bench.commit(0);
    EXPECT_EQ(bench.drain.lowest_in_hand(), std::nullopt);
}

TEST(Drain, DeferredRowsDoNotHoldTheFloor) {
    Bench bench;
    bench.connect();
    bench.deferred = true;
    bench.claim(2);
    EXPECT_EQ(bench.drain.lowest_in_hand(), std::nullopt);
}

// ---- Stopping ----

TEST(Drain, AStopCollectsConfirmsSettlesReleasesAndExits) {
    Bench bench = running(6, 4);
    bench.drain.stop(bench.now);
    EXPECT_EQ(bench.drain.state(), DrainerState::stopping);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_EQ(bench.marks().released, (Seqs{5, 6}));
    bench.commit(0);
    Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::wait);
    EXPECT_LE(command.until, bench.now + 2000ms);
    bench.now += 1900ms;
    bench.confirm(4, true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, (Seqs{1, 2, 3, 4}));
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

TEST(Drain, AStopDoesNotWaitBeyondItsDeadline) {
    Bench bench = running(4, 4);
    bench.drain.stop(bench.now);
    bench.now += 1s;
    bench.drain.stop(bench.now);  // a second request does not extend it
    bench.confirm(1);
    bench.settle();
    bench.now += 1s;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{2, 3, 4}));
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

TEST(Drain, AStopWithoutADatabaseEndsToo) {
    Bench bench = running(4, 4);
    bench.drain.stop(bench.now);
    const Time end = bench.now + 4000ms;
    for (int steps = 0; steps < 100000; steps++) {
        const Command command = bench.next();
        if (command.kind == Kind::exit) {
            EXPECT_LE(bench.now, end);
            return;
        }
        if (command.kind == Kind::transact) {
            bench.drain.transaction_failed(bench.now);
        } else {
            ASSERT_EQ(command.kind, Kind::wait);
            bench.now = command.until;
        }
    }
    FAIL() << "does not exit";
}

TEST(Drain, AStopTriesTheDatabaseOnceMore) {
    Bench bench = running(2, 2);
    bench.confirm(2, true);
    for (int i = 0; i < 8; i++) {
        bench.fail();
        bench.now += 5s;
    }
    bench.fail();  // the next attempt is due in more than two seconds
    bench.drain.stop(bench.now);
    Command command = bench.next();
    while (command.kind == Kind::wait) {
        bench.now = command.until;
        command = bench.next();
    }
    ASSERT_EQ(command.kind, Kind::transact)
        << "else what was acked is sent again after the restart";
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

TEST(Drain, AStopWhileConnectingExitsAtOnce) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    bench.drain.stop(bench.now);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

}  // namespace
}  // namespace outbox
