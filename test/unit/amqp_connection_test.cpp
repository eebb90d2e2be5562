#include "amqp/connection.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "fake_broker.hpp"

namespace {

using namespace std::chrono_literals;
using fake::Broker;
using fake::Peer;
using fake::Writer;
using outbox::Message;
using outbox::amqp::Blocked;
using outbox::amqp::Closed;
using outbox::amqp::Confirm;
using outbox::amqp::Connection;
using outbox::amqp::FailureClass;
using outbox::amqp::Incoming;
using outbox::amqp::Options;
using outbox::amqp::Unblocked;
using Progress = Connection::Progress;
using Clock = std::chrono::steady_clock;

// No call may take longer. Far above what one takes, far below any wait.
constexpr auto at_once = 300ms;

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
                     std::chrono::milliseconds patience = 3s) {
        const auto deadline = Clock::now() + patience;
        Progress progress = open(port, options);
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
    std::optional<Incoming> next(std::chrono::milliseconds patience = 3s) {
        const auto deadline = Clock::now() + patience;
        std::optional<Incoming> incoming = poll();
        while (!incoming && Clock::now() < deadline && connection.fd() >= 0) {
            wait(deadline);
            incoming = poll();
        }
        return incoming;
    }

    template <typename T>
    std::optional<T> next_as(std::chrono::milliseconds patience = 3s) {
        std::optional<Incoming> incoming = next(patience);
        if (!incoming || !std::holds_alternative<T>(*incoming)) {
            return std::nullopt;
        }
        return std::get<T>(*incoming);
    }

    std::optional<std::uint64_t> publish(std::string_view body) {
        Message message;
        message.exchange = "events";
        message.routing_key = "order.created";
        message.message_id = "msg_1";
        message.body = body;
        return timed([&] { return connection.publish(message); });
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

int socket_option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    (void)::getsockopt(fd, level, name, &value, &length);
    return value;
}

// ----------------------------------------------------------------------------------------
// handshake

TEST(AmqpHandshake, HappyPath) {
    std::optional<fake::Login> login;
    Broker broker([&](Peer& peer) {
        login = peer.handshake({2047, 131072, 60});
        peer.wait_for_close();
    });
    outbox::BrokerUri uri;
    uri.user = "drainer";
    uri.password = "p@ss";
    uri.vhost = "orders";
    Options options = Client::default_options();
    options.heartbeat = 10s;
    Client client;
    ASSERT_EQ(client.open(broker.port(), options, uri), Progress::in_progress);
    EXPECT_TRUE(client.connection.wanted().write);
    EXPECT_FALSE(client.connection.is_open());
    Progress progress = Progress::in_progress;
    while (progress == Progress::in_progress) {
        client.wait(Clock::now() + 3s);
        progress = client.advance();
    }
    ASSERT_EQ(progress, Progress::ready) << client.failure();
    EXPECT_TRUE(client.connection.is_open());
    EXPECT_TRUE(client.connection.wanted().read);
    EXPECT_FALSE(client.connection.wanted().write);
    EXPECT_EQ(client.advance(), Progress::ready);
    EXPECT_EQ(client.connection.broker_version(), "FakeMQ 1.2");
    EXPECT_EQ(client.connection.max_properties_bytes(), 131072U - 8U);
    EXPECT_LE(client.connection.max_wait(), 5s);
    EXPECT_GT(client.connection.max_wait(), 4s);
    client.connection.close();
    EXPECT_EQ(client.connection.fd(), -1);
    broker.join();

    ASSERT_TRUE(login.has_value());
    EXPECT_EQ(login->mechanism, "PLAIN");
    EXPECT_EQ(login->response, std::string("\0drainer\0p@ss", 13));
    EXPECT_EQ(login->vhost, "orders");
    EXPECT_EQ(login->tune_ok.channel_max, 1);
    EXPECT_EQ(login->tune_ok.frame_max, 131072U);
    EXPECT_EQ(login->tune_ok.heartbeat, 10);
    const std::string& properties = login->client_properties;
    EXPECT_NE(properties.find(Writer().text_field("product", "outbox_drainer").bytes()),
              std::string::npos);
    EXPECT_NE(properties.find(Writer().text_field("version", "0.1.0").bytes()), std::string::npos);
    EXPECT_NE(
        properties.find(Writer().text_field("connection_name", "outbox_drainer test").bytes()),
        std::string::npos);
    for (const char* capability : {"publisher_confirms", "basic.nack", "connection.blocked",
                                   "authentication_failure_close"}) {
        EXPECT_NE(properties.find(Writer().short_string(capability).u8('t').u8(1).bytes()),
                  std::string::npos)
            << capability;
    }
}

TEST(AmqpHandshake, SocketOptions) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.wait_for_close();
    });
    Options options = Client::default_options();
    options.heartbeat = 7s;
    Client client;
    ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    const int fd = client.connection.fd();
    EXPECT_NE(socket_option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(socket_option(fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    EXPECT_EQ(socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 14000);
    EXPECT_EQ(client.connection.send_buffer_bytes() * 2,
              static_cast<std::size_t>(socket_option(fd, SOL_SOCKET, SO_SNDBUF)));
    EXPECT_GE(client.connection.send_buffer_bytes(), 100'000U);
}

TEST(AmqpHandshake, LoginRefused) {
    bool answered = false;
    Broker broker([&](Peer& peer) {
        ASSERT_TRUE(peer.expect_header());
        peer.send_start();
        (void)peer.read_frame();
        peer.send_connection_close(
            403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.");
        const std::optional<fake::Frame> frame = peer.read_frame();
        answered = frame && frame->is_method(10, 51);
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(),
              "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.");
    EXPECT_EQ(client.failure_class(), FailureClass::configuration);
    EXPECT_EQ(client.connection.fd(), -1);
    EXPECT_EQ(client.advance(), Progress::failed);
    broker.join();
    EXPECT_TRUE(answered);
}

TEST(AmqpHandshake, VhostRefused) {
    Broker broker([](Peer& peer) {
        ASSERT_TRUE(peer.expect_header());
        peer.send_start();
        (void)peer.read_frame();
        peer.send_tune({});
        (void)peer.read_frame();
        (void)peer.read_frame();
        peer.send_connection_close(530, "NOT_ALLOWED - vhost nope not found");
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(), "NOT_ALLOWED - vhost nope not found");
    EXPECT_EQ(client.failure_class(), FailureClass::configuration);
}

TEST(AmqpHandshake, ConfirmSelectRefused) {
    Broker broker([](Peer& peer) {
        ASSERT_TRUE(peer.expect_header());
        peer.send_start();
        (void)peer.read_frame();
        peer.send_tune({});
        (void)peer.read_frame();
        (void)peer.read_frame();
        peer.send_method(0, 10, 41, Writer().short_string(""));
        (void)peer.read_frame();
        peer.send_method(1, 20, 11, Writer().long_string(""));
        (void)peer.read_frame();
        peer.send_connection_close(540, "NOT_IMPLEMENTED - confirm.select");
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(), "NOT_IMPLEMENTED - confirm.select");
    EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
}

TEST(AmqpHandshake, NoPlainMechanism) {
    Broker broker([](Peer& peer) {
        ASSERT_TRUE(peer.expect_header());
        peer.send_start("EXTERNAL PLAINER");
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure_class(), FailureClass::configuration);
    EXPECT_EQ(
        client.failure(),
        "the broker does not offer authentication mechanism PLAIN, only \"EXTERNAL PLAINER\"");
}

TEST(AmqpHandshake, NotAmqp) {
    struct Case {
        std::string bytes;
        std::string failure;
    };
    const std::vector<Case> cases{
        {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n",
         "the server does not speak AMQP 0-9-1: it answered \"HTTP/1.1 400 Bad Request\""},
        {"x", "the server does not speak AMQP 0-9-1: it answered \"x\""},
        {std::string("\x15\x03\x01\x00\x02\x02\x46", 7), "the server expects TLS on this port"},
        {std::string("AMQP\0\x01\0\0", 8),
         "the server does not speak AMQP 0-9-1: it asks for protocol version 0-1-0-0"},
        {"Any old line of text", "the server does not speak AMQP 0-9-1"},
        {std::string("\x01\0\0\x7f\xff\xff\xff\xff\xff", 9),
         "the server does not speak AMQP 0-9-1"},
    };
    for (const Case& c : cases) {
        Broker broker([&](Peer& peer) {
            (void)peer.expect_header();
            peer.send(c.bytes);
            peer.wait_for_close();
        });
        Client client;
        EXPECT_EQ(client.connect(broker.port()), Progress::failed);
        EXPECT_EQ(client.failure(), c.failure);
        EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
    }
}

TEST(AmqpHandshake, ClosedDuringHandshake) {
    for (const bool after_start : {false, true}) {
        Broker broker([&](Peer& peer) {
            (void)peer.expect_header();
            if (after_start) {
                peer.send_start();
                (void)peer.read_frame();
            }
        });
        Client client;
        EXPECT_EQ(client.connect(broker.port()), Progress::failed);
        EXPECT_EQ(client.failure(), "broker closed the connection during the handshake");
        EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
    }
}

TEST(AmqpHandshake, ResetDuringHandshake) {
    Broker broker([](Peer& peer) {
        (void)peer.expect_header();
        peer.reset();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(), "connection lost: Connection reset by peer during the handshake");
}

TEST(AmqpHandshake, UnexpectedMethodIsNamed) {
    Broker broker([](Peer& peer) {
        (void)peer.expect_header();
        peer.send_tune({});
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(),
              "unexpected connection.tune from the broker on channel 0 during the handshake");
}

TEST(AmqpHandshake, SilentPeerNeverBlocks) {
    Broker broker([](Peer& peer) { peer.wait_for_close(); });
    Client client;
    EXPECT_EQ(client.connect(broker.port(), Client::default_options(), 500ms),
              Progress::in_progress);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(client.advance(), Progress::in_progress);
    }
    EXPECT_TRUE(client.connection.wanted().read);
    EXPECT_GE(client.connection.fd(), 0);
    client.connection.close();
    EXPECT_EQ(client.connection.fd(), -1);
    EXPECT_EQ(client.advance(), Progress::failed);
}

TEST(AmqpHandshake, OneByteAtATime) {
    Broker broker([](Peer& peer) {
        (void)peer.expect_header();
        fake::Writer start;
        start.u16(10).u16(10).u8(0).u8(9).u32(0).long_string("PLAIN").long_string("en_US");
        const std::string frame = Writer().u8(1).u16(0).long_string(start.bytes()).u8(0xCE).bytes();
        for (const char c : frame) {
            peer.send(std::string_view(&c, 1));
            std::this_thread::sleep_for(2ms);
        }
        const std::optional<fake::Frame> reply = peer.read_frame();
        EXPECT_TRUE(reply && reply->is_method(10, 11));
        peer.send_connection_close(320, "CONNECTION_FORCED - enough");
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(), "CONNECTION_FORCED - enough");
    EXPECT_EQ(client.connection.broker_version(), "");
}

TEST(AmqpHandshake, FrameMaxBelowTheProtocolsMinimum) {
    Broker broker([](Peer& peer) {
        (void)peer.expect_header();
        peer.send_start();
        (void)peer.read_frame();
        peer.send_tune({0, 100, 0});
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(),
              "the broker allows frames of 100 bytes, the protocol needs at least 4096");
}

TEST(AmqpHandshake, LimitsAreTheSmallerNonZeroOnes) {
    struct Case {
        fake::Tuning server;
        outbox::Duration heartbeat;
        fake::Tuning agreed;
    };
    const std::vector<Case> cases{
        {{0, 0, 0}, 10s, {1, 131072, 10}},
        {{1, 4096, 5}, 10s, {1, 4096, 5}},
        {{2047, 1000000, 60}, 1500ms, {1, 131072, 2}},
        {{2047, 131072, 60}, 0ms, {1, 131072, 60}},
    };
    for (const Case& c : cases) {
        std::optional<fake::Login> login;
        Broker broker([&](Peer& peer) {
            login = peer.handshake(c.server);
            peer.wait_for_close();
        });
        Options options = Client::default_options();
        options.heartbeat = c.heartbeat;
        Client client;
        ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
        EXPECT_EQ(client.connection.max_properties_bytes(), c.agreed.frame_max - 8);
        client.connection.close();
        broker.join();
        ASSERT_TRUE(login.has_value());
        EXPECT_EQ(login->tune_ok.channel_max, c.agreed.channel_max);
        EXPECT_EQ(login->tune_ok.frame_max, c.agreed.frame_max);
        EXPECT_EQ(login->tune_ok.heartbeat, c.agreed.heartbeat);
    }
}

TEST(AmqpHandshake, NothingListens) {
    std::uint16_t port = 0;
    {
        const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
        ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
        port = ntohs(address.sin_port);
        ::close(fd);
    }
    Client client;
    EXPECT_EQ(client.connect(port), Progress::failed);
    EXPECT_EQ(client.failure(), "could not connect to host \"127.0.0.1\", port " +
                                    std::to_string(port) + ": Connection refused");
    EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
    EXPECT_EQ(client.connection.fd(), -1);
}

TEST(AmqpHandshake, UnknownHost) {
    Connection connection;
    outbox::BrokerUri uri;
    uri.host = "300.300.300.300.invalid";
    EXPECT_EQ(connection.open(uri, Client::default_options()), Progress::failed);
    EXPECT_EQ(
        connection.failure().text.find("could not resolve host \"300.300.300.300.invalid\": "), 0U);
}

// --------------------------------------------------------------------------------- what the broker
// says

TEST(AmqpConnection, ConfirmsInAnyOrder) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        for (int i = 0; i < 6; ++i) {
            const std::optional<fake::Published> message = peer.read_message();
            ASSERT_TRUE(message.has_value());
            EXPECT_EQ(message->exchange, "events");
            EXPECT_EQ(message->routing_key, "order.created");
            EXPECT_EQ(message->body, "body " + std::to_string(i));
        }
        peer.send_ack(4);
        peer.send_nack(2);
        peer.send_ack(3, true);
        peer.send_nack(6, true);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    for (std::uint64_t i = 0; i < 6; ++i) {
        ASSERT_EQ(client.publish("body " + std::to_string(i)), i + 1);
    }
    client.connection.flush();
    struct Expected {
        std::uint64_t tag;
        bool multiple;
        bool ack;
    };
    for (const Expected& expected : {Expected{4, false, true}, Expected{2, false, false},
                                     Expected{3, true, true}, Expected{6, true, false}}) {
        const std::optional<Confirm> confirm = client.next_as<Confirm>();
        ASSERT_TRUE(confirm.has_value());
        EXPECT_EQ(confirm->tag, expected.tag);
        EXPECT_EQ(confirm->multiple, expected.multiple);
        EXPECT_EQ(confirm->ack, expected.ack);
    }
    EXPECT_FALSE(client.poll().has_value());
    EXPECT_TRUE(client.connection.is_open());
}

TEST(AmqpConnection, PollReturnsAllThatHasArrived) {
    constexpr int count = 20000;  // more than one read of the library's 128 kB buffer
    std::promise<void> sent;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        std::string burst;
        for (int i = 1; i <= count; ++i) {
            burst += Writer()
                         .u8(1)
                         .u16(1)
                         .long_string(Writer().u16(60).u16(80).u64(i).u8(0).bytes())
                         .u8(0xCE)
                         .bytes();
        }
        peer.send(burst);
        sent.set_value();
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    std::uint64_t last = 0;
    while (last < count) {
        const std::optional<Confirm> confirm = client.next_as<Confirm>();
        ASSERT_TRUE(confirm.has_value());
        ASSERT_EQ(confirm->tag, last + 1);
        last = confirm->tag;
    }
    sent.get_future().wait();
    EXPECT_FALSE(client.poll().has_value());
}

TEST(AmqpConnection, ChannelClosedByTheBroker) {
    struct Case {
        std::uint16_t code;
        std::string text;
        FailureClass failure_class;
    };
    const std::vector<Case> cases{
        {404, "NOT_FOUND - no exchange 'events' in vhost '/'", FailureClass::configuration},
        {403, "ACCESS_REFUSED - write access refused", FailureClass::configuration},
        {406, "PRECONDITION_FAILED - message size 2 is larger", FailureClass::infrastructure},
    };
    for (const Case& c : cases) {
        bool answered = false;
        Broker broker([&](Peer& peer) {
            (void)peer.handshake();
            (void)peer.read_message();
            (void)peer.read_message();
            peer.send_ack(1);
            peer.send_channel_close(c.code, c.text);
            const std::optional<fake::Frame> frame = peer.read_frame();
            answered = frame && frame->channel == 1 && frame->is_method(20, 41);
            const std::optional<fake::Frame> goodbye = peer.read_frame();
            EXPECT_TRUE(goodbye && goodbye->channel == 0 && goodbye->is_method(10, 50));
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        ASSERT_EQ(client.publish("one"), 1U);
        ASSERT_EQ(client.publish("two"), 2U);
        ASSERT_TRUE(client.next_as<Confirm>().has_value());
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.text, c.text);
        EXPECT_EQ(closed->failure.failure_class, c.failure_class);
        EXPECT_EQ(client.failure(), c.text);
        EXPECT_FALSE(client.connection.is_open());
        EXPECT_EQ(client.connection.fd(), -1);
        EXPECT_FALSE(client.poll().has_value());
        EXPECT_FALSE(client.publish("three").has_value());
        broker.join();
        EXPECT_TRUE(answered);
    }
}

TEST(AmqpConnection, ConnectionClosedByTheBroker) {
    bool answered = false;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        peer.send_connection_close(320, "CONNECTION_FORCED - broker forced connection closure");
        const std::optional<fake::Frame> frame = peer.read_frame();
        answered = frame && frame->channel == 0 && frame->is_method(10, 51);
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const std::optional<Closed> closed = client.next_as<Closed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->failure.text, "CONNECTION_FORCED - broker forced connection closure");
    EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
    broker.join();
    EXPECT_TRUE(answered);
}

TEST(AmqpConnection, TextFromTheBrokerIsValidUtf8) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_channel_close(
            404, "no exchange '\xd0\xb7\xd0\xb0\xe2\x82\xac\xf0\x9f\x90\x87\n\xed\xa0\x80\xd0'");
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const std::optional<Closed> closed = client.next_as<Closed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->failure.text,
              std::string("no exchange '\xd0\xb7\xd0\xb0\xe2\x82\xac\xf0\x9f\x90\x87") +
                  std::string(5, '?') + "'");
}

TEST(AmqpConnection, SocketClosedOrReset) {
    for (const bool reset : {false, true}) {
        Broker broker([&](Peer& peer) {
            (void)peer.handshake();
            peer.send_ack(1);
            std::this_thread::sleep_for(100ms);
            if (reset) {
                peer.reset();
            }
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        ASSERT_TRUE(client.next_as<Confirm>().has_value());
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.text, reset ? "connection lost: Connection reset by peer"
                                              : "broker closed the connection");
        EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
    }
}

TEST(AmqpConnection, BlockedAndUnblocked) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_method(0, 10, 60, Writer().short_string("low on memory"));
        (void)peer.read_message();
        peer.send_method(0, 10, 61);
        peer.wait_for_close();
    });
    Options options = Client::default_options();
    options.heartbeat = 10s;
    Client client;
    ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    const std::optional<Blocked> blocked = client.next_as<Blocked>();
    ASSERT_TRUE(blocked.has_value());
    EXPECT_EQ(blocked->reason, "low on memory");
    EXPECT_EQ(socket_option(client.connection.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    ASSERT_TRUE(client.publish("go on"));
    ASSERT_TRUE(client.next_as<Unblocked>().has_value());
    EXPECT_EQ(socket_option(client.connection.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT), 20000);
}

TEST(AmqpConnection, ReturnedMessagesAreSkipped) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake({2047, 4096, 0});
        const Writer returned =
            Writer().u16(312).short_string("NO_ROUTE").short_string("events").short_string("k");
        const auto header = [](std::uint64_t size) {
            return Writer().u16(60).u16(0).u64(size).u16(0).bytes();
        };
        peer.send_method(1, 60, 50, returned);
        peer.send_frame(2, 1, header(5000));
        peer.send_frame(3, 1, std::string(4088, 'x'));
        peer.send_method(0, 10, 60, Writer().short_string("between the frames"));
        peer.send_frame(3, 1, std::string(912, 'x'));
        peer.send_ack(1);
        peer.send_method(1, 60, 50, returned);
        peer.send_frame(2, 1, header(0));
        peer.send_ack(2);
        peer.send_frame(3, 1, "a body that belongs to nothing");
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Blocked>().has_value());
    EXPECT_EQ(client.next_as<Confirm>().value_or(Confirm{}).tag, 1U);
    EXPECT_EQ(client.next_as<Confirm>().value_or(Confirm{}).tag, 2U);
    const std::optional<Closed> closed = client.next_as<Closed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->failure.text, "unexpected content body from the broker on channel 1");
}

TEST(AmqpConnection, UnexpectedMethodIsNamed) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_method(1, 20, 20, Writer().u8(0));
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const std::optional<Closed> closed = client.next_as<Closed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->failure.text, "unexpected channel.flow from the broker on channel 1");
    EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
}

TEST(AmqpConnection, FramesOfOtherChannelsAndGarbageEndIt) {
    const std::vector<std::string> bad{
        Writer()
            .u8(1)
            .u16(7)
            .long_string(Writer().u16(60).u16(80).u64(1).u8(0).bytes())
            .u8(0xCE)
            .bytes(),
        Writer()
            .u8(1)
            .u16(1)
            .long_string(Writer().u16(60).u16(80).u64(1).u8(0).bytes())
            .u8(0)
            .bytes(),
        Writer().u8(1).u16(1).long_string(Writer().u16(999).u16(1).bytes()).u8(0xCE).bytes(),
        Writer().u8(1).u16(1).u32(0x7fffffff).raw("rest").bytes(),
    };
    for (const std::string& bytes : bad) {
        Broker broker([&](Peer& peer) {
            (void)peer.handshake();
            peer.send(bytes);
            peer.wait_for_close();
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
        EXPECT_FALSE(closed->failure.text.empty());
    }
}

// ------------------------------------------------------------------------------------------
// heartbeats

TEST(AmqpHeartbeat, SilenceEndsTheConnection) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake({2047, 131072, 1});
        peer.wait_for_close();
    });
    Options options = Client::default_options();
    options.heartbeat = 1s;
    Client client;
    ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    const auto start = Clock::now();
    const std::optional<Closed> closed = client.next_as<Closed>(4s);
    const auto elapsed = Clock::now() - start;
    ASSERT_TRUE(closed.has_value());
    EXPECT_GE(elapsed, 1900ms);
    EXPECT_LT(elapsed, 2500ms);
    EXPECT_EQ(closed->failure.text.find("heartbeat timeout: nothing came from the broker for 2"),
              0U);
    EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
}

TEST(AmqpHeartbeat, BothSidesKeepItAlive) {
    std::atomic<int> received = 0;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake({2047, 131072, 1});
        for (int i = 0; i < 6; ++i) {
            if (peer.read_bytes(8) == std::string("\x08\0\0\0\0\0\0\xCE", 8)) {
                ++received;
            }
            peer.send_frame(8, 0, "");
        }
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Options options = Client::default_options();
    options.heartbeat = 1s;
    Client client;
    ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Confirm>(5s).has_value());
    EXPECT_EQ(received, 6);
}

TEST(AmqpHeartbeat, PublishAfterALongPauseDoesNotWait) {
    std::promise<void> paused;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake({2047, 131072, 1});
        EXPECT_TRUE(peer.read_message().has_value());
        paused.get_future().wait();
        EXPECT_TRUE(peer.read_message().has_value());
        peer.send_ack(2, true);
        peer.wait_for_close();
    });
    Options options = Client::default_options();
    options.heartbeat = 1s;
    Client client;
    ASSERT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish("one"), 1U);
    // Two intervals without a look at the socket: here rabbitmq-c's own check would wait for ever.
    std::this_thread::sleep_for(2300ms);
    ASSERT_EQ(client.publish("two"), 2U);
    paused.set_value();
    std::this_thread::sleep_for(100ms);
    EXPECT_TRUE(client.next_as<Confirm>().has_value()) << "what has arrived is a sign of life";
}

