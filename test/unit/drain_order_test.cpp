// Order within groups, and what a failure does to the group.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/drain.hpp"
#include "drain_bench.hpp"

namespace outbox {
namespace {

using Kind = Command::Kind;
using Seqs = std::vector<std::int64_t>;
using test::Bench;
using test::bench_settings;
using namespace std::chrono_literals;

Bench with_groups(std::deque<std::uint64_t> groups, DrainSettings settings = bench_settings()) {
    settings.pipeline_depth = 10;
    Bench bench(settings);
    bench.connect();
    bench.groups = std::move(groups);
    bench.claim(bench.groups.size());
    return bench;
}

TEST(DrainOrder, OneMessageOfAGroupIsUnconfirmedAtATime) {
    Bench bench = with_groups({7, 7, 7});
    EXPECT_EQ(bench.publish_all(), 1U);
    EXPECT_EQ(bench.drain.carried(7), 3U);
    bench.confirm(1);
    EXPECT_EQ(bench.publish_all(), 1U);
    bench.confirm(2);
    EXPECT_EQ(bench.publish_all(), 1U);
    EXPECT_EQ(bench.published, (Seqs{1, 2, 3}));
}

TEST(DrainOrder, DifferentGroupsAndRowsWithoutOneGoTogether) {
    Bench bench = with_groups({7, 7, 8, 9, 8});
    EXPECT_EQ(bench.publish_all(), 3U);
    EXPECT_EQ(bench.published, (Seqs{1, 3, 4}));
    bench.confirm(2);
    EXPECT_EQ(bench.publish_all(), 1U);
    EXPECT_EQ(bench.published.back(), 5);
}

// Four rows of a group are in hand, more were left; the next claim comes when two have gone.
void claim_when_half_has_gone(Bench& bench, std::size_t rows_per_group) {
    bench.connect();
    bench.groups = {7, 7, 7, 7};
    TransactionResult result;
    result.left = {7};
    result.rows_per_group = rows_per_group;
    bench.claim(4, result);
    bench.publish(1);
    bench.confirm(1);
    bench.publish(1);
    EXPECT_EQ(bench.kind(), Kind::wait) << "three of four are in hand";
    bench.confirm(2);
    bench.publish(1);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_GT(bench.drain.plan().claim, 0U);
}

DrainSettings settings_without_polls() {
    DrainSettings settings = bench_settings();
    settings.poll_interval = Duration{60000};
    return settings;
}

TEST(DrainOrder, MoreOfACrowdedGroupIsClaimedWhenLessThanHalfOfItIsInHand) {
    DrainSettings settings = settings_without_polls();
    settings.pipeline_depth = 100;
    Bench bench(settings);
    claim_when_half_has_gone(bench, 4);
    bench.commit(0);
    bench.confirm(3);
    bench.publish(1);
    EXPECT_EQ(bench.kind(), Kind::wait) << "nothing is left any more";
}

TEST(DrainOrder, MoreOfAGroupOfLargeRowsIsClaimedWhenHalfOfTheFewHaveGone) {
    Bench bench(settings_without_polls());
    claim_when_half_has_gone(bench, 64);
}

TEST(DrainOrder, RowsDeferredBehindOthersAreCalledAlthoughTheClaimTookNothing) {
    Bench bench = with_groups({7});
    bench.publish_all();
    bench.drain.woken();
    TransactionResult result;
    result.followed = {7};
    bench.claim(0, result);
    bench.confirm(1);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().release_behind, Seqs{1});
}

TEST(DrainOrder, ANackHoldsItsGroupAndNobodyElse) {
    Bench bench = with_groups({7, 7, 8, 7, 8});
    bench.publish_all();
    bench.confirm(1, false, false);
    bench.confirm(2);
    EXPECT_EQ(bench.publish_all(), 1U) << "the other group goes on";
    EXPECT_EQ(bench.published.back(), 5);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    ASSERT_EQ(marks.failed.size(), 1U);
    EXPECT_EQ(marks.failed[0].seq, 1);
    EXPECT_EQ(marks.deferred, (Seqs{2, 4})) << "uncharged, behind the row that failed";
    EXPECT_EQ(marks.published, Seqs{3});
    EXPECT_TRUE(bench.drain.plan().release_behind.empty());
    bench.commit(0);
    EXPECT_EQ(bench.publish_all(), 0U);
}

TEST(DrainOrder, RowsClaimedBeforeTheFailureIsWrittenWaitToo) {
    Bench bench = with_groups({7});
    bench.publish_all();
    bench.confirm(1, false, false);
    // The failure cannot be written, alone neither: it is set aside.
    for (int i = 0; i < 2; i++) {
        bench.fail();
        bench.now += 10s;
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    TransactionResult unwritten;
    unwritten.unwritten = {1};
    bench.commit(0, unwritten);
    bench.groups = {7, 7};
    bench.claim(2);
    EXPECT_EQ(bench.publish_all(), 0U) << "the group is held by a failure that nobody can see yet";
    EXPECT_EQ(bench.marks().deferred, (Seqs{2, 3}));
}

TEST(DrainOrder, TheLastAttemptEndsTheRowAndSetsItsGroupFree) {
    DrainSettings settings = bench_settings();
    settings.max_attempts = 3;
    settings.pipeline_depth = 10;
    Bench bench(settings);
    bench.connect();
    bench.attempts = 2;
    bench.groups = {7, 7};
    bench.claim(2);
    bench.publish_all();
    bench.confirm(1, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    ASSERT_EQ(marks.ended.size(), 1U);
    EXPECT_EQ(marks.ended[0].outcome, EndedMark::Outcome::dead);
    EXPECT_EQ(marks.ended[0].code, "nack");
    EXPECT_EQ(marks.deferred, Seqs{2});
    EXPECT_EQ(bench.drain.plan().release_behind, Seqs{1}) << "made due in the same transaction";
}

TEST(DrainOrder, WithoutALimitNothingIsEverDead) {
    DrainSettings settings = bench_settings();
    settings.max_attempts = 0;
    Bench bench(settings);
    bench.connect();
    bench.attempts = 100000;
    bench.claim(1);
    bench.publish_all();
    bench.confirm(1, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().failed.size(), 1U);
}

TEST(DrainOrder, ARejectedRowStopsNobody) {
    Bench bench = with_groups({7, 7});
    ASSERT_EQ(bench.next().event->seq, 1);
    bench.drain.rejected(bench.now, "too_long", "why");
    EXPECT_EQ(bench.publish_all(), 1U);
    EXPECT_EQ(bench.published, Seqs{2});
}

TEST(DrainOrder, ALostConnectionGivesTheWholeGroupBack) {
    Bench bench = with_groups({7, 7, 7});
    bench.publish_all();
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
    EXPECT_TRUE(bench.drain.plan().release_behind.empty());
    bench.commit(0);
    EXPECT_EQ(bench.drain.carried(7), 0U);
}

TEST(DrainOrder, AnOldLeaseTakesTheYoungerRowsOfItsGroupAlong) {
    DrainSettings settings = bench_settings();
    settings.pipeline_depth = 10;
    settings.confirm_timeout = 60s;
    Bench bench(settings);
    bench.connect();
    bench.groups = {7, 7};
    bench.claim(2);
    bench.publish(1);
    bench.now += 20s;
    bench.drain.woken();
    bench.groups = {7, 8};
    bench.claim(2);
    bench.publish(1);
    EXPECT_EQ(bench.published, (Seqs{1, 4}));
    // Row 2 is released at half of its lease; row 3 must not go before it.
    bench.now += 10s;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{2, 3}));
}

TEST(DrainOrder, ARowThatOthersWaitForCallsThemAtItsEnd) {
    DrainSettings settings = bench_settings();
    settings.pipeline_depth = 10;
    Bench bench(settings);
    bench.connect();
    bench.deferred = true;
    bench.groups = {7, 7, 8};
    bench.claim(3);
    bench.publish_all();
    bench.confirm(1);
    bench.publish_all();
    bench.confirm(3);
    bench.now += 20ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, (Seqs{1, 2}));
    EXPECT_EQ(bench.drain.plan().release_behind, Seqs{2}) << "once for the group";
    bench.commit(0);
    bench.confirm(2);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().release_behind, Seqs{3});
}

