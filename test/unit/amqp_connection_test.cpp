#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Peer;
using fake::Writer;

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

TEST(AmqpConnection, ConnectionClosedByTheBroker) {
    struct Case {
        std::uint16_t code;
        std::string text;
        std::uint16_t class_id;
        std::uint16_t method_id;
        FailureClass failure_class;
        bool by_publish;
    };
    constexpr auto infrastructure = FailureClass::infrastructure;
    constexpr auto configuration = FailureClass::configuration;
    const std::vector<Case> cases{
        {320, "CONNECTION_FORCED - broker forced connection closure", 0, 0, infrastructure, false},
        {403, "ACCESS_REFUSED - user 'x' deleted", 0, 0, configuration, false},
        {530, "NOT_ALLOWED - vhost 'x' is down", 10, 40, configuration, false},
        {541, "INTERNAL_ERROR", 60, 40, infrastructure, true},
        {541, "INTERNAL_ERROR", 0, 0, infrastructure, false},
        {501, "FRAME_ERROR - cannot decode frame", 60, 40, infrastructure, true},
        {501, "FRAME_ERROR - type 3, all octets = <<>>", 0, 0, infrastructure, false},
        {503, "COMMAND_INVALID - unknown exchange type 'x'", 40, 10, infrastructure, false},
        {403, "ACCESS_REFUSED - user id", 60, 40, configuration, true},
    };
    for (const Case& c : cases) {
        bool answered = false;
        Broker broker([&](Peer& peer) {
            (void)peer.handshake();
            peer.send_connection_close(c.code, c.text, c.class_id, c.method_id);
            const std::optional<fake::Frame> frame = peer.read_frame();
            answered = frame && frame->channel == 0 && frame->is_method(10, 51);
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.text, c.text);
        EXPECT_EQ(closed->failure.failure_class, c.failure_class) << c.code;
        EXPECT_EQ(closed->failure.by_publish, c.by_publish) << c.code;
        EXPECT_EQ(client.failure(), c.text);
        EXPECT_FALSE(client.connection.is_open());
        EXPECT_EQ(client.connection.fd(), -1);
        EXPECT_FALSE(client.poll().has_value());
        EXPECT_FALSE(client.publish("too late").has_value());
        broker.join();
        EXPECT_TRUE(answered);
    }
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
    const std::optional<ChannelClosed> closed = client.next_as<ChannelClosed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->text,
              std::string("no exchange '\xd0\xb7\xd0\xb0\xe2\x82\xac\xf0\x9f\x90\x87") +
                  std::string(5, '?') + "'");
}

TEST(AmqpConnection, ReasonsThatAreEmptyGetAText) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_connection_close(541, "");
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_EQ(client.next_as<Closed>().value_or(Closed{}).failure.text,
              "broker gave reply code 541 and no reason");
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

TEST(AmqpConnection, HalfClosedIsClosed) {
    std::promise<void> done;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        peer.send_ack(1);
        peer.shut_down_sending();
        done.get_future().wait();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
    EXPECT_EQ(client.next_as<Closed>().value_or(Closed{}).failure.text,
              "broker closed the connection");
    done.set_value();
}

TEST(AmqpConnection, TheFailureStaysAfterTheClose) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_connection_close(320, "CONNECTION_FORCED");
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Closed>().has_value());
    client.connection.close();
    client.connection.close();
    EXPECT_EQ(client.failure(), "CONNECTION_FORCED");
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
    const std::optional<Closed> closed = client.next_as<Closed>();
    const auto elapsed = Clock::now() - start;
    ASSERT_TRUE(closed.has_value());
    EXPECT_GE(elapsed, 1900ms);
    EXPECT_TRUE(
        closed->failure.text.starts_with("heartbeat timeout: nothing came from the broker for "))
        << closed->failure.text;
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
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
    EXPECT_EQ(received, 6);
}

TEST(AmqpHeartbeat, NoneIsAddedToWhatTheBrokerDoesNotRead) {
    std::promise<void> done;
    Broker broker(
        [&](Peer& peer) {
            (void)peer.handshake({2047, 131072, 1});
            const auto ended = done.get_future();
            while (ended.wait_for(200ms) != std::future_status::ready) {
                peer.send_frame(8, 0, "");
            }
        },
        4096);
    Options options = Client::default_options();
    options.heartbeat = 1s;
    Client client;
    EXPECT_EQ(client.connect(broker.port(), options), Progress::ready) << client.failure();
    EXPECT_EQ(client.publish(std::string(10'000'000, 'b')), 1U);
    (void)client.next(300ms);  // until the kernel's buffers are full
    const std::size_t unsent = client.connection.unsent_bytes();
    EXPECT_GT(unsent, 0U);
    EXPECT_FALSE(client.next(1500ms).has_value());
    EXPECT_LE(client.connection.unsent_bytes(), unsent);
    EXPECT_TRUE(client.connection.is_open());
    EXPECT_GT(client.connection.max_wait(), 0ms);
    client.connection.close();
    done.set_value();
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
    // Two intervals without a look at the socket.
    std::this_thread::sleep_for(2300ms);
    ASSERT_EQ(client.publish("two"), 2U);
    paused.set_value();
    std::this_thread::sleep_for(100ms);
    EXPECT_TRUE(client.next_as<Confirm>().has_value()) << "what has arrived is a sign of life";
}

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
    EXPECT_FALSE(client.connection.flush());
    EXPECT_FALSE(client.connection.ask({}));
    EXPECT_FALSE(client.connection.is_open(Channel::main));
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
    EXPECT_EQ(client.connection.stage(), "");
    client.connection.close();
}

}  // namespace