// ------------------------------------------------------------------------------------------
// publishing

TEST(AmqpPublish, SmallerFrameMaxIsHonoured) {
    std::string body(10000, 'b');
    Broker broker([&](Peer& peer) {
        (void)peer.handshake({2047, 4096, 0});
        const std::optional<fake::Published> message = peer.read_message();
        ASSERT_TRUE(message.has_value());
        EXPECT_EQ(message->body, body);
        EXPECT_EQ(message->body_frames, 3U);
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_EQ(client.connection.max_properties_bytes(), 4088U);
    ASSERT_EQ(client.publish(body), 1U);
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
}

TEST(AmqpPublish, BodyOfWholeFramesIsNotHeldBack) {
    for (const std::size_t size :
         {std::size_t{4088}, std::size_t{8176}, std::size_t{0}, std::size_t{100}}) {
        const std::string body(size, 'b');
        Broker broker([&](Peer& peer) {
            (void)peer.handshake({2047, 4096, 0});
            for (std::uint64_t tag = 1; tag <= 3; ++tag) {
                const std::optional<fake::Published> message = peer.read_message();
                ASSERT_TRUE(message.has_value());
                EXPECT_EQ(message->body, body);
                peer.send_ack(tag);
            }
            peer.wait_for_close();
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        for (std::uint64_t tag = 1; tag <= 3; ++tag) {
            const auto start = Clock::now();
            ASSERT_EQ(client.publish(body), tag);
            client.connection.flush();
            ASSERT_TRUE(client.next_as<Confirm>().has_value());
            EXPECT_LT(Clock::now() - start, 150ms)
                << size << " bytes; the kernel holds back for 200 ms";
        }
    }
}

TEST(AmqpPublish, AllPropertiesAndHeaderTypes) {
    std::optional<fake::Published> received;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        received = peer.read_message();
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    using outbox::Array;
    using outbox::FieldValue;
    using outbox::Table;
    const auto field = [](auto value) {
        FieldValue result;
        result.value = std::move(value);
        return result;
    };
    Table inner;
    inner.emplace_back("deep", field(Array{field(std::string("x")), field(Table{})}));
    inner.emplace_back("", field(false));
    Message message;
    message.exchange = "";
    message.routing_key = std::string_view("queue");
    message.message_id = "msg_01";
    message.correlation_id = "cor";
    message.reply_to = "rep";
    message.type = "order.created";
    message.app_id = "shop";
    message.content_type = "application/json";
    message.content_encoding = "gzip";
    message.timestamp = 1700000000;
    message.priority = 7;
    message.expiration = "60000";
    message.headers.emplace_back("null", field(std::monostate{}));
    message.headers.emplace_back("true", field(true));
    message.headers.emplace_back("int", field(std::int64_t{-2}));
    message.headers.emplace_back("real", field(1.5));
    message.headers.emplace_back("text", field(std::string("\xc3\xa9\0z", 4)));
    message.headers.emplace_back("empty", field(std::string()));
    message.headers.emplace_back("table", field(inner));
    message.headers.emplace_back(
        "array", field(Array{field(std::int64_t{1}), field(Array{}), field(inner)}));
    message.body = "{}";
    ASSERT_EQ(client.connection.publish(message), 1U);
    ASSERT_TRUE(client.next_as<Confirm>().has_value());
    client.connection.close();
    broker.join();
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->exchange, "");
    EXPECT_EQ(received->routing_key, "queue");
    EXPECT_EQ(received->body, "{}");

    const Writer deep = Writer().u8('S').long_string("x").u8('F').u32(0);
    const Writer inner_bytes = Writer()
                                   .short_string("deep")
                                   .u8('A')
                                   .long_string(deep.bytes())
                                   .short_string("")
                                   .u8('t')
                                   .u8(0);
    const Writer array =
        Writer().u8('l').u64(1).u8('A').u32(0).u8('F').long_string(inner_bytes.bytes());
    Writer headers;
    headers.short_string("null").u8('V');
    headers.short_string("true").u8('t').u8(1);
    headers.short_string("int").u8('l').u64(~std::uint64_t{1});
    headers.short_string("real").u8('d').u64(0x3FF8000000000000U);
    headers.text_field("text", std::string_view("\xc3\xa9\0z", 4));
    headers.text_field("empty", "");
    headers.short_string("table").u8('F').long_string(inner_bytes.bytes());
    headers.short_string("array").u8('A').long_string(array.bytes());
    const Writer expected = Writer()
                                .u16(60)
                                .u16(0)
                                .u64(2)
                                .u16(0xFFE8)  // all but user_id and cluster_id
                                .short_string("application/json")
                                .short_string("gzip")
                                .long_string(headers.bytes())
                                .u8(2)
                                .u8(7)
                                .short_string("cor")
                                .short_string("rep")
                                .short_string("60000")
                                .short_string("msg_01")
                                .u64(1700000000)
                                .short_string("order.created")
                                .short_string("shop");
    EXPECT_EQ(received->header, expected.bytes());
}

TEST(AmqpPublish, OnlyWhatIsSetIsSent) {
    std::optional<fake::Published> received;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        received = peer.read_message();
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    Message message;
    message.exchange = "e";
    message.persistent = false;
    ASSERT_EQ(client.connection.publish(message), 1U);
    ASSERT_TRUE(client.next_as<Confirm>().has_value());
    client.connection.close();
    broker.join();
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->header, Writer().u16(60).u16(0).u64(0).u16(0x1000).u8(1).bytes());
}

TEST(AmqpPublish, ABrokerThatReadsNothingTakesAFullWindow) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{3000}, std::size_t{100'000}}) {
        std::promise<void> done;
        Broker broker(
            [&](Peer& peer) {
                (void)peer.handshake();
                done.get_future().wait();
            },
            4096);
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        const std::string body(size, 'b');
        const std::size_t overhead = 150;
        std::size_t bytes = 0;
        while (bytes + size + overhead <= client.connection.send_buffer_bytes()) {
            ASSERT_TRUE(client.publish(body).has_value());
            bytes += size + overhead;
        }
        client.connection.flush();
        const auto start = Clock::now();
        client.connection.close();
        EXPECT_LT(Clock::now() - start, at_once);
        done.set_value();
    }
}

TEST(AmqpPublish, ShutdownFreesABlockedPublish) {
    std::promise<void> done;
    Broker broker(
        [&](Peer& peer) {
            (void)peer.handshake();
            done.get_future().wait();
        },
        4096);
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const int fd = client.connection.fd();
    std::thread timer([fd] {
        std::this_thread::sleep_for(500ms);
        (void)::shutdown(fd, SHUT_RDWR);
    });
    const std::string body(16 * 1024 * 1024, 'b');
    Message message;
    message.body = body;
    EXPECT_FALSE(client.connection.publish(message).has_value());
    timer.join();
    EXPECT_EQ(client.failure(), "connection lost: Broken pipe");
    EXPECT_FALSE(client.connection.is_open());
    done.set_value();
}

TEST(AmqpPublish, WhatTheBrokerSaidBeforeItHungUpIsKept) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        (void)peer.read_message();
        peer.send_ack(1);
        peer.send_connection_close(320, "CONNECTION_FORCED - shutdown");
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish("one"), 1U);
    std::this_thread::sleep_for(200ms);
    (void)::shutdown(client.connection.fd(), SHUT_WR);
    EXPECT_FALSE(client.publish("two").has_value());
    EXPECT_EQ(client.failure(), "CONNECTION_FORCED - shutdown");
    EXPECT_FALSE(client.connection.is_open());
    EXPECT_EQ(client.next_as<Confirm>().value_or(Confirm{}).tag, 1U);
    EXPECT_FALSE(client.poll().has_value());
}

