// Exchanges, and how a message that the broker cannot take is kept from its neighbours.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/drain.hpp"
#include "drain_bench.hpp"

namespace outbox::test {
namespace {

using namespace std::chrono_literals;
using Kind = Command::Kind;
using Seqs = std::vector<std::int64_t>;

constexpr const char* NO_EXCHANGE = "NOT_FOUND - no exchange 'events' in vhost '/'";
constexpr const char* REFUSED = "ACCESS_REFUSED - access to exchange 'events' in vhost '/' refused";
constexpr const char* NO_REASON = "PRECONDITION_FAILED - fast reply consumer does not exist";

DrainSettings deep() {
    DrainSettings settings = bench_settings();
    settings.pipeline_depth = 100;
    settings.batch_size = 100;
    return settings;
}

/// So many rows are claimed and sent.
Bench sending(std::size_t rows, const DrainSettings& settings = deep()) {
    Bench bench(settings);
    bench.connect();
    bench.claim(rows);
    EXPECT_EQ(bench.publish_all(), rows);
    return bench;
}

/// Writes what is to be written, then claims.
void claim_more(Bench& bench, std::size_t rows) {
    bench.drain.woken();
    ASSERT_EQ(bench.kind(), Kind::transact);
    while (bench.drain.plan().claim == 0) {
        bench.commit(0);
        ASSERT_EQ(bench.kind(), Kind::transact);
    }
    bench.commit(rows);
}

/// The broker closes the channel; it is open again at once.
void close_channel(Bench& bench, Channel channel, std::uint16_t code, const char* why) {
    ASSERT_TRUE(bench.drain.channel_closed(bench.now, channel, code, why));
    bench.drain.channel_opened(channel);
    (channel == Channel::main ? bench.tag : bench.trial_tag) = 1;
}

/// Lets the machine go on until it waits, sending what it wants to send; gives what went on trial.
Seqs confirm_trials(Bench& bench, std::int64_t poison) {
    Seqs tried;
    for (Command command = bench.next(); command.kind != Kind::wait; command = bench.next()) {
        if (command.kind == Kind::transact) {
            bench.commit(0);
            continue;
        }
        EXPECT_EQ(command.kind, Kind::publish);
        const std::int64_t seq = command.event->seq;
        const std::uint64_t tag = command.channel == Channel::main ? bench.tag : bench.trial_tag;
        bench.send(command);
        if (command.channel == Channel::trial) {
            tried.push_back(seq);
        }
        if (seq == poison) {
            EXPECT_EQ(command.channel, Channel::trial) << "with others beside it";
            close_channel(bench, Channel::trial, 406, NO_REASON);
        } else {
            EXPECT_TRUE(bench.drain.confirmed(bench.now, command.channel, tag, false, true));
        }
    }
    return tried;
}

/// A replay of these events begins.
void replay(Bench& bench, const std::vector<Event>& events) {
    bench.drain.let_replay(true);
    ReplayResult result;
    result.active = {.id = 1, .position = 0, .last_seq = 1000, .rate = 1000};
    ASSERT_EQ(bench.kind(), Kind::replay);
    (void)bench.drain.replay().plan(bench.now);
    bench.drain.replay().transacted(bench.now, result);
    ASSERT_EQ(bench.kind(), Kind::replay);
    result.chunk_of = bench.drain.replay().plan(bench.now).chunk_of;
    result.events = events;
    result.looked_to = 1000;
    bench.drain.replay().transacted(bench.now, result);
}

TEST(DrainIsolation, AnExchangeIsAskedForBeforeTheFirstMessageGoesToIt) {
    Bench bench;
    bench.answers = false;
    bench.connect();
    bench.claim(2);
    Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::ask);
    EXPECT_EQ(command.exchange, "events");
    EXPECT_EQ(bench.kind(), Kind::wait) << "for the answer";
    bench.drain.answered(bench.now, "events", true);
    EXPECT_EQ(bench.publish_all(), 2U);
}

TEST(DrainIsolation, AnotherConnectionIsAskedAnew) {
    Bench bench = sending(1);
    bench.answers = false;
    bench.lose_connection();
    bench.settle();
    bench.now += 30s;
    bench.connect();
    bench.claim(1);
    EXPECT_EQ(bench.kind(), Kind::ask);
}

TEST(DrainIsolation, TheBrokerMustAnswerInTime) {
    Bench bench;
    bench.answers = false;
    bench.connect();
    bench.claim(1);
    ASSERT_EQ(bench.kind(), Kind::ask);
    bench.now += 5000ms;
    const Command command = bench.next();
    EXPECT_EQ(command.kind, Kind::disconnect);
    EXPECT_NE(command.reason.find("no answer"), std::string::npos) << command.reason;
}

TEST(DrainIsolation, WhatCanBeSentGoesBeforeTheNextStepToWhatIsHeld) {
    Bench bench(deep());
    bench.connect();
    TransactionResult more;
    more.woken_to = 77;
    bench.claim(3, more);
    EXPECT_EQ(bench.publish_all(), 3U);
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_TRUE(bench.drain.plan().wake_held.has_value());
    EXPECT_EQ(bench.drain.plan().wake_held->after, 77);
}

TEST(DrainIsolation, ReplaysThatAClosedChannelTookAlongLeaveTheirRoomToOthers) {
    std::vector<Event> replayed(2);
    Bench bench(deep());
    for (Event& event : replayed) {
        event.seq = bench.next_seq++;
        event.payload = bench.payload;
        event.destination = "elsewhere";
    }
    bench.connect(2 * bench.payload.size());
    bench.claim(0);
    replay(bench, replayed);
    bench.publish(2);
    close_channel(bench, Channel::main, 403,
                  "ACCESS_REFUSED - access to exchange 'elsewhere' in vhost '/' refused");
    bench.drain.woken();
    std::size_t sent = 0;
    for (Command command = bench.next(); command.kind != Kind::wait; command = bench.next()) {
        if (command.kind == Kind::replay) {
            (void)bench.drain.replay().plan(bench.now);
            ReplayResult saved;
            saved.saved = true;
            bench.drain.replay().transacted(bench.now, saved);
        } else if (command.kind == Kind::transact) {
            bench.commit(sent == 0 ? 2 : 0);
        } else {
            ASSERT_EQ(command.kind, Kind::publish);
            bench.send(command);
            sent++;
        }
    }
    EXPECT_EQ(sent, 2U) << "side by side";
}

TEST(DrainIsolation, RowsForAMissingExchangeAreHeldUncharged) {
    Bench bench;
    bench.answers = false;
    bench.connect();
    bench.claim(3);
    ASSERT_EQ(bench.kind(), Kind::ask);
    bench.drain.answered(bench.now, "events", false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    ASSERT_EQ(marks.failed.size(), 3U);
    for (const FailedMark& mark : marks.failed) {
        EXPECT_FALSE(mark.charged);
        EXPECT_EQ(mark.error, "held: exchange \"events\" does not exist");
        EXPECT_GE(mark.delay, 2500ms);
        EXPECT_LE(mark.delay, 5000ms);
    }
}

TEST(DrainIsolation, TheMissingExchangeIsLookedForAndItsRowsAreWoken) {
    Bench bench;
    bench.answers = false;
    bench.connect();
    bench.claim(1);
    ASSERT_EQ(bench.kind(), Kind::ask);
    bench.drain.answered(bench.now, "events", false);
    claim_more(bench, 0);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 3100ms;
    Command command = bench.next();
    while (command.kind == Kind::transact) {
        bench.commit(0);
        command = bench.next();
    }
    ASSERT_EQ(command.kind, Kind::ask);
    bench.drain.answered(bench.now, "events", true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_TRUE(bench.drain.plan().wake_held.has_value());
    EXPECT_EQ(bench.drain.plan().wake_held->error, "held: exchange \"events\" does not exist");
    TransactionResult more;
    more.woken_to = 77;
    bench.commit(0, more);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.drain.plan().wake_held->after, 77);
    bench.commit(0);
    bench.claim(0);
    EXPECT_FALSE(bench.drain.plan().wake_held.has_value());
    EXPECT_EQ(bench.kind(), Kind::wait);
}

TEST(DrainIsolation, TheFirstConnectionWakesWhatWasHeldBefore) {
    Bench bench;
    bench.connect();
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_TRUE(bench.drain.plan().wake_held.has_value());
    EXPECT_EQ(bench.drain.plan().wake_held->error, "");
    bench.commit(0);
    bench.lose_connection();
    bench.now += 30s;
    bench.connect();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_FALSE(bench.drain.plan().wake_held.has_value());
}

TEST(DrainIsolation, AMissingExchangeIsChargedWhereThatIsWanted) {
    DrainSettings settings = bench_settings();
    settings.missing_exchange = MissingExchange::fail;
    Bench bench(settings);
    bench.answers = false;
    bench.connect();
    bench.claim(1);
    ASSERT_EQ(bench.kind(), Kind::ask);
    bench.drain.answered(bench.now, "events", false);
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_EQ(bench.marks().failed.size(), 1U);
    EXPECT_TRUE(bench.marks().failed[0].charged);
    EXPECT_EQ(bench.marks().failed[0].error, "unroutable: exchange \"events\" does not exist");
}

TEST(DrainIsolation, AnExchangeThatVanishesIsHeldAndNobodyIsCharged) {
    Bench bench = sending(4);
    bench.confirm(1);
    close_channel(bench, Channel::main, 404, NO_EXCHANGE);
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    EXPECT_EQ(marks.published, Seqs{1});
    ASSERT_EQ(marks.failed.size(), 3U);
    for (const FailedMark& mark : marks.failed) {
        EXPECT_FALSE(mark.charged);
    }
}

TEST(DrainIsolation, NothingGoesUntilTheChannelIsOpenAgain) {
    Bench bench = sending(4);
    ASSERT_TRUE(bench.drain.channel_closed(bench.now, Channel::main, 406, NO_REASON));
    Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish) << "a suspect need not wait for the main channel";
    EXPECT_EQ(command.channel, Channel::trial);
    bench.send(command);
    EXPECT_EQ(bench.kind(), Kind::wait);
    bench.now += 5000ms;
    EXPECT_EQ(bench.kind(), Kind::disconnect);
}

TEST(DrainIsolation, WithoutAReasonEachGoesAloneAndTheCulpritIsCharged) {
    Bench bench = sending(6);
    bench.confirm(2, true);
    close_channel(bench, Channel::main, 406, NO_REASON);
    EXPECT_EQ(confirm_trials(bench, 5), (Seqs{3, 4, 5, 6}));
    EXPECT_EQ(bench.drain.in_hand(), 0U);
    EXPECT_EQ(bench.published, (Seqs{1, 2, 3, 4, 5, 6, 3, 4, 5, 6}));
}

TEST(DrainIsolation, TheChargeNamesWhatTheBrokerSaid) {
    Bench bench = sending(2);
    close_channel(bench, Channel::main, 406, NO_REASON);
    Command command = bench.next();
    ASSERT_EQ(command.channel, Channel::trial);
    bench.send(command);
    close_channel(bench, Channel::trial, 406, NO_REASON);
    command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish) << "its neighbour";
    bench.send(command);
    ASSERT_TRUE(bench.drain.confirmed(bench.now, Channel::trial, 1, false, true));
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    EXPECT_EQ(marks.published, Seqs{2});
    ASSERT_EQ(marks.failed.size(), 1U);
    EXPECT_EQ(marks.failed[0].seq, 1);
    EXPECT_TRUE(marks.failed[0].charged);
    EXPECT_EQ(marks.failed[0].error, std::string("poison: 406 ") + NO_REASON);
}