TEST(DrainOrder, WhatWasDeferredBehindRowsInHandIsCalledWhenTheLastOfThemEnds) {
    Bench bench = with_groups({});
    bench.drain.woken();
    bench.groups = {7, 7};
    TransactionResult result;
    result.followed = {7};
    bench.claim(2, result);
    bench.publish_all();
    bench.confirm(1);
    bench.publish_all();
    bench.now += 20ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_TRUE(bench.drain.plan().release_behind.empty()) << "one of them is still on its way";
    bench.commit(0);
    bench.confirm(2);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().release_behind, Seqs{2});
}

TEST(DrainOrder, AnUnroutableMessageFailsAtItsAck) {
    Bench bench = with_groups({7, 7});
    bench.publish_all();
    bench.drain.returned(Channel::main, 1, "312 NO_ROUTE");
    EXPECT_EQ(bench.drain.in_flight(), 1U);
    bench.confirm(1);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    EXPECT_TRUE(marks.published.empty());
    ASSERT_EQ(marks.failed.size(), 1U);
    EXPECT_EQ(marks.failed[0].error, "unroutable: 312 NO_ROUTE");
    EXPECT_EQ(marks.deferred, Seqs{2});
}

TEST(DrainOrder, WhatWasReturnedBeforeTheConnectionBrokeIsNotCharged) {
    Bench bench = with_groups({7});
    bench.publish_all();
    bench.drain.returned(Channel::main, 1, "312 NO_ROUTE");
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, Seqs{1});
    EXPECT_TRUE(bench.marks().failed.empty());
}

