#include "core/claim_order.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "drain_bench.hpp"

namespace outbox {
namespace {

using Seqs = std::vector<std::int64_t>;
using Verdict = ClaimOrder::Verdict;
using test::Bench;
using test::bench_settings;

ClaimOrder::Limits limits(std::size_t rows, std::int64_t bytes) {
    return {.rows = rows, .changes = 100, .bytes = bytes, .per_group = {.rows = 3}};
}
const ClaimOrder::Limits WIDE = limits(100, 1 << 20);

ClaimOrder::Limits leaving(std::size_t rows_per_group, std::size_t rows_to_leave) {
    ClaimOrder::Limits limits = WIDE;
    limits.per_group.rows = rows_per_group;
    limits.rows_to_leave = rows_to_leave;
    return limits;
}

Candidate row(std::int64_t seq, std::optional<std::uint64_t> group = std::nullopt,
              std::int64_t holder = 0) {
    return {seq, group, holder, 10};
}

Seqs deferred(const ClaimOrder& order) {
    Seqs seqs;
    for (const ClaimOrder::Deferral& deferral : order.deferrals()) {
        seqs.push_back(deferral.seq);
    }
    return seqs;
}

TEST(ClaimOrder, RowsWithoutAGroupAreNeverBlocked) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    order.block(row(1));
    EXPECT_EQ(order.judge_fresh(row(2)), Verdict::take);
    EXPECT_EQ(order.judge_due(row(3)), Verdict::take);
}

TEST(ClaimOrder, TakesNoMoreRowsOrBytesThanThereIsRoomFor) {
    Bench bench;
    ClaimOrder order(bench.drain, limits(2, 15));
    EXPECT_EQ(order.judge_fresh(row(1)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(2)), Verdict::full) << "bytes";
    ClaimOrder large(bench.drain, limits(2, 5));
    EXPECT_EQ(large.judge_fresh(row(1)), Verdict::take) << "a first row may be larger";
    ClaimOrder few(bench.drain, limits(1, 1000));
    EXPECT_EQ(few.judge_fresh(row(1)), Verdict::take);
    EXPECT_EQ(few.judge_fresh(row(2)), Verdict::full) << "rows";
}

TEST(ClaimOrder, ChangesNoMoreRowsThanItMaySoThatOneRowAtFaultIsFoundByHalves) {
    Bench bench;
    ClaimOrder::Limits few = WIDE;
    few.changes = 2;
    ClaimOrder order(bench.drain, few);
    EXPECT_TRUE(order.is_empty());
    EXPECT_EQ(order.judge_fresh(row(1, 7, 99)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(5, 8, 3)), Verdict::defer);
    EXPECT_TRUE(order.is_full());
    EXPECT_EQ(order.judge_fresh(row(6, 9, 4)), Verdict::full) << "not deferred either";
    EXPECT_EQ(order.judge_fresh(row(7)), Verdict::full);
    EXPECT_EQ(deferred(order), (Seqs{5}));
    few.changes = 1;
    ClaimOrder one(bench.drain, few);
    EXPECT_EQ(one.judge_fresh(row(5, 8, 3)), Verdict::defer);
    EXPECT_FALSE(one.is_empty());
    EXPECT_EQ(one.judge_due(row(6, 9, 4)), Verdict::full);
}

TEST(ClaimOrder, AGroupOfLargeRowsIsCrowdedByTheirBytes) {
    Bench bench;
    bench.connect();
    bench.groups = {7};
    bench.payload.assign(10, 'x');
    bench.claim(1);
    ClaimOrder::Limits large = WIDE;
    large.per_group.bytes = 25;
    large.rows_to_leave = 100;
    ClaimOrder order(bench.drain, large);
    EXPECT_EQ(order.judge_fresh(row(10, 7)), Verdict::take) << "20 of 25 bytes";
    EXPECT_EQ(order.judge_fresh(row(11, 7)), Verdict::leave);
    EXPECT_EQ(order.judge_fresh(row(12, 8)), Verdict::take) << "another group";
    large.per_group.bytes = 5;
    ClaimOrder larger(bench.drain, large);
    EXPECT_EQ(larger.judge_fresh(row(10, 7)), Verdict::leave);
    EXPECT_EQ(larger.judge_fresh(row(11, 8)), Verdict::take) << "a first row may be larger";
    EXPECT_EQ(larger.judge_due(row(13, 8)), Verdict::defer);
}

TEST(ClaimOrder, AFreshRowGoesBehindWhatHoldsItsGroup) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(5, 7, 3)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(6, 8)), Verdict::take) << "another group";
    EXPECT_EQ(order.judge_fresh(row(9, 7)), Verdict::defer) << "behind the one that was deferred";
    ASSERT_EQ(order.deferrals().size(), 2U);
    EXPECT_EQ(order.deferrals()[0].behind, 3);
    EXPECT_EQ(order.deferrals()[1].behind, 0);
}

TEST(ClaimOrder, AFreshRowGoesBeforeWhatWaitsForIt) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(5, 7, 8)), Verdict::take);
    EXPECT_TRUE(order.leads(5)) << "and calls it at its end";
}