TEST(DrainIsolation, WhatWasAloneIsChargedAtOnce) {
    Bench bench = sending(1);
    close_channel(bench, Channel::main, 406, NO_REASON);
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_EQ(bench.marks().failed.size(), 1U);
    EXPECT_TRUE(bench.marks().failed[0].charged);
}

TEST(DrainIsolation, SuspectsGoOneAtATimeBesideTheOthers) {
    Bench bench = sending(3);
    close_channel(bench, Channel::main, 406, NO_REASON);
    const Command command = bench.next();
    ASSERT_EQ(command.channel, Channel::trial);
    bench.send(command);
    EXPECT_EQ(bench.drain.in_flight(), 1U);
    bench.drain.woken();
    bench.claim(2);
    const Command other = bench.next();
    ASSERT_EQ(other.kind, Kind::publish);
    EXPECT_EQ(other.channel, Channel::main) << "a new row is no suspect";
    EXPECT_EQ(other.event->seq, 4);
}

TEST(DrainIsolation, AfterAnUnexplainedCloseTheWindowIsSmallAndGrows) {
    Bench bench = sending(10);
    close_channel(bench, Channel::main, 406, NO_REASON);
    confirm_trials(bench, 1);
    bench.drain.woken();
    bench.claim(100);
    EXPECT_EQ(bench.publish_all(), 1U);
    bench.confirm(1);
    EXPECT_EQ(bench.publish_all(), 2U);
    std::size_t window = 2;
    std::uint64_t confirmed = 3;
    for (int round = 0; round < 5; round++) {
        bench.confirm(confirmed, true);
        const std::size_t sent = bench.publish_all();
        EXPECT_GE(sent, window);
        EXPECT_LE(sent, window + 1);
        window = sent;
        confirmed += sent;
    }
}