// ---- stop_the_line ----

DrainSettings whole_line() {
    DrainSettings settings = bench_settings();
    settings.ordering = Ordering::stop_the_line;
    settings.max_attempts = 2;
    return settings;
}

TEST(DrainOrder, TheLineGivesBackWhatIsBehindAFailure) {
    Bench bench = with_groups({0, 0, 0}, whole_line());
    EXPECT_EQ(bench.publish_all(), 1U);
    bench.confirm(1, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().failed.size(), 1U);
    EXPECT_EQ(bench.marks().released, (Seqs{2, 3})) << "nothing has to be written to all of them";
    EXPECT_TRUE(bench.drain.plan().pause.empty());
}

TEST(DrainOrder, TheLineStopsAtADeadRow) {
    Bench bench(whole_line());
    bench.connect();
    bench.attempts = 1;
    bench.groups = {0, 0};
    bench.claim(2);
    bench.publish_all();
    bench.confirm(1, false, false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().ended.size(), 1U);
    EXPECT_NE(bench.drain.plan().pause.find("was not published: nack"), std::string::npos);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    bench.commit(0);
    EXPECT_EQ(bench.drain.state(), DrainerState::paused);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "nothing is claimed until somebody resumes it";
    bench.drain.configure(bench.now, bench.settings);
    bench.claim(0);
}

TEST(DrainOrder, TheLineStopsAtARejectedRow) {
    Bench bench = with_groups({0, 0}, whole_line());
    ASSERT_EQ(bench.next().event->seq, 1);
    bench.drain.rejected(bench.now, "too_long", "why");
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_FALSE(bench.drain.plan().pause.empty());
    EXPECT_EQ(bench.marks().released, Seqs{2});
}

// ---- Relay settings ----

TEST(DrainOrder, APausedRelayGivesBackWhatIsNotSentAndKeepsTheConnection) {
    Bench bench = with_groups({7, 7, 8});
    bench.publish_all();
    bench.settings.pipeline_depth = 10;
    bench.settings.paused = true;
    bench.drain.configure(bench.now, bench.settings);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, Seqs{2});
    bench.commit(0);
    EXPECT_EQ(bench.drain.state(), DrainerState::paused);
    bench.confirm(1);
    bench.confirm(2);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    bench.commit(0);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.settings.paused = false;
    bench.drain.configure(bench.now, bench.settings);
    bench.claim(0);
}

