#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "amqp/session.hpp"
#include "amqp_client.hpp"
#include "fake_broker.hpp"

// What a server sends, whole and in pieces, honest and not. There is no socket here: the bytes are
// given to the session.
namespace {

using namespace amqp_test;
using fake::Peer;
using fake::Writer;
using outbox::amqp::Session;

constexpr std::uint8_t method_frame = 1;
constexpr std::uint8_t header_frame = 2;
constexpr std::uint8_t body_frame = 3;
constexpr std::uint8_t heartbeat_frame = 8;

/// The bytes that a script sends.
std::string wire(const std::function<void(Peer&)>& script) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Peer peer(ends[0]);
    script(peer);
    ::close(ends[0]);
    std::string bytes;
    char buffer[65536];
    for (ssize_t got = 0; (got = ::read(ends[1], buffer, sizeof(buffer))) > 0;) {
        bytes.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(ends[1]);
    return bytes;
}

void send_greeting(Peer& peer) {
    peer.send_start();
    peer.send_tune({2047, 4096, 0});
    peer.send_method(0, 10, 41, Writer().short_string(""));
}

void send_handshake(Peer& peer) {
    send_greeting(peer);
    for (const std::uint16_t channel : {1, 2, 3}) {
        peer.send_open_ok(channel);
    }
}

std::string describe(const Incoming& incoming) {
    const auto name = [](Channel channel) {
        return channel == Channel::main ? std::string("main") : std::string("trial");
    };
    if (const auto* confirm = std::get_if<Confirm>(&incoming)) {
        return name(confirm->channel) + (confirm->ack ? " ack " : " nack ") +
               std::to_string(confirm->tag) + (confirm->multiple ? "*" : "");
    }
    if (const auto* returned = std::get_if<Returned>(&incoming)) {
        return name(returned->channel) + " returned " + returned->message_id;
    }
    if (const auto* closed = std::get_if<ChannelClosed>(&incoming)) {
        return name(closed->channel) + " closed: " + closed->text;
    }
    if (const auto* opened = std::get_if<ChannelOpened>(&incoming)) {
        return name(opened->channel) + " opened";
    }
    if (const auto* blocked = std::get_if<Blocked>(&incoming)) {
        return "blocked: " + blocked->reason;
    }
    if (const auto* closed = std::get_if<Closed>(&incoming)) {
        return "closed: " + closed->failure.text;
    }
    return std::holds_alternative<Unblocked>(incoming) ? "unblocked" : "answer";
}

/// What a session tells when it is fed these bytes, `step` of them at a time.
std::vector<std::string> told(std::string_view bytes, std::size_t step = std::string::npos) {
    Session session;
    outbox::BrokerUri uri;
    EXPECT_EQ(session.start(-1, uri, Client::default_options()), Progress::in_progress);
    std::vector<std::string> result;
    bool ready = false;
    while (!bytes.empty()) {
        session.feed(bytes.substr(0, step));
        bytes.remove_prefix(std::min(step, bytes.size()));
        const Progress progress = session.advance();
        if (progress == Progress::failed && !ready) {
            result.push_back("failed: " + session.failure().text);
            return result;
        }
        if (progress == Progress::ready && !ready) {
            ready = true;
            result.emplace_back("ready");
        }
        while (const std::optional<Incoming> incoming = session.poll()) {
            result.push_back(describe(*incoming));
        }
    }
    return result;
}

std::string all_kinds() {
    return wire([](Peer& peer) {
        send_handshake(peer);
        peer.send_frame(heartbeat_frame, 0, "");
        peer.send_ack(1);
        peer.send_nack(7, true, 3);
        peer.send_return(5000, 0x0080, Writer().short_string("msg_1"));
        peer.send_frame(body_frame, 1, std::string(4088, 'x'));
        peer.send_frame(heartbeat_frame, 0, "");
        peer.send_frame(body_frame, 1, std::string(912, 'x'));
        peer.send_ack(2);
        peer.send_method(0, 10, 60, Writer().short_string("low on memory"));
        peer.send_method(0, 10, 61);
        peer.send_channel_close(404, "NOT_FOUND", 3);
        peer.send_open_ok(3);
        peer.send_connection_close(320, "CONNECTION_FORCED");
    });
}

TEST(AmqpFrames, AnySplitIsTheSame) {
    const std::string bytes = all_kinds();
    const std::vector<std::string> expected{"ready",         "main ack 1",
                                            "trial nack 7*", "main returned msg_1",
                                            "main ack 2",    "blocked: low on memory",
                                            "unblocked",     "trial closed: NOT_FOUND",
                                            "trial opened",  "closed: CONNECTION_FORCED"};
    EXPECT_EQ(told(bytes), expected);
    for (const std::size_t step : {1, 2, 3, 7, 8, 11, 100, 4095, 4096, 4097}) {
        EXPECT_EQ(told(bytes, step), expected) << step;
    }
}

TEST(AmqpFrames, NoPrefixIsTakenForMore) {
    const std::string bytes = all_kinds();
    std::size_t most = 0;
    for (std::size_t size = 0; size <= bytes.size(); size += size < 900 ? 1 : 97) {
        const std::vector<std::string> events = told(std::string_view(bytes).substr(0, size));
        EXPECT_GE(events.size(), most) << size;
        most = events.size();
        for (const std::string& event : events) {
            ASSERT_FALSE(event.starts_with("failed")) << event;
        }
    }
}

TEST(AmqpFrames, UnknownTagsArePassedOn) {
    const std::string bytes = wire([](Peer& peer) {
        send_handshake(peer);
        peer.send_ack(0);
        peer.send_ack(~std::uint64_t{0}, true, 3);
    });
    EXPECT_EQ(told(bytes),
              (std::vector<std::string>{"ready", "main ack 0", "trial ack 18446744073709551615*"}));
}

Writer frame(std::uint8_t type, std::uint16_t channel, std::string_view payload,
             std::uint8_t end = 0xCE) {
    return Writer().u8(type).u16(channel).long_string(payload).u8(end);
}

/// A table in a table in ... `depth` of them.
std::string nested(int depth) {
    std::string table = Writer().u32(0).bytes();
    for (int i = 1; i < depth; ++i) {
        table = Writer().long_string(Writer().short_string("").u8('F').raw(table).bytes()).bytes();
    }
    return table;
}

TEST(AmqpFrames, GarbageEndsTheConnection) {
    struct Case {
        Writer bytes;
        std::string failure;
    };
    const std::string ack = Writer().u16(60).u16(80).u64(1).u8(0).bytes();
    const auto header = [](std::uint16_t flags, std::string_view values) {
        return Writer().u16(60).u16(0).u64(0).u16(flags).raw(values).bytes();
    };
    const std::vector<Case> cases{
        {frame(method_frame, 7, ack), "frame from the broker on channel 7, which is not open"},
        {frame(method_frame, 1, ack, 0), "frame without its end mark from the broker on channel 1"},
        {frame(4, 1, ack), "frame of unknown type 4 from the broker"},
        {frame('H', 1, ack), "frame of unknown type 72 from the broker"},
        {frame(method_frame, 1, ""), "malformed method from the broker on channel 1"},
        {frame(method_frame, 1, "abc"), "malformed method from the broker on channel 1"},
        {frame(method_frame, 1, ack.substr(0, 6)),
         "malformed frame of type 1 from the broker on channel 1: invalid AMQP data"},
        {frame(method_frame, 1, Writer().u16(999).u16(1).bytes()),
         "unexpected method 999.1 from the broker on channel 1"},
        {frame(method_frame, 1, Writer().u16(20).u16(20).u8(0).bytes()),
         "unexpected channel.flow from the broker on channel 1"},
        {frame(method_frame, 1, Writer().u16(60).u16(60).bytes()),
         "unexpected basic.deliver from the broker on channel 1"},
        // What only clients send, with a table that would be decoded.
        {frame(method_frame, 2, Writer().u16(50).u16(10).u16(0).u8(0).u8(0).raw(nested(9)).bytes()),
         "unexpected queue.declare from the broker on channel 2"},
        {frame(method_frame, 0, ack), "unexpected basic.ack from the broker on channel 0"},
        {frame(method_frame, 1, Writer().u16(10).u16(60).short_string("").bytes()),
         "unexpected connection.blocked from the broker on channel 1"},
        {frame(heartbeat_frame, 1, ""), "malformed heartbeat from the broker on channel 1"},
        {frame(heartbeat_frame, 0, "x"), "malformed heartbeat from the broker on channel 0"},
        {frame(header_frame, 1, std::string(13, '\0')),
         "malformed content header from the broker on channel 1"},
        {frame(header_frame, 1, header(0x2000, Writer().u32(1000).bytes())),
         "malformed content header from the broker on channel 1"},
        {frame(header_frame, 1, header(0xE000, Writer().short_string("x").u8(200).bytes())),
         "malformed content header from the broker on channel 1"},
        {frame(header_frame, 1, header(0x2000, nested(101))),
         "malformed content header from the broker on channel 1"},
        {Writer().u8(1).u16(1).u32(4089), "frame of 4097 bytes from the broker, larger than 4096"},
        {Writer().u8(3).u16(1).u32(0xFFFFFFFF),
         "frame of 4294967303 bytes from the broker, larger than 4096"},
    };
    const std::string handshake = wire(send_handshake);
    for (const Case& c : cases) {
        for (const std::size_t step : {std::size_t{1}, std::string::npos}) {
            EXPECT_EQ(told(handshake + c.bytes.bytes(), step),
                      (std::vector<std::string>{"ready", "closed: " + c.failure}));
        }
    }
}

TEST(AmqpFrames, TablesOfAnyKindOfValueComeBack) {
    const std::string values = Writer()
                                   .short_string("t")
                                   .u8('t')
                                   .u8(1)
                                   .short_string("b")
                                   .u8('b')
                                   .u8(1)
                                   .short_string("B")
                                   .u8('B')
                                   .u8(1)
                                   .short_string("s")
                                   .u8('s')
                                   .u16(1)
                                   .short_string("u")
                                   .u8('u')
                                   .u16(1)
                                   .short_string("I")
                                   .u8('I')
                                   .u32(1)
                                   .short_string("i")
                                   .u8('i')
                                   .u32(1)
                                   .short_string("l")
                                   .u8('l')
                                   .u64(1)
                                   .short_string("L")
                                   .u8('L')
                                   .u64(1)
                                   .short_string("f")
                                   .u8('f')
                                   .u32(1)
                                   .short_string("d")
                                   .u8('d')
                                   .u64(1)
                                   .short_string("D")
                                   .u8('D')
                                   .u8(1)
                                   .u32(1)
                                   .short_string("T")
                                   .u8('T')
                                   .u64(1)
                                   .short_string("S")
                                   .u8('S')
                                   .long_string("text")
                                   .short_string("x")
                                   .u8('x')
                                   .long_string("bytes")
                                   .short_string("V")
                                   .u8('V')
                                   .short_string("A")
                                   .u8('A')
                                   .long_string(std::string("VV", 2))
                                   .short_string("F")
                                   .u8('F')
                                   .raw(nested(64))
                                   .bytes();
    const std::string bytes = wire([&](Peer& peer) {
        send_handshake(peer);
        peer.send_return(0, 0x2080, Writer().long_string(values).short_string("msg_1"));
    });
    EXPECT_EQ(told(bytes), (std::vector<std::string>{"ready", "main returned msg_1"}));
}

TEST(AmqpFrames, GreetingWithADeepTable) {
    const auto start = [](const std::string& table) {
        return frame(method_frame, 0,
                     Writer()
                         .u16(10)
                         .u16(10)
                         .u8(0)
                         .u8(9)
                         .raw(table)
                         .long_string("PLAIN")
                         .long_string("en_US")
                         .bytes())
            .bytes();
    };
    EXPECT_EQ(told(start(nested(100))), std::vector<std::string>{});
    EXPECT_EQ(told(start(nested(8000))),
              std::vector<std::string>{"failed: malformed connection.start from the broker on "
                                       "channel 0 during the handshake"});
}

TEST(AmqpFrames, CutInTheMiddleOfAFrame) {
    fake::Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send_ack(1);
        peer.send(Writer().u8(1).u16(1).u32(13).u16(60).bytes());
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
    EXPECT_EQ(client.next_as<Closed>().value_or(Closed{}).failure.text,
              "broker closed the connection in the middle of a frame");
}

TEST(AmqpFrames, OneThatNeverEndsIsNotWaitedFor) {
    fake::Broker broker([](Peer& peer) {
        (void)peer.handshake();
        peer.send(Writer().u8(1).u16(1).u32(100000).u16(60).bytes());
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_FALSE(client.next(200ms).has_value());
    for (int i = 0; i < 1000; ++i) {
        ASSERT_FALSE(client.poll().has_value());
    }
    EXPECT_TRUE(client.connection.is_open());
}

TEST(AmqpFrames, WithoutEndTheyKeepNobody) {
    for (const bool heartbeats : {false, true}) {
        std::atomic<bool> enough = false;
        fake::Broker broker([&](Peer& peer) {
            (void)peer.handshake();
            peer.send_return(~std::uint64_t{0});
            std::string burst;
            for (int i = 0; i < 1000; ++i) {
                burst += (heartbeats ? frame(heartbeat_frame, 0, "")
                                     : frame(body_frame, 1, std::string(2000, 'x')))
                             .bytes();
            }
            while (!enough) {
                peer.send(burst);
            }
        });
        Client client;
        ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
        const auto until = Clock::now() + 300ms;
        while (Clock::now() < until) {
            ASSERT_FALSE(client.poll().has_value());
        }
        EXPECT_TRUE(client.connection.is_open());
        enough = true;
        client.connection.close();
    }
}

TEST(AmqpFrames, ByteByByteThroughASocket) {
    const std::string bytes = all_kinds();
    fake::Broker broker([&](Peer& peer) {
        for (const char byte : bytes) {
            peer.send(std::string_view(&byte, 1));
        }
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    std::vector<std::string> events{"ready"};
    while (const std::optional<Incoming> incoming = client.next()) {
        events.push_back(describe(*incoming));
    }
    EXPECT_EQ(events, told(bytes));
}

}  // namespace