TEST(DrainIsolation, AnExchangeThatRefusesIsTriedAloneFromThenOn) {
    Bench bench(deep());
    bench.connect();
    bench.claim(2);
    EXPECT_EQ(bench.publish_all(), 2U);
    close_channel(bench, Channel::main, 403, REFUSED);
    Command command = bench.next();
    ASSERT_EQ(command.channel, Channel::trial);
    bench.send(command);
    close_channel(bench, Channel::trial, 403, REFUSED);
    command = bench.next();
    ASSERT_EQ(command.channel, Channel::trial);
    bench.send(command);
    close_channel(bench, Channel::trial, 403, REFUSED);
    claim_more(bench, 3);
    command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish);
    EXPECT_EQ(command.channel, Channel::trial) << "rows that come later too";
}

TEST(DrainIsolation, ManyRowsForAnExchangeThatRefusesArePutOff) {
    Bench bench = sending(1);
    close_channel(bench, Channel::main, 403, REFUSED);
    claim_more(bench, 100);
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish);
    bench.send(command);
    bench.now += 10ms;
    ASSERT_EQ(bench.kind(), Kind::transact);
    const BatchMarks marks = bench.marks();
    EXPECT_EQ(marks.failed.size(), 36U) << "64 are on trial";
    for (const FailedMark& mark : marks.failed) {
        EXPECT_FALSE(mark.charged);
        EXPECT_EQ(mark.error.find("held: waits to be sent alone"), 0U) << mark.error;
    }
}