TEST(ClaimOrder, AHotKeyLeavesRoomForOthers) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    for (std::int64_t seq = 1; seq <= 3; seq++) {
        EXPECT_EQ(order.judge_fresh(row(seq, 7)), Verdict::take);
    }
    EXPECT_EQ(order.judge_fresh(row(4, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(5, 8)), Verdict::take);
    EXPECT_EQ(order.followed(), std::vector<std::uint64_t>{7});
}

TEST(ClaimOrder, WhatACrowdedKeyHasNoRoomForIsLeftWhereItIs) {
    Bench bench;
    ClaimOrder order(bench.drain, leaving(2, 3));
    EXPECT_EQ(order.judge_fresh(row(1, 7)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(2, 7)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(3, 7)), Verdict::leave);
    EXPECT_EQ(order.judge_fresh(row(4, 8)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(5, 7, 4)), Verdict::leave)
        << "what else it waits for is seen when it is shown again";
    EXPECT_EQ(order.judge_due(row(6, 7)), Verdict::defer) << "not before those that are left";
    EXPECT_EQ(deferred(order), Seqs{6});
    EXPECT_TRUE(order.leaves(3));
    EXPECT_FALSE(order.leaves(4));
    EXPECT_EQ(order.judge_fresh(row(8, 7)), Verdict::leave);
    EXPECT_EQ(order.judge_fresh(row(9, 7)), Verdict::defer) << "so many may be left";
}

TEST(ClaimOrder, NothingOfAGroupGoesBeforeWhatWasLeft) {
    Bench bench;
    ClaimOrder order(bench.drain, leaving(3, 10));
    order.set_left({{7, 5}});
    EXPECT_EQ(order.judge_fresh(row(4, 7)), Verdict::take)
        << "it is shown, those from 5 on are not";
    EXPECT_EQ(order.judge_due(row(3, 7)), Verdict::take) << "it comes before them";
    EXPECT_EQ(order.judge_fresh(row(9, 7)), Verdict::leave);
    EXPECT_EQ(order.judge_due(row(11, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(12, 8)), Verdict::take);
}

TEST(ClaimOrder, WhatIsShownAgainAndFindsNoRoomGoesOnStoppingItsGroup) {
    Bench bench;
    ClaimOrder order(bench.drain, leaving(1, 10));
    order.set_left({{7, 9}});
    EXPECT_EQ(order.judge_fresh(row(3, 7)), Verdict::take) << "it appeared late";
    EXPECT_EQ(order.judge_fresh(row(5, 7)), Verdict::leave);
    EXPECT_EQ(order.judge_due(row(6, 7)), Verdict::defer);
}

TEST(ClaimOrder, RowsInHandCountForTheCap) {
    DrainSettings settings = bench_settings();
    Bench bench(settings);
    bench.connect();
    bench.groups = {7, 7};
    bench.claim(2);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(3, 7)), Verdict::take);
    EXPECT_EQ(order.judge_fresh(row(4, 7)), Verdict::defer);
}

TEST(ClaimOrder, AVisibleRowThatCannotBeTakenBlocksItsGroupFromThereOn) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    order.block(row(5, 7));
    EXPECT_EQ(order.judge_fresh(row(4, 7)), Verdict::take) << "it comes before";
    EXPECT_EQ(order.judge_due(row(6, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(8, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(9, 8)), Verdict::take);
    EXPECT_TRUE(order.blocked().contains(7));
}

TEST(ClaimOrder, ADueRowNeedsTheOneBeforeItToBeOnItsWay) {
    Bench bench;
    bench.connect();
    bench.deferred = true;
    bench.groups = {7};
    bench.claim(1);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_due(row(2, 7, 1)), Verdict::take) << "1 is in hand";
    EXPECT_EQ(order.judge_due(row(4, 7, 2)), Verdict::take) << "2 is taken here";
    EXPECT_EQ(order.judge_due(row(9, 8, 6)), Verdict::defer) << "6 waits for something";
    EXPECT_EQ(order.judge_due(row(10, 8, 9)), Verdict::defer);
    EXPECT_TRUE(order.leads(2));
}

TEST(ClaimOrder, AFailedRowInHandIsNotOnItsWay) {
    Bench bench;
    bench.connect();
    bench.deferred = true;
    bench.groups = {7};
    bench.claim(1);
    bench.publish_all();
    bench.confirm(1, false, false);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_due(row(2, 7, 1)), Verdict::defer);
}

TEST(ClaimOrder, WhatIsBehindALockedRowIsNotKept) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    for (const auto& [seq, group] : std::vector<std::pair<std::int64_t, std::uint64_t>>{
             {1, 7}, {2, 8}, {3, 7}, {4, 8}, {5, 9}}) {
        order.judge_fresh(row(seq, group));
    }
    // Row 2 was locked.
    EXPECT_EQ(order.behind_locked(Seqs{1, 3, 4, 5}), Seqs{4});
    EXPECT_TRUE(order.blocked().contains(8));
}

TEST(ClaimOrder, TheWholeLineStopsInsteadOfDeferring) {
    DrainSettings settings = bench_settings();
    settings.ordering = Ordering::stop_the_line;
    Bench bench(settings);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(1, 0)), Verdict::take);
    order.block(row(2, 0));
    EXPECT_EQ(order.judge_fresh(row(3, 0)), Verdict::stop);
    EXPECT_TRUE(deferred(order).empty());
}

}  // namespace
}  // namespace outbox
