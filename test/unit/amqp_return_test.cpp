#include <gtest/gtest.h>
#include <sys/socket.h>

#include <limits>
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

constexpr std::uint8_t header_frame = 2;
constexpr std::uint8_t body_frame = 3;
// Property flags of a content header (AMQP 0-9-1, basic class).
constexpr std::uint16_t message_id_flag = 0x0080;
constexpr std::uint16_t app_id_flag = 0x0008;
constexpr std::uint16_t both_flags = message_id_flag | app_id_flag;

Writer ids(std::string_view message_id, std::string_view app_id) {
    return Writer().short_string(message_id).short_string(app_id);
}

/// A client whose broker answers the first message it reads by `answer`.
void answered(const Broker::Script& answer, const std::function<void(Client&)>& check) {
    Broker broker([&](Peer& peer) {
        (void)peer.handshake({2047, 4096, 0});
        (void)peer.read_message();
        answer(peer);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish("body"), 1U);
    check(client);
}

void expect_confirm(Client& client, std::uint64_t tag) {
    const std::optional<Confirm> confirm = client.next_as<Confirm>();
    ASSERT_TRUE(confirm.has_value());
    EXPECT_EQ(confirm->tag, tag);
    EXPECT_TRUE(confirm->ack);
}

/// The broker's words are no return, and end the connection with this failure.
void expect_closed(const Broker::Script& answer, const std::string& failure) {
    answered(answer, [&](Client& client) {
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.text, failure);
        EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
    });
}

TEST(AmqpReturn, OnlyMandatoryMessagesAskForIt) {
    std::vector<bool> mandatory;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        for (std::uint64_t tag = 1; tag <= 3; ++tag) {
            const std::optional<fake::Published> message = peer.read_message();
            ASSERT_TRUE(message.has_value());
            mandatory.push_back(message->mandatory);
            peer.send_ack(tag);
        }
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    Message message;
    message.exchange = "events";
    for (const bool wanted : {false, true, false}) {
        ASSERT_TRUE(client.publish(message, Channel::main, wanted).has_value());
        ASSERT_TRUE(client.next_as<Confirm>().has_value());
    }
    EXPECT_EQ(mandatory, (std::vector<bool>{false, true, false}));
}

TEST(AmqpReturn, ComesBeforeTheAckAndSaysWhichMessageItWas) {
    answered(
        [](Peer& peer) {
            peer.send_return(4, both_flags, ids("msg_1", "shop"));
            peer.send_frame(body_frame, 1, "body");
            peer.send_ack(1);
        },
        [](Client& client) {
            const std::optional<Returned> returned = client.next_as<Returned>();
            ASSERT_TRUE(returned.has_value());
            EXPECT_EQ(returned->reply_code, 312);
            EXPECT_EQ(returned->reply_text, "NO_ROUTE");
            EXPECT_EQ(returned->exchange, "events");
            EXPECT_EQ(returned->routing_key, "k");
            EXPECT_EQ(returned->message_id, "msg_1");
            EXPECT_EQ(returned->app_id, "shop");
            expect_confirm(client, 1);
            EXPECT_FALSE(client.poll().has_value());
            EXPECT_TRUE(client.connection.is_open());
        });
}

TEST(AmqpReturn, TheOtherPropertiesAreReadOver) {
    answered(
        [](Peer& peer) {
            Writer headers;
            headers.text_field("message_id", "not this one");
            peer.send_return(0, 0xFFF8,
                             Writer()
                                 .short_string("text/plain")
                                 .short_string("gzip")
                                 .long_string(headers.bytes())
                                 .u8(2)
                                 .u8(9)
                                 .short_string("correlation")
                                 .short_string("reply")
                                 .short_string("1000")
                                 .short_string("msg_\xff")
                                 .u64(1)
                                 .short_string("type")
                                 .short_string("user")
                                 .short_string("app"));
        },
        [](Client& client) {
            const std::optional<Returned> returned = client.next_as<Returned>();
            ASSERT_TRUE(returned.has_value());
            EXPECT_EQ(returned->message_id, "msg_\xff") << "as it was sent";
            EXPECT_EQ(returned->app_id, "app");
        });
}

TEST(AmqpReturn, BodyInSeveralFramesIsSkippedAsItArrives) {
    answered(
        [](Peer& peer) {
            peer.send_return(9000, both_flags, ids("msg_1", "shop"));
            peer.send_frame(body_frame, 1, std::string(4088, 'x'));
            peer.send_frame(body_frame, 1, "");
            peer.send_method(0, 10, 60, Writer().short_string("between the frames"));
            peer.send_frame(body_frame, 1, std::string(4088, 'x'));
            peer.send_frame(body_frame, 1, std::string(824, 'x'));
            peer.send_ack(1);
        },
        [](Client& client) {
            EXPECT_TRUE(client.next_as<Blocked>().has_value());
            EXPECT_EQ(client.next_as<Returned>().value_or(Returned{}).message_id, "msg_1");
            expect_confirm(client, 1);
        });
}

