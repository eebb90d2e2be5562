#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/drain.hpp"

namespace outbox::test {

inline DrainSettings bench_settings() {
    DrainSettings settings;
    settings.broker_uri = "amqp://broker";
    settings.batch_size = 10;
    settings.pipeline_depth = 4;
    settings.lease_ttl = Duration{60000};
    settings.confirm_timeout = Duration{5000};
    settings.connect_timeout = Duration{3000};
    settings.shutdown_timeout = Duration{2000};
    settings.poll_interval = Duration{1000};
    settings.retry = Backoff{Duration{1000}, 2, Duration{300000}};
    return settings;
}

/// A Drain on a workbench: what the database and the broker would do is done by hand, step by step.
class Bench {
  public:
    explicit Bench(const DrainSettings& with = bench_settings()) : settings(with), drain(with, 1) {}

    Command next() {
        Command command = drain.next(now);
        while (answers && command.kind == Command::Kind::ask) {
            drain.answered(now, command.exchange, true);
            command = drain.next(now);
        }
        if (command.kind == Command::Kind::wait) {
            EXPECT_GT(command.until, now) << "a wait that is over at once is a busy loop";
        }
        return command;
    }
    Command::Kind kind() { return next().kind; }

    /// From nothing to a connection.
    void connect(std::size_t send_buffer_bytes = 1U << 30U) {
        ASSERT_EQ(kind(), Command::Kind::connect);
        drain.connected(now, send_buffer_bytes);
        tag = trial_tag = 1;
    }
    void lose_connection() { drain.connection_lost(now, false, "reset by peer"); }

    /// Expects a transaction that claims, and lets it find `count` rows.
    void claim(std::size_t count, TransactionResult result = {}) {
        ASSERT_EQ(kind(), Command::Kind::transact);
        ASSERT_GT(drain.plan().claim, 0U);
        commit(count, std::move(result));
    }
    /// Expects a transaction that does not claim, and commits it.
    void settle(TransactionResult result = {}) {
        ASSERT_EQ(kind(), Command::Kind::transact);
        ASSERT_EQ(drain.plan().claim, 0U);
        commit(0, std::move(result));
    }
    void fail() {
        ASSERT_EQ(kind(), Command::Kind::transact);
        drain.transaction_failed(now);
    }
    /// Commits the transaction that next() just asked for.
    void commit(std::size_t count, TransactionResult result = {}) {
        const BatchId id = drain.next_batch();
        std::vector<Event> events(count);
        for (Event& event : events) {
            event.seq = next_seq++;
            event.payload = payload;
            event.payload_memory = own_memory ? payload.data() : nullptr;
            event.attempts = attempts;
            event.deferred = deferred;
            event.leads = deferred;
            if (!groups.empty()) {
                event.group = groups.front();
                groups.pop_front();
            }
        }
        result.token = "token " + std::to_string(id);
        if (count > 0) {
            result.claimed = memory[id] = std::move(events);
        }
        drain.transacted(now, result);
        for (BatchId finished : drain.finished_batches()) {
            finished_batches.push_back(finished);
            EXPECT_EQ(memory.erase(finished), 1U) << "batch " << finished << " ended twice";
        }
    }

    /// Expects `count` publishes and sends them.
    void publish(std::size_t count) {
        for (std::size_t i = 0; i < count; i++) {
            const Command command = next();
            ASSERT_EQ(command.kind, Command::Kind::publish) << "publish " << i;
            send(command);
        }
    }
    void send(const Command& command) {
        published.push_back(command.event->seq);
        std::uint64_t& next_tag = command.channel == Channel::main ? tag : trial_tag;
        EXPECT_TRUE(drain.sent(now, next_tag++, command.event->payload.size()));
    }
    /// Sends as long as the machine asks for it; returns how many that were.
    std::size_t publish_all() {
        std::size_t count = 0;
        for (Command command = next(); command.kind == Command::Kind::publish; command = next()) {
            send(command);
            count++;
        }
        return count;
    }
    void confirm(std::uint64_t which, bool multiple = false, bool ack = true) {
        ASSERT_TRUE(drain.confirmed(now, Channel::main, which, multiple, ack));
    }

    /// Lets `span` pass and only waits in it; returns how often the machine woke for nothing.
    std::size_t wakes_in(Duration span) {
        std::size_t wakes = 0;
        const Time end = now + span;
        while (now < end) {
            const Command command = drain.next(now);
            EXPECT_EQ(command.kind, Command::Kind::wait);
            EXPECT_GT(command.until, now);
            if (command.kind != Command::Kind::wait || command.until <= now) {
                break;
            }
            now = command.until;
            wakes++;
        }
        return wakes;
    }

    /// All marks of the current plan, whichever batch they belong to.
    BatchMarks marks() const {
        BatchMarks all;
        for (const BatchMarks& of_batch : drain.plan().marks) {
            const auto add = [](auto& to, const auto& from) {
                to.insert(to.end(), from.begin(), from.end());
            };
            EXPECT_EQ(of_batch.token, "token " + std::to_string(of_batch.batch));
            add(all.published, of_batch.published);
            add(all.failed, of_batch.failed);
            add(all.ended, of_batch.ended);
            add(all.deferred, of_batch.deferred);
            add(all.released, of_batch.released);
            add(all.renewed, of_batch.renewed);
        }
        return all;
    }

    DrainSettings settings;
    Drain drain;
    Time now{100000};
    bool answers = true;  ///< every exchange exists
    std::uint64_t tag = 1;
    std::uint64_t trial_tag = 1;
    std::int64_t next_seq = 1;
    std::string payload = "payload";
    bool own_memory = false;  ///< of each payload
    std::int32_t attempts = 0;
    bool deferred = false;
    std::deque<std::uint64_t> groups;  ///< of the next rows to be claimed; empty: none
    std::map<BatchId, std::vector<Event>> memory;
    std::vector<std::int64_t> published;
    std::vector<BatchId> finished_batches;
};

}  // namespace outbox::test
