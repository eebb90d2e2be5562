#include <gtest/gtest.h>

#include <cstdint>
#include <string>
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

// A bench that is connected, has claimed `claimed` rows and sent `sent` of them.
Bench running(std::size_t claimed, std::size_t sent) {
    Bench bench;
    bench.connect();
    bench.claim(claimed);
    bench.publish(sent);
    return bench;
}

// ---- Being woken ----

TEST(DrainOperator, NobodyNeedsToWakeItWhileItIsGoingToLookAnyway) {
    Bench bench;
    EXPECT_FALSE(bench.drain.wants_waking()) << "it looks as soon as it is connected";
    bench.connect();
    bench.claim(0);
    EXPECT_TRUE(bench.drain.wants_waking()) << "it has looked and found nothing";
    bench.drain.woken();
    EXPECT_FALSE(bench.drain.wants_waking());
    TransactionResult more;
    more.more = true;
    bench.claim(11, more);
    EXPECT_FALSE(bench.drain.wants_waking()) << "there is more, and no room for it";
}

TEST(DrainOperator, ADisabledDrainerIsWokenOnceAndLooksWhenItIsEnabled) {
    Bench bench = running(0, 0);
    DrainSettings settings = bench.settings;
    settings.enabled = false;
    bench.drain.configure(bench.now, settings);
    bench.drain.woken();
    EXPECT_FALSE(bench.drain.wants_waking());
    ASSERT_EQ(bench.kind(), Kind::disconnect);
    bench.drain.connection_closed(bench.now);
    EXPECT_EQ(bench.kind(), Kind::wait);
    EXPECT_FALSE(bench.drain.wants_waking()) << "nothing was looked for meanwhile";
    bench.drain.configure(bench.now, bench.settings);
    bench.now += Duration{1000};  // the pace of attempts
    bench.connect();
    bench.claim(1);
}

// ---- Settings ----

TEST(DrainOperator, AnotherBrokerIsConnectedToOnceTheBatchInHandIsSettled) {
    Bench bench = running(6, 4);
    DrainSettings settings = bench.settings;
    settings.broker_uri = "amqp://other";
    bench.drain.configure(bench.now, settings);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait) << "nothing new is claimed, four are unconfirmed";
    bench.confirm(4, true);
    EXPECT_EQ(bench.publish_all(), 2U) << "the old broker gets the rest";
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    bench.commit(0);
    bench.confirm(6, true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().published, (Seqs{5, 6}));
    bench.commit(0);
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::disconnect);
    EXPECT_EQ(command.reason, "");
    bench.drain.connection_closed(bench.now);
    bench.now += Duration{1000};  // the pace of attempts
    bench.connect();
    bench.claim(1);
}

TEST(DrainOperator, TheSameBrokerStaysConnected) {
    Bench bench = running(4, 4);
    DrainSettings settings = bench.settings;
    settings.pipeline_depth = 100;
    settings.batch_size = 50;
    bench.drain.configure(bench.now, settings);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 50U);
    bench.commit(10);
    EXPECT_EQ(bench.publish_all(), 10U);
}

TEST(DrainOperator, TheExchangeOfAnotherBrokerIsNotSoughtAtTheOldOne) {
    Bench bench = running(6, 4);
    DrainSettings settings = bench.settings;
    settings.broker_uri = "amqp://other";
    settings.exchange = "elsewhere";
    bench.drain.configure(bench.now, settings);
    bench.confirm(4, true);
    EXPECT_EQ(bench.publish_all(), 2U) << "the old broker gets the rest";
    bench.settle();
    EXPECT_EQ(bench.drain.settings().exchange, "events");
    bench.confirm(6, true);
    bench.settle();
    ASSERT_EQ(bench.kind(), Kind::disconnect);
    EXPECT_EQ(bench.drain.settings().exchange, "elsewhere");
}

TEST(DrainOperator, AChangeThatIsTakenBackChangesNothing) {
    Bench bench = running(4, 4);
    DrainSettings settings = bench.settings;
    settings.broker_uri = "amqp://other";
    bench.drain.configure(bench.now, settings);
    bench.drain.configure(bench.now, bench.settings);
    bench.confirm(4, true);
    bench.settle();
    bench.drain.woken();
    bench.claim(0);
    EXPECT_EQ(bench.kind(), Kind::wait);
}

TEST(DrainOperator, AnotherBrokerEndsTheBackoffOfTheOldOne) {
    Bench bench;
    ASSERT_EQ(bench.kind(), Kind::connect);
    bench.drain.connection_lost(bench.now, true, "access refused");
    EXPECT_EQ(bench.kind(), Kind::wait);
    DrainSettings settings = bench.settings;
    settings.broker_uri = "amqp://other";
    bench.drain.configure(bench.now, settings);
    bench.now += 1s;
    EXPECT_EQ(bench.kind(), Kind::connect) << "after no more than the pace of attempts";
}

TEST(DrainOperator, DisabledGivesBackWhatIsUnsentAndLetsGoOfTheBroker) {
    Bench bench = running(6, 4);
    DrainSettings settings = bench.settings;
    settings.enabled = false;
    bench.drain.configure(bench.now, settings);
    EXPECT_EQ(bench.drain.state(), DrainerState::disabled);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().claim, 0U);
    EXPECT_EQ(bench.marks().released, (Seqs{5, 6}));
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.confirm(4, true);
    bench.settle();
    ASSERT_EQ(bench.kind(), Kind::disconnect);
    bench.drain.connection_closed(bench.now);
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 1h;
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.drain.configure(bench.now, bench.settings);
    bench.connect();
}

