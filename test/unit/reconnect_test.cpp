#include "core/reconnect.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace outbox::test {
namespace {

using namespace std::chrono_literals;

TEST(Reconnect, TakesBrokersInTurnNoFasterThanOneASecond) {
    Reconnect reconnect;
    Random random(1);
    reconnect.set_brokers(Time{0}, 3);
    Time now{0};
    for (std::size_t i = 0; i < 9; i++) {
        EXPECT_EQ(reconnect.broker(), i % 3);
        reconnect.attempted(now);
        reconnect.failed(now, false, false, random);
        EXPECT_GE(reconnect.at(), now + 1s);
        now = reconnect.at();
    }
}

TEST(Reconnect, SlowsDownByRounds) {
    Reconnect reconnect;
    Random random(1);
    reconnect.set_brokers(Time{0}, 2);
    Time now{0};
    Duration longest{0};
    for (int i = 0; i < 40; i++) {
        reconnect.attempted(now);
        reconnect.failed(now, false, false, random);
        const Duration delay = reconnect.at() - now;
        if (i % 2 == 0) {
            EXPECT_LE(delay, 1250ms) << "within a round";
        }
        longest = std::max(longest, delay);
        now = reconnect.at();
    }
    EXPECT_GE(longest, 15s);
    EXPECT_LE(longest, 30s);
}

TEST(Reconnect, AfterALostConnectionTheNextBrokerIsTriedSoon) {
    Reconnect reconnect;
    Random random(1);
    reconnect.set_brokers(Time{0}, 2);
    for (int i = 0; i < 10; i++) {
        reconnect.attempted(Time{0});
        reconnect.failed(Time{0}, false, false, random);
    }
    const std::size_t connected = reconnect.broker();
    reconnect.attempted(Time{1h});
    reconnect.failed(Time{2h}, false, true, random);
    EXPECT_NE(reconnect.broker(), connected);
    EXPECT_GE(reconnect.at(), Time{2h} + 1s) << "a cluster is given the time to find itself";
    EXPECT_LE(reconnect.at(), Time{2h} + 1250ms);
}

TEST(Reconnect, WaitsLongOnlyWhenEveryBrokerNeedsAPerson) {
    Reconnect reconnect;
    Random random(1);
    reconnect.set_brokers(Time{0}, 2);
    reconnect.attempted(Time{0});
    reconnect.failed(Time{0}, true, false, random);
    EXPECT_LE(reconnect.at(), Time{1250ms});
    reconnect.attempted(Time{2s});
    reconnect.failed(Time{2s}, false, false, random);
    EXPECT_LE(reconnect.at(), Time{4s});
    for (int i = 0; i < 2; i++) {
        reconnect.attempted(Time{10s});
        reconnect.failed(Time{10s}, true, false, random);
    }
    EXPECT_GE(reconnect.at(), Time{20s});
}

TEST(Reconnect, NewSettingsEndTheWait) {
    Reconnect reconnect;
    Random random(1);
    reconnect.set_brokers(Time{0}, 1);
    reconnect.attempted(Time{100s});
    reconnect.failed(Time{100s}, true, false, random);
    reconnect.hurry(Time{100s});
    EXPECT_EQ(reconnect.at(), Time{101s});
    reconnect.failed(Time{102s}, true, false, random);
    reconnect.set_brokers(Time{103s}, 3);
    EXPECT_EQ(reconnect.at(), Time{103s});
    EXPECT_EQ(reconnect.broker(), 0U);
}

}  // namespace
}  // namespace outbox::test
