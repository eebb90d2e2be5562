#include "core/backoff.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace outbox {
namespace {

constexpr std::int64_t HUGE_COUNT = std::numeric_limits<std::int64_t>::max();

Backoff backoff(std::int64_t initial, double multiplier, std::int64_t max) {
    return Backoff{Duration{initial}, multiplier, Duration{max}};
}

TEST(Random, IsSplitmix64) {
    // The reference implementation's first values for seed 1234567.
    Random random(1234567);
    EXPECT_EQ(random.next(), 6457827717110365317U);
    EXPECT_EQ(random.next(), 3203168211198807973U);
    EXPECT_EQ(random.next(), 9817491932198370423U);
}

TEST(Random, UnitStaysBelowOneAndSpreads) {
    Random random(1);
    double sum = 0;
    for (int i = 0; i < 10000; ++i) {
        const double value = random.unit();
        ASSERT_GE(value, 0);
        ASSERT_LT(value, 1);
        sum += value;
    }
    EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Backoff, StaysBetweenHalfAndAllOfTheExponentialValue) {
    const Backoff retry = backoff(1000, 2, 300000);
    Random random(42);
    std::int64_t whole = 1000;
    for (std::int64_t failures = 1; failures <= 9;
         ++failures, whole = std::min<std::int64_t>(whole * 2, 300000)) {
        for (int i = 0; i < 1000; ++i) {
            const std::int64_t delay = retry.delay(failures, random).count();
            ASSERT_GE(delay, whole / 2) << failures;
            ASSERT_LE(delay, whole) << failures;
        }
    }
}

TEST(Backoff, ReachesBothEndsOfTheJitter) {
    const Backoff retry = backoff(4, 2, 4);
    Random random(7);
    std::set<std::int64_t> seen;
    for (int i = 0; i < 1000; ++i) {
        seen.insert(retry.delay(1, random).count());
    }
    EXPECT_EQ(seen, (std::set<std::int64_t>{2, 3, 4}));
}

TEST(Backoff, IsCappedWithoutOverflowForAnyCount) {
    Random random(3);
    for (const std::int64_t failures :
         {std::int64_t{20}, std::int64_t{64}, std::int64_t{100000}, HUGE_COUNT}) {
        const std::int64_t delay = backoff(1000, 2, 300000).delay(failures, random).count();
        EXPECT_GE(delay, 150000) << failures;
        EXPECT_LE(delay, 300000) << failures;
    }
    const std::int64_t extreme =
        backoff(HUGE_COUNT, 1e300, HUGE_COUNT).delay(HUGE_COUNT, random).count();
    EXPECT_GE(extreme, HUGE_COUNT / 2);
}

TEST(Backoff, MultiplierOneKeepsTheDelay) {
    Random random(3);
    const std::int64_t delay = backoff(1000, 1, 300000).delay(HUGE_COUNT, random).count();
    EXPECT_GE(delay, 500);
    EXPECT_LE(delay, 1000);
}

TEST(Backoff, CountsBelowOneAreTheFirstFailure) {
    Random random(3);
    for (const std::int64_t failures :
         {std::int64_t{0}, std::int64_t{-5}, std::numeric_limits<std::int64_t>::min()}) {
        const std::int64_t delay = backoff(1000, 2, 300000).delay(failures, random).count();
        EXPECT_GE(delay, 500);
        EXPECT_LE(delay, 1000);
    }
}

TEST(Backoff, NeverIsNegative) {
    Random random(3);
    EXPECT_EQ(backoff(0, 2, 1000).delay(5000, random).count(), 0);
    EXPECT_EQ(backoff(-10, 2, 1000).delay(5, random).count(), 0);
    EXPECT_EQ(backoff(10, -3, 1000).delay(2, random).count(), 0);
    EXPECT_EQ(backoff(10, 2, -1).delay(2, random).count(), 0);
    EXPECT_EQ(backoff(1, 2, 1).delay(1, random).count(), 1);
}

TEST(Backoff, RepeatsFromItsSeed) {
    Random a(99);
    Random b(99);
    const Backoff retry;
    for (std::int64_t i = 1; i < 100; ++i) {
        ASSERT_EQ(retry.delay(i, a), retry.delay(i, b));
    }
}

}  // namespace
}  // namespace outbox