TEST(DrainOperator, MisconfiguredPublishesNothingUntilItIsHealed) {
    Bench bench;
    bench.drain.set_misconfigured(true);
    EXPECT_EQ(bench.kind(), Kind::wait);
    EXPECT_EQ(bench.drain.state(), DrainerState::misconfigured);
    bench.now += 1h;
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.drain.set_misconfigured(false);
    bench.connect();
}

TEST(DrainOperator, WithoutABrokerItIsIdle) {
    DrainSettings settings = bench_settings();
    settings.broker_uri = "";
    Bench bench(settings);
    EXPECT_EQ(bench.kind(), Kind::wait);
    EXPECT_EQ(bench.drain.state(), DrainerState::idle);
    settings.broker_uri = "amqp://broker";
    bench.drain.configure(bench.now, settings);
    bench.connect();
}

TEST(DrainOperator, NothingIsClaimedWhileClaimsAreHeld) {
    Bench bench;
    bench.drain.hold_claims(true);
    bench.connect();
    bench.drain.woken();
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 1h;
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.drain.hold_claims(false);
    bench.fail();
    bench.drain.hold_claims(true);
    bench.now += 1h;
    EXPECT_EQ(bench.kind(), Kind::wait) << "not even what failed is tried again";
    bench.drain.hold_claims(false);
    bench.claim(1);
}

TEST(DrainOperator, StatesAreNamedByWhatItDoes) {
    Bench bench;
    const auto state = [&bench] { return std::string(to_string(bench.drain.state())); };
    ASSERT_EQ(bench.kind(), Kind::connect);
    EXPECT_EQ(state(), "connecting");
    bench.lose_connection();
    EXPECT_EQ(state(), "backoff");
    bench.now += 1s;
    bench.connect();
    bench.claim(0);
    EXPECT_EQ(state(), "idle");
    bench.drain.woken();
    bench.claim(1);
    EXPECT_EQ(state(), "publishing");
    bench.publish(1);
    bench.drain.blocked();
    EXPECT_EQ(state(), "blocked");
    bench.drain.unblocked();
    EXPECT_EQ(state(), "publishing");
    bench.confirm(1);
    bench.fail();
    EXPECT_EQ(state(), "backoff");
    bench.drain.stop(bench.now);
    EXPECT_EQ(state(), "stopping");
}

// ---- Waits ----
// A wake costs little, thousands of them a second do not: each test counts the wakes of a minute in
// which nothing happens. The poll interval is a second.

TEST(DrainWaits, AnIdleDrainWakesToPollOnly) {
    Bench bench = running(0, 0);
    std::size_t claims = 0;
    const Time end = bench.now + 60s;
    while (bench.now < end) {
        const Command command = bench.next();
        if (command.kind == Kind::transact) {
            bench.commit(0);
            claims++;
        } else {
            bench.now = command.until;
        }
    }
    EXPECT_GE(claims, 59U);
    EXPECT_LE(claims, 61U);
}

TEST(DrainWaits, ABlockedBrokerCostsNothing) {
    Bench bench = running(4, 0);
    bench.drain.blocked();
    // Until half of the lease, when the rows are given back.
    EXPECT_LE(bench.wakes_in(29s), 40U);
    bench.now += 1s;
    bench.settle();
    EXPECT_LE(bench.wakes_in(60s), 80U);
}

TEST(DrainWaits, AFullHandCostsNothing) {
    Bench bench = running(10, 4);
    bench.drain.woken();
    bench.claim(10);
    bench.drain.woken();
    EXPECT_LE(bench.wakes_in(4900ms), 10U) << "more than a batch in hand and the window is full";
}

TEST(DrainWaits, ABackoffAfterAFailedTransactionCostsNothing) {
    Bench bench = running(4, 4);
    DrainSettings settings = bench.settings;
    settings.confirm_timeout = 1h;
    bench.drain.configure(bench.now, settings);
    bench.confirm(2);
    bench.now += 10ms;
    std::size_t wakes = 0;
    for (int i = 0; i < 10; i++) {
        bench.fail();
        for (Command command = bench.next(); command.kind == Kind::wait; command = bench.next()) {
            bench.now = command.until;
            wakes++;
        }
    }
    EXPECT_LE(wakes, 60U);
}

TEST(DrainWaits, ALostBrokerAfterAFailedTransactionCostsNothing) {
    Bench bench = running(4, 4);
    bench.confirm(4, true);
    bench.fail();
    bench.now += 100ms;
    bench.settle();
    DrainSettings settings = bench.settings;
    settings.enabled = false;
    bench.drain.configure(bench.now, settings);
    ASSERT_EQ(bench.kind(), Kind::disconnect);
    bench.drain.connection_closed(bench.now);
    EXPECT_LE(bench.wakes_in(60s), 70U) << "nothing is left to be tried again";
}

TEST(DrainWaits, AStopWithoutBrokerAndDatabaseDoesNotSpin) {
    Bench bench = running(4, 4);
    bench.lose_connection();
    bench.fail();
    bench.drain.stop(bench.now);
    std::size_t wakes = 0;
    while (wakes < 1000) {
        const Command step = bench.drain.next(bench.now);
        if (step.kind == Kind::exit) {
            break;
        }
        if (step.kind == Kind::transact) {
            bench.drain.transaction_failed(bench.now);
            continue;
        }
        ASSERT_EQ(step.kind, Kind::wait);
        ASSERT_GT(step.until, bench.now) << "a wait that is over at once is a busy loop";
        bench.now = step.until;
        wakes++;
    }
    EXPECT_LE(wakes, 30U);
}

}  // namespace
}  // namespace outbox