// --------------------------------------------------------------------------------------------- the
// end

TEST(AmqpClose, SaysGoodbyeWithoutWaiting) {
    bool goodbye = false;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        const std::optional<fake::Frame> frame = peer.read_frame();
        goodbye = frame && frame->channel == 0 && frame->is_method(10, 50);
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    client.connection.close();
    client.connection.close();
    EXPECT_FALSE(client.connection.is_open());
    EXPECT_FALSE(client.poll().has_value());
    broker.join();
    EXPECT_TRUE(goodbye);
}

TEST(AmqpClose, WaitsForTheAnswerIfAsked) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        (void)peer.read_message();
        const std::optional<fake::Frame> frame = peer.read_frame();
        EXPECT_TRUE(frame && frame->is_method(10, 50));
        peer.send_ack(1);
        peer.send_method(0, 10, 51);
        EXPECT_TRUE(peer.wait_for_close());
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish("last"), 1U);
    client.connection.start_close();
    EXPECT_FALSE(client.connection.is_open());
    EXPECT_TRUE(client.connection.wanted().read);
    EXPECT_FALSE(client.publish("too late").has_value());
    EXPECT_EQ(client.next_as<Confirm>().value_or(Confirm{}).tag, 1U);
    EXPECT_TRUE(client.next_as<Closed>().has_value());
    EXPECT_EQ(client.connection.fd(), -1);
    client.connection.close();
}

TEST(AmqpClose, OpenAgainStartsFromNothing) {
    Client client;
    for (int i = 0; i < 3; ++i) {
        Broker broker([](Peer& peer) {
            (void)peer.handshake();
            (void)peer.read_message();
            peer.send_ack(1);
            peer.wait_for_close();
        });
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        EXPECT_EQ(client.publish("again"), 1U) << "tags start at 1 on each connection";
        EXPECT_TRUE(client.next_as<Confirm>().has_value());
        client.connection.close();
    }
}

TEST(AmqpClose, NeverOpened) {
    Client client;
    EXPECT_EQ(client.connection.fd(), -1);
    EXPECT_FALSE(client.connection.is_open());
    EXPECT_FALSE(client.connection.wanted().read);
    EXPECT_FALSE(client.connection.wanted().write);
    EXPECT_EQ(client.advance(), Progress::failed);
    EXPECT_FALSE(client.poll().has_value());
    EXPECT_FALSE(client.publish("x").has_value());
    client.connection.flush();
    client.connection.close();
}

}  // namespace