TEST(DrainIsolation, AnExchangeThatTakesMessagesAgainIsTrusted) {
    Bench bench = sending(1);
    close_channel(bench, Channel::main, 403, REFUSED);
    claim_more(bench, 20);
    std::size_t trials = 0;
    for (Command command = bench.next(); command.kind == Kind::publish; command = bench.next()) {
        bench.send(command);
        if (command.channel == Channel::trial) {
            trials++;
            ASSERT_TRUE(
                bench.drain.confirmed(bench.now, Channel::trial, bench.trial_tag - 1, false, true));
        }
    }
    EXPECT_EQ(trials, 20U) << "those that were under suspicion";
    claim_more(bench, 5);
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish);
    EXPECT_EQ(command.channel, Channel::main);
}

TEST(DrainIsolation, WhatWasPutOffIsWokenWhenItsExchangeIsTrusted) {
    Bench bench = sending(1);
    close_channel(bench, Channel::main, 403, REFUSED);
    claim_more(bench, 8);
    for (Command command = bench.next(); command.kind == Kind::publish; command = bench.next()) {
        bench.send(command);
        ASSERT_TRUE(
            bench.drain.confirmed(bench.now, Channel::trial, bench.trial_tag - 1, false, true));
    }
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_TRUE(bench.drain.plan().wake_held.has_value());
    EXPECT_EQ(bench.drain.plan().wake_held->error,
              "held: waits to be sent alone, since the broker refused messages to exchange "
              "\"events\"");
}

TEST(DrainIsolation, AChannelThatClosesWithNothingOnItChangesNothing) {
    Bench bench;
    bench.connect();
    bench.claim(0);
    close_channel(bench, Channel::main, 406, NO_REASON);
    bench.drain.woken();
    bench.claim(4);
    EXPECT_EQ(bench.publish_all(), 4U) << "the window is as wide as ever";
}

