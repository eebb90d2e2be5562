#include "core/rate_limiter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace outbox {
namespace {

/// How many events go between `from` and `to` when they are tried every millisecond.
int taken(RateLimiter& limiter, std::int64_t from, std::int64_t to) {
    int count = 0;
    for (std::int64_t ms = from; ms < to; ms++) {
        while (limiter.take(Time{ms})) {
            count++;
        }
    }
    return count;
}

TEST(RateLimiter, WithoutARateNothingWaits) {
    RateLimiter limiter;
    for (int i = 0; i < 100000; i++) {
        ASSERT_TRUE(limiter.take(Time{5}));
    }
    EXPECT_EQ(limiter.next(Time{5}), Time{5});
    limiter.set_rate(-1);
    EXPECT_EQ(limiter.rate(), 0);
    EXPECT_TRUE(limiter.take(Time{5}));
}

TEST(RateLimiter, TheRateHoldsOverALongTime) {
    for (const std::int32_t rate : {1, 3, 7, 10, 500, 999, 1000, 12345}) {
        RateLimiter limiter(rate);
        const int burst = taken(limiter, 0, 1);
        EXPECT_EQ(burst, std::max(rate / 10, 1)) << rate;
        EXPECT_NEAR(taken(limiter, 1, 100001), rate * 100, 1) << rate;
    }
}

TEST(RateLimiter, AnyFullSecondHasAtMostATenthMore) {
    RateLimiter limiter(500);
    taken(limiter, 0, 1000);
    // A pause saves up no more than the burst.
    EXPECT_LE(taken(limiter, 60000, 61000), 550);
}

TEST(RateLimiter, SaysWhenTheNextMayGo) {
    RateLimiter limiter(3);
    EXPECT_EQ(limiter.next(Time{1000}), Time{1000});
    ASSERT_TRUE(limiter.take(Time{1000}));
    const Time next = limiter.next(Time{1000});
    EXPECT_EQ(next, Time{1334});
    EXPECT_EQ(limiter.next(Time{1100}), next);
    EXPECT_FALSE(limiter.take(next - Duration{1}));
    EXPECT_TRUE(limiter.take(next));
}

TEST(RateLimiter, RefusedTriesCostNothing) {
    RateLimiter limiter(10);
    ASSERT_TRUE(limiter.take(Time{0}));
    for (int ms = 0; ms < 100; ms++) {
        ASSERT_FALSE(limiter.take(Time{ms}));
    }
    EXPECT_TRUE(limiter.take(Time{100}));
}

TEST(RateLimiter, AnotherRateTakesEffectAtOnceAndOpensNoGate) {
    RateLimiter limiter(1000);
    EXPECT_EQ(taken(limiter, 0, 1), 100);
    for (int i = 0; i < 10; i++) {
        limiter.set_rate(1000);
        EXPECT_FALSE(limiter.take(Time{0}));
    }
    limiter.set_rate(1);
    EXPECT_FALSE(limiter.take(Time{0}));
    EXPECT_EQ(limiter.next(Time{0}), Time{1000});
    limiter.set_rate(0);
    EXPECT_EQ(limiter.next(Time{0}), Time{0});
}

TEST(RateLimiter, SharersTogetherKeepTheRate) {
    RateLimiter first(10, 3);
    RateLimiter second(10, 3);
    RateLimiter third(10, 3);
    taken(first, 0, 1);
    taken(second, 0, 1);
    taken(third, 0, 1);
    EXPECT_NEAR(taken(first, 1, 60001) + taken(second, 1, 60001) + taken(third, 1, 60001), 600, 3);
    RateLimiter slow(1, 16);
    EXPECT_EQ(taken(slow, 0, 1), 1);
    EXPECT_EQ(slow.next(Time{0}), Time{16000});
    slow.set_rate(1);
    EXPECT_EQ(taken(slow, 16000, 16001), 1) << "what was saved up fits the smaller bucket";
}

TEST(RateLimiter, AClockThatGoesBackBringsNothing) {
    RateLimiter limiter(10);
    ASSERT_TRUE(limiter.take(Time{1000}));
    EXPECT_FALSE(limiter.take(Time{0}));
    EXPECT_EQ(limiter.next(Time{0}), Time{1100});
    EXPECT_FALSE(limiter.take(Time{1099}));
    EXPECT_TRUE(limiter.take(Time{1100}));
}

TEST(RateLimiter, ExtremesDoNotOverflow) {
    RateLimiter limiter(std::numeric_limits<std::int32_t>::max(), 16);
    EXPECT_TRUE(limiter.take(Time{0}));
    EXPECT_TRUE(limiter.take(Time::max()));
    EXPECT_EQ(limiter.next(Time::max()), Time::max());
}

}  // namespace
}  // namespace outbox
