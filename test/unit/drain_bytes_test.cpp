// What of batch_bytes is taken by what is in hand.
#include <gtest/gtest.h>

#include <chrono>

#include "drain_bench.hpp"

namespace outbox {
namespace {

using namespace std::chrono_literals;
using Kind = Command::Kind;
using test::Bench;
using test::bench_settings;

TEST(DrainBytes, WhatHasTheMemoryOfItsBatchCountsUntilNothingOfTheBatchMayBeSent) {
    DrainSettings settings = bench_settings();
    settings.batch_bytes = 1000;
    settings.batch_size = 100;
    Bench bench(settings);
    bench.connect();
    bench.payload.assign(100, 'x');
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim_bytes, 1000U);
    bench.commit(6);
    EXPECT_EQ(bench.publish_all(), 4U);
    bench.drain.woken();
    bench.confirm(2, true);
    bench.publish(2);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_GT(bench.drain.plan().claim, 0U);
    EXPECT_EQ(bench.drain.plan().claim_bytes, 400U)
        << "what is to be marked is in memory too, with the others";
    bench.commit(4);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "1000 bytes are in hand";
    bench.confirm(6, true);
    ASSERT_EQ(bench.kind(), Kind::publish) << "of the second batch";
    bench.publish(4);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim_bytes, 600U) << "the first batch has nothing left to send";
}

TEST(DrainBytes, LargeRowsAreClaimedInSmallStepsSoThatTheBrokerIsKeptBusy) {
    constexpr std::size_t MEGABYTE = std::size_t{1024} * 1024;
    DrainSettings settings = bench_settings();
    settings.batch_bytes = 10 * MEGABYTE;
    Bench bench(settings);
    bench.connect();
    bench.payload.assign(2 * MEGABYTE, 'x');
    for (int i = 0; i < 2; i++) {
        bench.drain.woken();
        ASSERT_EQ(bench.kind(), Kind::transact);
        EXPECT_EQ(bench.drain.plan().claim_bytes, 4 * MEGABYTE);
        bench.commit(2);
        EXPECT_EQ(bench.publish_all(), 2U);
    }
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "2 megabytes have room, which is less than a quarter";
}

TEST(DrainBytes, ALargeRowWhoseMarkCannotBeWrittenKeepsNobodyFromBeingClaimed) {
    DrainSettings settings = bench_settings();
    settings.batch_bytes = 1000;
    Bench bench(settings);
    bench.connect();
    bench.payload.assign(900, 'x');
    bench.claim(1);
    bench.publish(1);
    bench.confirm(1);
    for (int i = 0; i < 2; i++) {
        bench.fail();
        bench.now += 10s;
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    TransactionResult unwritten;
    unwritten.unwritten = {1};
    bench.commit(0, unwritten);
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim_bytes, 1000U);
    bench.commit(1);
    bench.publish(1);
}

TEST(DrainBytes, APayloadWithMemoryOfItsOwnCountsUntilItsOutcomeIsKnown) {
    DrainSettings settings = bench_settings();
    settings.batch_bytes = 1000;
    Bench bench(settings);
    bench.connect();
    bench.payload.assign(300, 'x');
    bench.own_memory = true;
    bench.claim(3);
    EXPECT_EQ(bench.publish_all(), 3U);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "900 bytes are in hand, less than a quarter is left";
    EXPECT_TRUE(bench.drain.spent_payloads().empty());
    bench.confirm(2, true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published.size(), 2U);
    EXPECT_EQ(bench.drain.plan().claim_bytes, 700U) << "in the transaction that marks the others";
    const std::vector<const Event*> spent = bench.drain.spent_payloads();
    ASSERT_EQ(spent.size(), 2U);
    EXPECT_EQ(spent[0]->seq, 1);
    EXPECT_EQ(spent[1]->seq, 2);
    EXPECT_TRUE(bench.drain.spent_payloads().empty()) << "each is named once";
}

TEST(DrainBytes, APayloadThatIsGivenBackIsSpentToo) {
    Bench bench;
    bench.connect();
    bench.own_memory = true;
    bench.groups = {7, 7, 8};
    bench.claim(3);
    bench.publish(2);
    bench.lose_connection();
    EXPECT_EQ(bench.drain.spent_payloads().size(), 3U) << "sent, unsent and waiting for its group";
}

TEST(DrainBytes, AGroupCarriesThePayloadOfItsRowsThatMayBeSent) {
    Bench bench;
    bench.connect();
    bench.payload.assign(100, 'x');
    bench.groups = {7, 7, 8};
    bench.claim(3);
    EXPECT_EQ(bench.drain.carried_bytes(7), 200U);
    EXPECT_EQ(bench.drain.carried_bytes(8), 100U);
    EXPECT_EQ(bench.drain.carried_bytes(9), 0U);
    bench.publish(2);
    bench.confirm(2, true);
    EXPECT_EQ(bench.drain.carried_bytes(7), 100U);
    EXPECT_EQ(bench.drain.carried_bytes(8), 0U);
    bench.publish(1);
    bench.confirm(3);
    EXPECT_EQ(bench.drain.carried_bytes(7), 0U);
}

}  // namespace
}  // namespace outbox
