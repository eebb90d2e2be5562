// What in hand holds later rows of its group back, each case found by the simulation.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/claim_order.hpp"
#include "core/drain.hpp"
#include "drain_bench.hpp"

namespace outbox {
namespace {

using Kind = Command::Kind;
using Seqs = std::vector<std::int64_t>;
using Verdict = ClaimOrder::Verdict;
using test::Bench;
using test::bench_settings;
using namespace std::chrono_literals;

const ClaimOrder::Limits WIDE{
    .rows = 100, .changes = 100, .bytes = 1 << 20, .per_group = {.rows = 64}};

Candidate row(std::int64_t seq, std::uint64_t group) {
    return {seq, group, 0, 10};
}

TEST(DrainHold, ALaterRowIsNotClaimedInTheTransactionThatGivesAnEarlierOneBack) {
    DrainSettings settings = bench_settings();
    settings.confirm_timeout = 60s;
    Bench bench(settings);
    bench.connect();
    bench.groups = {7, 7};
    bench.claim(2);
    bench.publish(1);
    bench.now += 30s;
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_EQ(bench.marks().released, Seqs{2});
    ASSERT_GT(bench.drain.plan().claim, 0U);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(3, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(4, 8)), Verdict::take) << "another group";
}

// Its connection is lost, and of rows 1 and 2 only the second can be given back.
TEST(DrainHold, ARowThatCannotBeGivenBackGoesBeforeLaterOnes) {
    Bench bench;
    bench.connect();
    bench.groups = {7, 7};
    bench.claim(2);
    bench.publish(1);
    bench.lose_connection();
    for (int i = 0; i < 2; i++) {
        bench.fail();
        bench.now += 1s;
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    TransactionResult unwritten;
    unwritten.unwritten = {1};
    bench.commit(0, unwritten);
    ClaimOrder order(bench.drain, WIDE);
    EXPECT_EQ(order.judge_fresh(row(2, 7)), Verdict::defer);
    EXPECT_EQ(order.judge_fresh(row(5, 8)), Verdict::take);
}

TEST(DrainHold, AnEarlierRowThanTheOneThatFailedIsNotPutBehindIt) {
    Bench bench;
    bench.connect();
    bench.next_seq = 5;
    bench.groups = {7};
    bench.claim(1);
    bench.publish(1);
    bench.next_seq = 2;
    bench.groups = {7};
    bench.drain.woken();
    bench.claim(1);
    bench.confirm(1, false, false);
    bench.publish(1);
    EXPECT_EQ(bench.published, (Seqs{5, 2}));
}

TEST(DrainHold, WhatIsDueBeyondTheWalkWaits) {
    Bench bench;
    ClaimOrder order(bench.drain, WIDE);
    order.set_walked_to(10);
    EXPECT_EQ(order.judge_due(row(11, 7)), Verdict::wait);
    EXPECT_EQ(order.judge_due(row(10, 7)), Verdict::take);
    EXPECT_EQ(order.judge_due({12, std::nullopt, 0, 10}), Verdict::take) << "it keeps no order";
    EXPECT_TRUE(order.deferrals().empty());
}

TEST(DrainHold, AWalkThatFindsNothingYetDoesNotEndTheSearchForAKiller) {
    Bench bench;
    bench.connect();
    bench.drain.suspect(8);
    TransactionResult on_its_way;
    on_its_way.more = true;
    bench.claim(0, on_its_way);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().suspicion, 4U);
    bench.commit(0);
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().suspicion, 0U) << "there is nothing to suspect any more";
}

}  // namespace
}  // namespace outbox
