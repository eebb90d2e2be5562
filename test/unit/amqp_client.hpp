#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "amqp/connection.hpp"

namespace amqp_test {

using namespace std::chrono_literals;
using outbox::Channel;
using outbox::Message;
using outbox::amqp::Answer;
using outbox::amqp::Blocked;
using outbox::amqp::ChannelClosed;
using outbox::amqp::ChannelOpened;
using outbox::amqp::Closed;
using outbox::amqp::Confirm;
using outbox::amqp::Connection;
using outbox::amqp::FailureClass;
using outbox::amqp::Incoming;
using outbox::amqp::Options;
using outbox::amqp::Question;
using outbox::amqp::Returned;
using outbox::amqp::Unblocked;
using Progress = Connection::Progress;
using Clock = std::chrono::steady_clock;

// No call may take longer. Far above what one takes on a busy machine, far below any wait for a
// peer that says nothing.
constexpr auto at_once = 2s;

template <typename Call>
auto timed(Call call) {
    const auto start = Clock::now();
    auto result = call();
    EXPECT_LT(Clock::now() - start, at_once) << "a call has waited";
    return result;
}

/// A connection that is driven the way a drainer does it, with a check that no call waits.
class Client {
  public:
    Progress open(std::uint16_t port, Options options = default_options(),
                  outbox::BrokerUri uri = outbox::BrokerUri()) {
        uri.host = "127.0.0.1";
        uri.port = port;
        return timed([&] { return connection.open(uri, options); });
    }

    static Options default_options() {
        Options options;
        options.heartbeat = outbox::Duration(0);
        options.product = "outbox_drainer";
        options.version = "0.1.0";
        options.connection_name = "outbox_drainer test";
        return options;
    }

    /// Advances until there is a result or `patience` is over.
    Progress connect(std::uint16_t port, Options options = default_options(),
                     std::chrono::milliseconds patience = 20s,
                     const outbox::BrokerUri& uri = outbox::BrokerUri()) {
        const auto deadline = Clock::now() + patience;
        Progress progress = open(port, options, uri);
        while (progress == Progress::in_progress && Clock::now() < deadline) {
            wait(deadline);
            progress = advance();
        }
        return progress;
    }

    Progress advance() {
        return timed([&] { return connection.advance(); });
    }

    std::optional<Incoming> poll() {
        return timed([&] { return connection.poll(); });
    }

    /// The next thing that the broker says.
    std::optional<Incoming> next(std::chrono::milliseconds patience = 20s) {
        const auto deadline = Clock::now() + patience;
        std::optional<Incoming> incoming = poll();
        while (!incoming && Clock::now() < deadline && connection.fd() >= 0) {
            wait(deadline);
            incoming = poll();
        }
        return incoming;
    }

    template <typename T>
    std::optional<T> next_as(std::chrono::milliseconds patience = 20s) {
        std::optional<Incoming> incoming = next(patience);
        if (!incoming || !std::holds_alternative<T>(*incoming)) {
            return std::nullopt;
        }
        return std::get<T>(*incoming);
    }

    /// Publishes, and sends what the socket takes.
    std::optional<std::uint64_t> publish(std::string_view body, Channel channel = Channel::main,
                                         bool mandatory = false) {
        Message message;
        message.exchange = "events";
        message.routing_key = "order.created";
        message.message_id = "msg_1";
        message.body = body;
        return publish(message, channel, mandatory);
    }

    std::optional<std::uint64_t> publish(const Message& message, Channel channel = Channel::main,
                                         bool mandatory = false) {
        return timed([&]() -> std::optional<std::uint64_t> {
            const auto tag = connection.publish(channel, message, mandatory);
            return tag && connection.flush() ? tag : std::nullopt;
        });
    }

    /// Asks, and waits for the answer.
    std::optional<Answer> ask(const Question& question) {
        if (!timed([&] { return connection.ask(question); })) {
            return std::nullopt;
        }
        return next_as<Answer>();
    }

    void wait(Clock::time_point deadline) {
        const Connection::Wanted wanted = connection.wanted();
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd entry{connection.fd(), 0, 0};
        entry.events =
            static_cast<short>((wanted.read ? POLLIN : 0) | (wanted.write ? POLLOUT : 0));
        const auto timeout = std::clamp<std::int64_t>(connection.max_wait().count(), 0,
                                                      std::max<std::int64_t>(left.count(), 0));
        (void)::poll(&entry, 1, static_cast<int>(timeout));
    }

    const std::string& failure() const { return connection.failure().text; }
    FailureClass failure_class() const { return connection.failure().failure_class; }

    Connection connection;
};

inline int socket_option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    (void)::getsockopt(fd, level, name, &value, &length);
    return value;
}

}  // namespace amqp_test
