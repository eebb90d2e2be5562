#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Peer;
using fake::Writer;

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
    ASSERT_EQ(client.publish(message), 1U);
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
    ASSERT_EQ(client.publish(message), 1U);
    ASSERT_TRUE(client.next_as<Confirm>().has_value());
    client.connection.close();
    broker.join();
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->header, Writer().u16(60).u16(0).u64(0).u16(0x1000).u8(1).bytes());
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

}  // namespace