TEST(DrainOrder, AnotherOrderingWaitsUntilNothingIsInHand) {
    Bench bench = with_groups({7, 7});
    bench.publish_all();
    bench.settings.pipeline_depth = 10;
    bench.settings.ordering = Ordering::per_source;
    bench.drain.configure(bench.now, bench.settings);
    bench.next();
    EXPECT_EQ(bench.drain.settings().ordering, Ordering::per_key);
    bench.confirm(1);
    bench.publish_all();
    bench.confirm(2);
    bench.settle();
    bench.claim(0);
    EXPECT_EQ(bench.drain.settings().ordering, Ordering::per_source);
}

TEST(DrainOrder, APublishRateIsKept) {
    DrainSettings settings = bench_settings();
    settings.publish_rate = 5;
    settings.pipeline_depth = 100;
    settings.batch_size = 100;
    Bench bench(settings);
    bench.connect();
    bench.claim(5);
    std::size_t sent = 0;
    const Time end = bench.now + 1s;
    while (bench.now < end) {
        const Command command = bench.next();
        if (command.kind == Kind::publish) {
            bench.drain.sent(bench.now, bench.tag++, 1);
            sent++;
        } else if (command.kind == Kind::transact) {
            EXPECT_LE(bench.drain.plan().claim, 5U);
            bench.commit(5);
        } else {
            ASSERT_GT(command.until, bench.now);
            bench.now = std::min(command.until, end);
        }
    }
    EXPECT_GE(sent, 4U);
    EXPECT_LE(sent, 6U);
}

// ---- A row that kills its drainer ----

TEST(DrainOrder, TheSearchForAKillerClaimsByHalvesAndOneAfterTheOther) {
    Bench bench;
    bench.connect();
    bench.drain.suspect(8);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 4U);
    EXPECT_EQ(bench.drain.plan().suspicion, 4U);
    bench.commit(4);
    bench.publish_all();
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "nothing else is taken in hand meanwhile";
    bench.confirm(4, true);
    bench.settle();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 4U) << "then it is one of the other half";
    bench.commit(4);
    bench.publish_all();
    bench.confirm(8, true);
    bench.settle();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 10U) << "all 8 went well: nobody is suspected";
    EXPECT_EQ(bench.drain.plan().suspicion, 0U);
}

TEST(DrainOrder, TheSearchGoesOnUntilWhateverTheDrainerHadInHandWentWell) {
    Bench bench;
    bench.connect();
    for (std::size_t rows : {4U, 2U}) {
        bench.drain.suspect(rows);
    }
    for (int i = 0; i < 6; i++) {
        ASSERT_EQ(bench.kind(), Kind::transact);
        EXPECT_EQ(bench.drain.plan().suspicion, 1U) << "row " << i;
        EXPECT_EQ(bench.drain.plan().claim, 1U);
        EXPECT_EQ(bench.drain.plan().walk, 10U) << "the way to it may be long";
        bench.commit(1);
        bench.publish(1);
        bench.confirm(bench.tag - 1);
        bench.settle();
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().suspicion, 0U) << "two claims, six rows";
}

TEST(DrainOrder, WhatWasInHandBeforeTheSearchClearsNobody) {
    Bench bench;
    bench.connect();
    bench.claim(8);
    bench.publish(4);
    bench.drain.suspect(4);
    bench.confirm(4, true);
    bench.publish_all();
    bench.confirm(8, true);
    while (bench.drain.in_hand() > 0) {
        bench.settle();
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().suspicion, 2U);
}

TEST(DrainOrder, ARowWhoseMarkCannotBeWrittenDoesNotStopTheSearch) {
    Bench bench;
    bench.connect();
    bench.claim(1);
    bench.publish(1);
    bench.confirm(1);
    for (int i = 0; i < 2; i++) {
        bench.fail();
        bench.now += Duration{10000};
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    TransactionResult unwritten;
    unwritten.unwritten = {1};
    bench.commit(0, unwritten);
    bench.drain.suspect(4);
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 2U);
    EXPECT_EQ(bench.drain.plan().suspicion, 2U);
}

TEST(DrainOrder, TheSearchEndsWithOneRowAlone) {
    Bench bench;
    bench.connect();
    bench.drain.suspect(2);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 1U);
    EXPECT_EQ(bench.drain.plan().suspicion, 1U);
}

}  // namespace
}  // namespace outbox