TEST(DrainIsolation, ASizeLimitIsLearntAndNoNeighbourIsSuspected) {
    DrainSettings settings = deep();
    Bench bench(settings);
    bench.connect();
    bench.payload = std::string(50, 'x');
    bench.claim(3);
    EXPECT_EQ(bench.publish_all(), 3U);
    close_channel(bench, Channel::main, 406,
                  "PRECONDITION_FAILED - message size 50 is larger than configured max size 20");
    EXPECT_EQ(bench.drain.max_message_bytes(), 20U);
    EXPECT_TRUE(bench.drain.limit_is_the_brokers());
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish);
    EXPECT_EQ(command.channel, Channel::main) << "to be rejected before it is sent";
    bench.lose_connection();
    EXPECT_FALSE(bench.drain.limit_is_the_brokers()) << "another broker, another limit";
}

TEST(DrainIsolation, ACloseThatNoMessageCausedEndsTheConnection) {
    Bench bench = sending(3);
    EXPECT_FALSE(bench.drain.channel_closed(bench.now, Channel::main, 541, "INTERNAL_ERROR"));
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
    EXPECT_TRUE(bench.marks().failed.empty());
}

TEST(DrainIsolation, AConnectionThatAMessageEndedMakesSuspects) {
    Bench bench = sending(2);
    bench.drain.connection_lost(bench.now, false, "UNEXPECTED_FRAME", true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2}));
    bench.commit(0);
    bench.now += 30s;
    bench.connect();
    bench.next_seq = 1;
    bench.claim(2);
    const Command command = bench.next();
    ASSERT_EQ(command.kind, Kind::publish);
    EXPECT_EQ(command.channel, Channel::trial);
    bench.send(command);
    bench.drain.connection_lost(bench.now, false, "UNEXPECTED_FRAME", true);
    ASSERT_EQ(bench.kind(), Kind::transact);
    ASSERT_EQ(bench.marks().failed.size(), 1U);
    EXPECT_EQ(bench.marks().failed[0].error, "poison: UNEXPECTED_FRAME");
    EXPECT_EQ(bench.marks().released, Seqs{2});
}

TEST(DrainIsolation, AStopGivesBackWhoeverWaits) {
    Bench bench;
    bench.answers = false;
    bench.connect();
    bench.claim(3);
    ASSERT_EQ(bench.kind(), Kind::ask);
    bench.drain.stop(bench.now);
    ASSERT_EQ(bench.kind(), Kind::transact);
    EXPECT_EQ(bench.marks().released, (Seqs{1, 2, 3}));
    bench.commit(0);
    EXPECT_EQ(bench.kind(), Kind::exit);
}

TEST(DrainIsolation, ALostConnectionGivesBackSuspectsUncharged) {
    Bench bench = sending(3);
    close_channel(bench, Channel::main, 406, NO_REASON);
    bench.send(bench.next());
    bench.lose_connection();
    ASSERT_EQ(bench.kind(), Kind::transact);
    Seqs released = bench.marks().released;
    EXPECT_EQ(released.size(), 3U);
    EXPECT_TRUE(bench.marks().failed.empty());
}

TEST(DrainIsolation, TheOrderOfAGroupIsKeptOverAClose) {
    Bench bench(deep());
    bench.groups = {7, 7, 8};
    bench.connect();
    bench.claim(3);
    EXPECT_EQ(bench.publish_all(), 2U) << "one of each group";
    close_channel(bench, Channel::main, 406, NO_REASON);
    EXPECT_EQ(confirm_trials(bench, 3), (Seqs{1, 3}));
    EXPECT_EQ(bench.published, (Seqs{1, 3, 1, 3, 2}));
}

TEST(DrainIsolation, TheNextBrokerIsTriedAtMostOnceASecond) {
    DrainSettings settings = bench_settings();
    settings.broker_uri = "amqp://one,amqp://two,amqp://three";
    Bench bench(settings);
    std::vector<std::size_t> tried;
    Time last{};
    while (tried.size() < 6) {
        const Command command = bench.next();
        if (command.kind == Kind::connect) {
            EXPECT_GE(bench.now - last, 1s);
            last = bench.now;
            tried.push_back(command.broker);
            bench.drain.connection_lost(bench.now, false, "refused");
        } else {
            bench.now = command.until;
        }
    }
    EXPECT_EQ(tried, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));
}

}  // namespace
}  // namespace outbox::test
