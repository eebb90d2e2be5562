#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Peer;
using fake::Writer;

constexpr std::uint16_t questions = 2;

std::uint16_t number_of(Channel channel) {
    return channel == Channel::main ? 1 : 3;
}

void connected(const Broker::Script& script, const std::function<void(Client&)>& check) {
    Broker broker([&](Peer& peer) {
        ASSERT_TRUE(peer.handshake().has_value());
        script(peer);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    check(client);
}

void expect_confirm(Client& client, Channel channel, std::uint64_t tag) {
    const std::optional<Confirm> confirm = client.next_as<Confirm>();
    ASSERT_TRUE(confirm.has_value());
    EXPECT_EQ(confirm->channel, channel);
    EXPECT_EQ(confirm->tag, tag);
}

void expect_closed_with(const Broker::Script& script, const std::string& failure) {
    connected(script, [&](Client& client) {
        const std::optional<Closed> closed = client.next_as<Closed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_EQ(closed->failure.text, failure);
        EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
        EXPECT_EQ(client.connection.fd(), -1);
    });
}

TEST(AmqpChannels, EachCountsItsOwnTags) {
    connected(
        [](Peer& peer) {
            for (const std::uint16_t channel : {1, 3, 1}) {
                const std::optional<fake::Published> message = peer.read_message();
                ASSERT_TRUE(message.has_value());
                EXPECT_EQ(message->channel, channel);
            }
            peer.send_ack(1, false, 3);
            peer.send_ack(2, true, 1);
        },
        [](Client& client) {
            EXPECT_EQ(client.publish("one", Channel::main), 1U);
            EXPECT_EQ(client.publish("one", Channel::trial), 1U);
            EXPECT_EQ(client.publish("two", Channel::main), 2U);
            expect_confirm(client, Channel::trial, 1);
            expect_confirm(client, Channel::main, 2);
        });
}

TEST(AmqpChannels, ClosedByTheBrokerAndOpenedAgain) {
    struct Case {
        std::uint16_t code;
        std::string text;
    };
    const std::vector<Case> cases{
        {404, "NOT_FOUND - no exchange 'events' in vhost '/'"},
        {403, "ACCESS_REFUSED - write access to exchange 'events' refused"},
        {406, "PRECONDITION_FAILED - message size 2 is larger than configured max size 1"},
    };
    for (const Case& c : cases) {
        for (const Channel channel : {Channel::main, Channel::trial}) {
            const Channel other = channel == Channel::main ? Channel::trial : Channel::main;
            connected(
                [&](Peer& peer) {
                    (void)peer.read_message();
                    (void)peer.read_message();
                    peer.send_ack(1, false, number_of(channel));
                    ASSERT_TRUE(peer.close_and_reopen(c.code, c.text, number_of(channel)));
                    (void)peer.read_message();
                    (void)peer.read_message();
                    peer.send_ack(1, false, number_of(channel));
                    peer.send_ack(1, false, number_of(other));
                },
                [&](Client& client) {
                    ASSERT_EQ(client.publish("one", channel), 1U);
                    ASSERT_EQ(client.publish("two", channel), 2U);
                    expect_confirm(client, channel, 1);
                    const std::optional<ChannelClosed> closed = client.next_as<ChannelClosed>();
                    ASSERT_TRUE(closed.has_value());
                    EXPECT_EQ(closed->channel, channel);
                    EXPECT_EQ(closed->code, c.code);
                    EXPECT_EQ(closed->text, c.text);
                    EXPECT_FALSE(client.connection.is_open(channel));
                    EXPECT_TRUE(client.connection.is_open(other));
                    EXPECT_TRUE(client.connection.is_open());
                    const std::optional<ChannelOpened> opened = client.next_as<ChannelOpened>();
                    ASSERT_TRUE(opened.has_value());
                    EXPECT_EQ(opened->channel, channel);
                    EXPECT_TRUE(client.connection.is_open(channel));
                    EXPECT_EQ(client.publish("again", channel), 1U) << "tags begin anew";
                    EXPECT_EQ(client.publish("beside", other), 1U);
                    expect_confirm(client, channel, 1);
                    expect_confirm(client, other, 1);
                });
        }
    }
}

TEST(AmqpChannels, WhatIsPublishedOnAClosedOneIsRefusedAndHarmsNothing) {
    connected(
        [](Peer& peer) {
            peer.send_channel_close(404, "NOT_FOUND");
            const std::optional<fake::Frame> close_ok = peer.read_frame();
            ASSERT_TRUE(close_ok && close_ok->is_method(20, 41));
            ASSERT_TRUE(peer.read_open(1));
            const std::optional<fake::Published> message = peer.read_message();
            ASSERT_TRUE(message.has_value());
            EXPECT_EQ(message->channel, 3);
            peer.send_open_ok(1);
        },
        [](Client& client) {
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            EXPECT_FALSE(client.publish("nowhere", Channel::main).has_value());
            EXPECT_EQ(client.failure(), "published on a channel that is not open");
            EXPECT_TRUE(client.connection.is_open());
            EXPECT_EQ(client.publish("here", Channel::trial), 1U);
            ASSERT_TRUE(client.next_as<ChannelOpened>().has_value());
        });
}

TEST(AmqpChannels, WhatWasUnderWayWhenItWasClosedComesBeforeTheCloseOk) {
    connected(
        [](Peer& peer) {
            peer.send_channel_close(404, "NOT_FOUND");
            // The client has not seen that yet.
            EXPECT_TRUE(peer.read_message().has_value());
            EXPECT_TRUE(peer.read_message().has_value());
            const std::optional<fake::Frame> close_ok = peer.read_frame();
            EXPECT_TRUE(close_ok && close_ok->is_method(20, 41));
            EXPECT_TRUE(peer.read_open(1));
            peer.send_open_ok(1);
        },
        [](Client& client) {
            ASSERT_EQ(client.publish("one"), 1U);
            ASSERT_EQ(client.publish("two"), 2U);
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            ASSERT_TRUE(client.next_as<ChannelOpened>().has_value());
        });
}

TEST(AmqpChannels, CloseEndsAReturnThatWasUnderWay) {
    connected(
        [](Peer& peer) {
            peer.send_return(10);
            peer.send_frame(3, 1, "five.");
            ASSERT_TRUE(peer.close_and_reopen(406, "PRECONDITION_FAILED"));
            (void)peer.read_message();
            peer.send_ack(1);
        },
        [](Client& client) {
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            ASSERT_TRUE(client.next_as<ChannelOpened>().has_value());
            ASSERT_EQ(client.publish("one"), 1U);
            expect_confirm(client, Channel::main, 1);
        });
}

TEST(AmqpChannels, ReturnsOnBothAreKeptApart) {
    connected(
        [](Peer& peer) {
            constexpr std::uint16_t message_id_flag = 0x0080;
            peer.send_return(4, message_id_flag, Writer().short_string("main"), 1);
            peer.send_return(6, message_id_flag, Writer().short_string("trial"), 3);
            peer.send_frame(3, 1, "bo");
            peer.send_frame(3, 3, "bodies");
            peer.send_frame(3, 1, "dy");
        },
        [](Client& client) {
            const std::optional<Returned> first = client.next_as<Returned>();
            ASSERT_TRUE(first.has_value());
            EXPECT_EQ(first->channel, Channel::trial);
            EXPECT_EQ(first->message_id, "trial");
            const std::optional<Returned> second = client.next_as<Returned>();
            ASSERT_TRUE(second.has_value());
            EXPECT_EQ(second->channel, Channel::main);
            EXPECT_EQ(second->message_id, "main");
        });
}

TEST(AmqpChannels, NonsenseEndsTheConnection) {
    expect_closed_with([](Peer& peer) { peer.send_method(1, 20, 11, Writer().long_string("")); },
                       "unexpected channel.open-ok from the broker on channel 1");
    expect_closed_with([](Peer& peer) { peer.send_method(3, 85, 11); },
                       "unexpected confirm.select-ok from the broker on channel 3");
    expect_closed_with([](Peer& peer) { peer.send_ack(1, false, questions); },
                       "unexpected basic.ack from the broker on channel 2");
    expect_closed_with([](Peer& peer) { peer.send_return(0, 0, {}, questions); },
                       "unexpected basic.return from the broker on channel 2");
    expect_closed_with([](Peer& peer) { peer.send_method(1, 40, 11); },
                       "unexpected exchange.declare-ok from the broker on channel 1");
    expect_closed_with([](Peer& peer) { peer.send_method(questions, 40, 11); },
                       "unexpected exchange.declare-ok from the broker on channel 2");
    expect_closed_with([](Peer& peer) { peer.send_method(1, 20, 41); },
                       "unexpected channel.close-ok from the broker on channel 1");
    expect_closed_with([](Peer& peer) { peer.send_method(0, 10, 51); },
                       "unexpected connection.close-ok from the broker on channel 0");
    expect_closed_with([](Peer& peer) { peer.send_method(0, 10, 41, Writer().short_string("")); },
                       "unexpected connection.open-ok from the broker on channel 0");
    expect_closed_with([](Peer& peer) { peer.send_frame(3, 0, "body"); },
                       "unexpected content body from the broker on channel 0");
}

TEST(AmqpChannels, NothingButItsOpeningMayComeOnAChannelThatIsBeingOpened) {
    connected(
        [](Peer& peer) {
            peer.send_channel_close(404, "NOT_FOUND");
            peer.send_ack(1);
        },
        [](Client& client) {
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            const std::optional<Closed> closed = client.next_as<Closed>();
            ASSERT_TRUE(closed.has_value());
            EXPECT_EQ(closed->failure.text, "unexpected basic.ack from the broker on channel 1");
        });
    connected(
        [](Peer& peer) {
            peer.send_channel_close(404, "NOT_FOUND", 3);
            peer.send_channel_close(541, "INTERNAL_ERROR", 3);
        },
        [](Client& client) {
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            const std::optional<Closed> closed = client.next_as<Closed>();
            ASSERT_TRUE(closed.has_value());
            EXPECT_EQ(closed->failure.text,
                      "broker closed channel 3 while it was being opened: INTERNAL_ERROR");
        });
}

TEST(AmqpChannels, AChannelThatIsClosedDuringTheGoodbyeStaysClosed) {
    connected(
        [](Peer& peer) {
            std::optional<fake::Frame> frame = peer.read_frame();
            ASSERT_TRUE(frame && frame->is_method(10, 50));
            peer.send_channel_close(404, "NOT_FOUND");
            peer.send_ack(1, false, 3);
            peer.send_method(0, 10, 51);
            EXPECT_FALSE(peer.read_frame().has_value()) << "nothing may follow connection.close";
        },
        [](Client& client) {
            client.connection.start_close();
            ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
            expect_confirm(client, Channel::trial, 1);
            ASSERT_TRUE(client.next_as<Closed>().has_value());
        });
}

}  // namespace
