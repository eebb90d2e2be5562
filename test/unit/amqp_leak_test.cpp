#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Peer;

/// What a process holds. Under a sanitizer the allocator keeps what was freed, on purpose; there
/// the leak checker looks at the end.
struct Holdings {
    std::int64_t descriptors = 0;
    std::int64_t allocated = 0;
    std::int64_t resident = 0;
};

Holdings holdings() {
    Holdings now;
    if (DIR* directory = ::opendir("/proc/self/fd")) {
        while (::readdir(directory) != nullptr) {
            ++now.descriptors;
        }
        ::closedir(directory);
    }
#if !defined(__SANITIZE_ADDRESS__)
    const struct mallinfo2 info = ::mallinfo2();
    now.allocated = static_cast<std::int64_t>(info.uordblks + info.hblkhd);
    std::ifstream statm("/proc/self/statm");
    std::int64_t pages = 0;
    statm >> pages >> pages;
    now.resident = pages * ::sysconf(_SC_PAGESIZE);
#endif
    return now;
}

void expect_level(const Holdings& before, const Holdings& after, std::int64_t rounds) {
    EXPECT_EQ(after.descriptors, before.descriptors);
    // Less than a byte per round is no leak of anything.
    EXPECT_LT(after.allocated - before.allocated, rounds);
    EXPECT_LT(after.resident - before.resident, 1024 * 1024);
    ::testing::Test::RecordProperty("allocated",
                                    std::to_string(after.allocated - before.allocated));
    ::testing::Test::RecordProperty("resident", std::to_string(after.resident - before.resident));
}

TEST(AmqpLeaks, TenThousandChannelClosesOnOneConnection) {
    constexpr int warm_up = 1'000;
    constexpr int rounds = 10'000;
    const std::string text = "NOT_FOUND - no exchange '" + std::string(150, 'x') + "' in vhost '/'";
    Broker broker([&](Peer& peer) {
        ASSERT_TRUE(peer.handshake().has_value());
        for (int i = 0; i < warm_up + rounds; ++i) {
            const std::uint16_t channel = i % 3 + 1;
            if (channel != 2) {
                ASSERT_TRUE(peer.read_message().has_value());
            } else {
                ASSERT_TRUE(peer.read_frame().has_value());
            }
            ASSERT_TRUE(peer.close_and_reopen(404, text, channel));
        }
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    const auto round = [&](int i) {
        if (i % 3 == 1) {
            Question question;
            question.exchange = "missing";
            ASSERT_TRUE(client.ask(question).has_value());
            return;
        }
        const Channel channel = i % 3 == 0 ? Channel::main : Channel::trial;
        ASSERT_EQ(client.publish("poison", channel), 1U);
        ASSERT_TRUE(client.next_as<ChannelClosed>().has_value());
        ASSERT_TRUE(client.next_as<ChannelOpened>().has_value());
    };
    for (int i = 0; i < warm_up; ++i) {
        ASSERT_NO_FATAL_FAILURE(round(i));
    }
    const Holdings before = holdings();
    for (int i = warm_up; i < warm_up + rounds; ++i) {
        ASSERT_NO_FATAL_FAILURE(round(i));
    }
    expect_level(before, holdings(), rounds);
}

TEST(AmqpLeaks, AThousandConnections) {
    constexpr int warm_up = 100;
    constexpr int rounds = 1'000;
    // Every way to end: in order, by the broker, by a hung up line, in the handshake.
    Broker broker(
        [n = 0](Peer& peer) mutable {
            switch (n++ % 4) {
                case 0:
                    (void)peer.handshake();
                    (void)peer.read_message();
                    peer.send_ack(1);
                    peer.wait_for_close();
                    break;
                case 1:
                    (void)peer.handshake();
                    (void)peer.read_message();
                    peer.send_connection_close(320, "CONNECTION_FORCED");
                    peer.wait_for_close();
                    break;
                case 2:
                    (void)peer.handshake();
                    (void)peer.read_message();
                    peer.reset();
                    break;
                default:
                    (void)peer.expect_header();
                    peer.send_start("NONE");
                    peer.wait_for_close();
            }
        },
        0, warm_up + rounds);
    Client client;
    const std::string body(100'000, 'b');
    const auto round = [&](int i) {
        const Progress progress = client.connect(broker.port());
        ASSERT_EQ(progress, i % 4 == 3 ? Progress::failed : Progress::ready) << client.failure();
        if (progress == Progress::ready) {
            ASSERT_EQ(client.publish(body), 1U);
            ASSERT_TRUE(client.next().has_value());
        }
        client.connection.close();
    };
    for (int i = 0; i < warm_up; ++i) {
        ASSERT_NO_FATAL_FAILURE(round(i));
    }
    // The broker's end of the last connection is one of our descriptors too.
    ASSERT_TRUE(broker.wait_served(warm_up));
    const Holdings before = holdings();
    for (int i = warm_up; i < warm_up + rounds; ++i) {
        ASSERT_NO_FATAL_FAILURE(round(i));
    }
    ASSERT_TRUE(broker.wait_served(warm_up + rounds));
    expect_level(before, holdings(), rounds);
}

}  // namespace