TEST(AmqpReturn, EmptyBodyHasNoFrame) {
    answered(
        [](Peer& peer) {
            peer.send_return(0, both_flags, ids("msg_1", "shop"));
            peer.send_ack(1);
        },
        [](Client& client) {
            EXPECT_EQ(client.next_as<Returned>().value_or(Returned{}).app_id, "shop");
            expect_confirm(client, 1);
        });
}

TEST(AmqpReturn, TwoReturnsAreTwo) {
    answered(
        [](Peer& peer) {
            peer.send_return(4, both_flags, ids("msg_1", "shop"));
            peer.send_frame(body_frame, 1, "body");
            peer.send_return(0);
            peer.send_ack(2, true);
        },
        [](Client& client) {
            EXPECT_EQ(client.next_as<Returned>().value_or(Returned{}).message_id, "msg_1");
            const std::optional<Returned> second = client.next_as<Returned>();
            ASSERT_TRUE(second.has_value());
            EXPECT_EQ(second->reply_code, 312);
            EXPECT_EQ(second->message_id, "") << "nothing is left of the first";
            EXPECT_EQ(second->app_id, "");
            expect_confirm(client, 2);
        });
}

TEST(AmqpReturn, WhatTheBrokerNeverEndsIsNoReturn) {
    answered(
        [](Peer& peer) {
            peer.send_return(std::numeric_limits<std::uint64_t>::max());
            peer.send_frame(body_frame, 1, std::string(4088, 'x'));
        },
        [](Client& client) {
            EXPECT_FALSE(client.next(200ms).has_value());
            EXPECT_TRUE(client.connection.is_open());
        });
}

TEST(AmqpReturn, GarbageEndsTheConnection) {
    // A message_id that is longer than its frame.
    const std::string failure =
        "malformed frame of type 2 from the broker on channel 1: invalid AMQP data";
    expect_closed(
        [](Peer& peer) { peer.send_return(0, message_id_flag, Writer().u8(200).raw("short")); },
        failure);
    expect_closed([](Peer& peer) { peer.send_return(0, message_id_flag); }, failure);
    // A second word of flags, which the class does not have.
    expect_closed([](Peer& peer) { peer.send_return(0, 1, Writer().u16(0)); },
                  "malformed content header from the broker on channel 1");
}

TEST(AmqpReturn, ContentThatDoesNotFitItsReturnEndsTheConnection) {
    const Writer returned =
        Writer().u16(312).short_string("NO_ROUTE").short_string("events").short_string("k");
    const std::string header = Writer().u16(60).u16(0).u64(3).u16(0).bytes();
    expect_closed([&](Peer& peer) { peer.send_frame(header_frame, 1, header); },
                  "unexpected content header from the broker on channel 1");
    expect_closed([](Peer& peer) { peer.send_frame(body_frame, 1, "body"); },
                  "unexpected content body from the broker on channel 1");
    expect_closed(
        [&](Peer& peer) {
            peer.send_method(1, 60, 50, returned);
            peer.send_frame(body_frame, 1, "body");
        },
        "unexpected content body from the broker on channel 1");
    expect_closed(
        [&](Peer& peer) {
            peer.send_return(3);
            peer.send_frame(body_frame, 1, "four");
        },
        "unexpected content body from the broker on channel 1");
    expect_closed(
        [&](Peer& peer) {
            peer.send_return(3);
            peer.send_ack(1);
        },
        "unexpected basic.ack from the broker on channel 1");
    expect_closed(
        [&](Peer& peer) {
            peer.send_method(1, 60, 50, returned);
            peer.send_method(1, 60, 50, returned);
        },
        "unexpected basic.return from the broker on channel 1");
    // The properties of class channel, which has none.
    expect_closed(
        [&](Peer& peer) {
            peer.send_method(1, 60, 50, returned);
            peer.send_frame(header_frame, 1, Writer().u16(20).u16(0).u64(0).u16(0).bytes());
        },
        "unexpected content header from the broker on channel 1");
}

TEST(AmqpReturn, IsKeptWithItsAckWhenTheConnectionFails) {
    answered(
        [](Peer& peer) {
            peer.send_return(0, both_flags, ids("msg_1", "shop"));
            peer.send_ack(1);
            peer.send_connection_close(320, "CONNECTION_FORCED - shutdown");
        },
        [](Client& client) {
            std::this_thread::sleep_for(200ms);
            (void)::shutdown(client.connection.fd(), SHUT_WR);
            EXPECT_FALSE(client.publish("two").has_value());
            EXPECT_EQ(client.failure(), "CONNECTION_FORCED - shutdown");
            EXPECT_EQ(client.next_as<Returned>().value_or(Returned{}).message_id, "msg_1");
            expect_confirm(client, 1);
            EXPECT_FALSE(client.poll().has_value());
        });
}

}  // namespace
