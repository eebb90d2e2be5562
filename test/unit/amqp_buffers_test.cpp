#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/socket.h>

#include <future>
#include <optional>
#include <string>
#include <thread>

#include "amqp/out_buffer.hpp"
#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Peer;
using outbox::amqp::OutBuffer;

std::string drained(OutBuffer& buffer, std::size_t step) {
    std::string bytes;
    while (!buffer.empty()) {
        const std::string_view part = buffer.front().substr(0, step);
        EXPECT_FALSE(part.empty());
        bytes += part;
        buffer.pop(part.size());
    }
    EXPECT_TRUE(buffer.front().empty());
    return bytes;
}

TEST(OutBuffer, KeepsTheOrder) {
    for (const std::size_t step : {std::size_t{1000}, std::size_t{70'000}, std::string::npos}) {
        OutBuffer buffer;
        std::string expected;
        for (int round = 0; round < 3; ++round) {
            expected.clear();
            for (int i = 0; i < 300; ++i) {
                const std::string bytes(static_cast<std::size_t>(i * 7),
                                        static_cast<char>('a' + i % 26));
                if (i % 50 == 0) {
                    buffer.reserve(200'000);
                    buffer.reserve(300'000);
                }
                buffer.append(bytes);
                expected += bytes;
            }
            EXPECT_EQ(buffer.size(), expected.size());
            EXPECT_EQ(drained(buffer, step), expected);
        }
    }
}

TEST(OutBuffer, SentAndAppendedByTurns) {
    OutBuffer buffer;
    std::string expected;
    std::string got;
    for (int i = 0; i < 5000; ++i) {
        const std::string bytes = std::to_string(i) + ",";
        expected += bytes;
        buffer.append(bytes);
        if (i % 3 == 0) {
            const std::string_view part = buffer.front().substr(0, 11);
            got += part;
            buffer.pop(part.size());
        }
    }
    got += drained(buffer, 100);
    EXPECT_EQ(got, expected);
    buffer.append("left");
    buffer.clear();
    EXPECT_TRUE(buffer.empty());
    buffer.append("more");
    EXPECT_EQ(buffer.front(), "more");
}

TEST(OutBuffer, ReservedBytesLieInOnePiece) {
    OutBuffer buffer;
    buffer.append("before");
    buffer.reserve(1'000'000);
    buffer.append(std::string(600'000, 'a'));
    buffer.append(std::string(400'000, 'b'));
    EXPECT_EQ(buffer.front(), "before");
    buffer.pop(6);
    EXPECT_EQ(buffer.front().size(), 1'000'000U);
    const char* place = buffer.front().data();
    buffer.pop(999'999);
    EXPECT_EQ(buffer.front().data(), place + 999'999);
}

std::size_t memory_in_use() {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
}

TEST(OutBuffer, GivesBackTheMemoryOfLargeMessages) {
    OutBuffer buffer;
    buffer.append("warm");
    (void)drained(buffer, 4);
    const std::size_t before = memory_in_use();
    const std::string_view part = "some kilobytes of one message";
    buffer.reserve(50'000'000);
    while (buffer.size() < 50'000'000) {
        buffer.append(part);
    }
    buffer.append(part);
    while (!buffer.empty()) {
        buffer.pop(buffer.front().size());
    }
    EXPECT_LT(memory_in_use(), before + 200'000);
}

TEST(OutBuffer, SecretsAreOverwrittenOnceSent) {
    OutBuffer buffer;
    buffer.set_secret(true);
    buffer.append("password");
    const char* place = buffer.front().data();
    buffer.pop(4);
    EXPECT_EQ(std::string_view(place, 8), std::string_view("\0\0\0\0word", 8));
    buffer.pop(4);  // the block is kept for later
    EXPECT_EQ(std::string_view(place, 8), std::string_view("\0\0\0\0\0\0\0\0", 8));
}

/// A broker that reads nothing until it is told to, and then one message.
class Sluggish {
  public:
    explicit Sluggish(std::size_t size)
        : broker_(
              [this, size](Peer& peer) {
                  (void)peer.handshake();
                  go_on_.get_future().wait();
                  const std::optional<fake::Published> message = peer.read_message();
                  if (message && message->body == std::string(size, 'b')) {
                      peer.send_ack(1);
                  }
                  peer.wait_for_close();
              },
              4096) {}
    ~Sluggish() { go_on(); }

    void go_on() {
        if (!told_) {
            go_on_.set_value();
        }
        told_ = true;
    }
    std::uint16_t port() const { return broker_.port(); }

  private:
    std::promise<void> go_on_;
    bool told_ = false;
    Broker broker_;
};

TEST(AmqpBuffers, ALargeMessageForABrokerThatDoesNotRead) {
    constexpr std::size_t size = 50'000'000;
    const std::string body(size, 'b');
    Sluggish broker(size);
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish(body), 1U);
    const std::size_t unsent = client.connection.unsent_bytes();
    EXPECT_GT(unsent, size / 2);
    EXPECT_TRUE(client.connection.wanted().write);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_TRUE(timed([&] { return client.connection.flush(); }));
        ASSERT_FALSE(client.poll().has_value());
    }
    ASSERT_EQ(client.publish("second"), 2U);
    EXPECT_GT(client.connection.unsent_bytes(), size / 2);
    broker.go_on();
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
}

TEST(AmqpBuffers, ALargeMessageIsHeldOnceAndSentAsTheBrokerReads) {
    constexpr std::size_t size = 50'000'000;
    const std::string body(size, 'b');
    Sluggish broker(size);
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const std::size_t before = memory_in_use();
    ASSERT_EQ(client.publish(body), 1U);
    const std::size_t unsent = client.connection.unsent_bytes();
    EXPECT_LT(memory_in_use(), before + size + size / 10);
    // Goes on as the broker reads, until all is sent.
    broker.go_on();
    const auto deadline = Clock::now() + 60s;
    while (client.connection.unsent_bytes() > 0 && Clock::now() < deadline) {
        client.wait(deadline);
        ASSERT_TRUE(timed([&] { return client.connection.flush(); }));
    }
    EXPECT_GT(unsent, size / 2);
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
    EXPECT_FALSE(client.connection.wanted().write);
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
}

TEST(AmqpBuffers, ManySmallMessagesForABrokerThatDoesNotRead) {
    std::promise<void> go_on;
    constexpr int count = 20'000;
    const std::string body(1000, 'b');
    Broker broker(
        [&](Peer& peer) {
            (void)peer.handshake();
            go_on.get_future().wait();
            for (int i = 0; i < count; ++i) {
                const std::optional<fake::Published> message = peer.read_message();
                ASSERT_TRUE(message && message->body == body) << i;
            }
            peer.send_ack(count, true);
            peer.wait_for_close();
        },
        4096);
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    for (std::uint64_t i = 1; i <= count; ++i) {
        ASSERT_EQ(client.publish(body), i);
    }
    EXPECT_GT(client.connection.unsent_bytes(), 10'000'000U);
    go_on.set_value();
    EXPECT_EQ(client.next_as<Confirm>().value_or(Confirm{}).tag, std::uint64_t{count});
}

TEST(AmqpBuffers, ClosingDoesNotWaitForWhatIsUnsent) {
    Sluggish broker(0);
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    ASSERT_EQ(client.publish(std::string(20'000'000, 'b')), 1U);
    timed([&] {
        client.connection.close();
        return true;
    });
    EXPECT_EQ(client.connection.fd(), -1);
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
}

TEST(AmqpBuffers, NothingIsSentBeforeItIsWorthIt) {
    std::promise<void> flushed;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        (void)peer.read_message();
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    Message message;
    message.exchange = "events";
    message.body = "one";
    ASSERT_EQ(client.connection.publish(Channel::main, message), 1U);
    EXPECT_GT(client.connection.unsent_bytes(), 0U);
    EXPECT_TRUE(client.connection.wanted().write);
    ASSERT_TRUE(client.connection.flush());
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
    // A burst goes by itself.
    const std::string body(70'000, 'b');
    message.body = body;
    ASSERT_EQ(client.connection.publish(Channel::main, message), 2U);
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
}

TEST(AmqpBuffers, APublishIntoADeadSocketFails) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    (void)::shutdown(client.connection.fd(), SHUT_RDWR);
    Message message;
    const std::string body(70'000, 'b');
    message.body = body;
    EXPECT_FALSE(client.connection.publish(Channel::main, message).has_value());
    EXPECT_EQ(client.failure(), "connection lost: Broken pipe");
    EXPECT_FALSE(client.connection.is_open());
    EXPECT_FALSE(client.poll().has_value());
    EXPECT_EQ(client.connection.fd(), -1);
}

TEST(AmqpBuffers, APollThatCannotSendTellsWhatCame) {
    std::promise<void> done;
    Broker broker([&](Peer& peer) {
        (void)peer.handshake();
        peer.send_ack(1);
        peer.send_channel_close(404, "NOT_FOUND");
        done.get_future().wait();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
    (void)::shutdown(client.connection.fd(), SHUT_WR);
    EXPECT_TRUE(client.next_as<ChannelClosed>().has_value());
    const std::optional<Closed> closed = client.next_as<Closed>();
    EXPECT_TRUE(closed.has_value());
    EXPECT_EQ(closed.value_or(Closed{}).failure.text, "connection lost: Broken pipe");
    done.set_value();
}

TEST(AmqpBuffers, AMessageThatDoesNotFitLeavesTheConnectionAsItIs) {
    Broker broker([](Peer& peer) {
        (void)peer.handshake({2047, 4096, 0});
        EXPECT_TRUE(peer.read_message().has_value());
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    Message message;
    const std::string name(256, 'x');
    message.exchange = name;
    EXPECT_FALSE(client.publish(message).has_value());
    message.exchange = "events";
    message.headers.emplace_back("x", outbox::FieldValue(std::string(5000, 'x')));
    EXPECT_FALSE(client.publish(message).has_value());
    EXPECT_EQ(client.failure(),
              "published a message whose names or properties do not fit into a frame");
    EXPECT_EQ(client.connection.unsent_bytes(), 0U);
    EXPECT_EQ(client.publish("fits"), 1U);
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
}

}  // namespace
