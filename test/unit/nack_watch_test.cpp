#include "core/nack_watch.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "drain_bench.hpp"

namespace outbox::test {
namespace {

using namespace std::chrono_literals;
using Kind = Command::Kind;

TEST(NackWatch, OnlyASecondRefusalOfTheSameOnOneConnectionCounts) {
    NackWatch watch;
    watch.nacked(Time{0}, 1);
    watch.nacked(Time{1s}, 2);
    EXPECT_FALSE(watch.wants_another());
    watch.forget();
    watch.nacked(Time{2s}, 1);
    EXPECT_FALSE(watch.wants_another());
    watch.nacked(Time{3s}, 1);
    EXPECT_TRUE(watch.wants_another());
    watch.renewed(Time{3s});
    watch.forget();
    EXPECT_FALSE(watch.wants_another());
}

// How often another connection is asked for within an hour in which a row is refused every second.
TEST(NackWatch, AsksMoreAndMoreRarely) {
    NackWatch watch;
    int asked = 0;
    for (Time now{0}; now < Time{1h}; now += 1s) {
        watch.nacked(now, 1);
        if (watch.wants_another()) {
            asked++;
            watch.renewed(now);
            watch.forget();
        }
    }
    EXPECT_GE(asked, 8);
    EXPECT_LE(asked, 12);
    // After a time without refusals it is soon tried again.
    watch.nacked(Time{2h}, 1);
    watch.nacked(Time{2h} + 1s, 1);
    EXPECT_TRUE(watch.wants_another());
}

/// The one row is claimed, sent and refused.
void refuse(Bench& bench, std::uint64_t tag) {
    bench.publish(1);
    bench.confirm(tag, false, false);
}

TEST(NackWatch, TheDrainTakesAnotherConnectionWhenNothingIsOnItsWay) {
    Bench bench;
    bench.connect();
    bench.claim(2);
    refuse(bench, 1);
    bench.publish(1);
    bench.now += 10ms;
    bench.settle();
    // The row comes again, while the other one is unconfirmed.
    bench.next_seq = 1;
    bench.now += 2s;
    bench.drain.woken();
    bench.claim(1);
    refuse(bench, 3);
    bench.now += 10ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    bench.commit(3);
    EXPECT_EQ(bench.kind(), Kind::wait) << "nothing more is sent on this connection";
    bench.confirm(2);
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::disconnect);
    EXPECT_FALSE(command.reason.empty());
    bench.lose_connection();
    bench.now += 10ms;
    bench.settle();
    bench.now += 2s;
    bench.connect();
    bench.claim(1);
    refuse(bench, 1);
    bench.now += 10ms;
    bench.settle();
    EXPECT_EQ(bench.kind(), Kind::wait) << "on the new one it counts anew";
}

}  // namespace
}  // namespace outbox::test
