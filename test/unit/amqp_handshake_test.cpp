#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

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
    EXPECT_EQ(client.connection.stage(),
              "connecting to host \"127.0.0.1\", port " + std::to_string(broker.port()));
    Progress progress = Progress::in_progress;
    while (progress == Progress::in_progress) {
        client.wait(Clock::now() + 3s);
        progress = client.advance();
    }
    ASSERT_EQ(progress, Progress::ready) << client.failure();
    EXPECT_TRUE(client.connection.is_open());
    EXPECT_TRUE(client.connection.is_open(Channel::main));
    EXPECT_TRUE(client.connection.is_open(Channel::trial));
    EXPECT_EQ(client.connection.stage(), "");
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
    EXPECT_EQ(login->tune_ok.channel_max, 3);
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
    EXPECT_GE(socket_option(fd, SOL_SOCKET, SO_SNDBUF), 100'000);
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
        ASSERT_TRUE(peer.login());
        ASSERT_TRUE(peer.read_open(1));
        peer.send_method(1, 20, 11, Writer().long_string(""));
        peer.send_connection_close(540, "NOT_IMPLEMENTED - confirm.select");
        peer.wait_for_close();
    });
    Client client;
    EXPECT_EQ(client.connect(broker.port()), Progress::failed);
    EXPECT_EQ(client.failure(), "NOT_IMPLEMENTED - confirm.select");
    EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
}

TEST(AmqpHandshake, MechanismThatIsNotOffered) {
    struct Case {
        outbox::AuthMechanism mechanism;
        const char* offered;
        const char* failure;
    };
    for (const Case& c : {Case{outbox::AuthMechanism::plain, "EXTERNAL PLAINER",
                               "the broker does not offer authentication mechanism PLAIN, only "
                               "\"EXTERNAL PLAINER\""},
                          Case{outbox::AuthMechanism::external, "AMQPLAIN PLAIN",
                               "the broker does not offer authentication mechanism EXTERNAL, only "
                               "\"AMQPLAIN PLAIN\""}}) {
        Broker broker([&](Peer& peer) {
            ASSERT_TRUE(peer.expect_header());
            peer.send_start(c.offered);
            peer.wait_for_close();
        });
        outbox::BrokerUri uri;
        uri.auth = c.mechanism;
        Client client;
        EXPECT_EQ(client.connect(broker.port(), Client::default_options(), 20s, uri),
                  Progress::failed);
        EXPECT_EQ(client.failure_class(), FailureClass::configuration);
        EXPECT_EQ(client.failure(), c.failure);
    }
}

TEST(AmqpHandshake, ExternalNamesTheUserOnlyIfTheUriDoes) {
    for (const bool has_user : {false, true}) {
        std::string mechanism;
        std::string response = "none";
        Broker broker([&](Peer& peer) {
            ASSERT_TRUE(peer.expect_header());
            peer.send_start("PLAIN EXTERNAL");
            const std::optional<fake::Frame> frame = peer.read_frame();
            ASSERT_TRUE(frame && frame->is_method(10, 11));
            fake::Reader start_ok(frame->arguments());
            (void)start_ok.long_string();
            mechanism = start_ok.short_string();
            response = start_ok.long_string();
        });
        outbox::BrokerUri uri;
        uri.auth = outbox::AuthMechanism::external;
        uri.user = has_user ? "drainer" : "guest";
        uri.has_user = has_user;
        Client client;
        EXPECT_EQ(client.connect(broker.port(), Client::default_options(), 20s, uri),
                  Progress::failed);
        EXPECT_EQ(client.failure(), "broker closed the connection during the handshake");
        broker.join();
        EXPECT_EQ(mechanism, "EXTERNAL");
        EXPECT_EQ(response, has_user ? "drainer" : "");
    }
}

TEST(AmqpHandshake, TooFewChannels) {
    struct Case {
        std::uint16_t server;
        std::uint16_t uri;
        const char* failure;
    };
    for (const Case& c :
         {Case{1, 0, "the broker allows 1 channel per connection (channel_max), 3 are needed"},
          Case{2, 0, "the broker allows 2 channels per connection (channel_max), 3 are needed"},
          Case{0, 1, "the broker URI allows 1 channel per connection (channel_max), 3 are needed"},
          Case{2, 2,
               "the broker URI allows 2 channels per connection (channel_max), 3 are needed"}}) {
        Broker broker([&](Peer& peer) {
            ASSERT_TRUE(peer.expect_header());
            peer.send_start();
            (void)peer.read_frame();
            peer.send_tune({c.server, 131072, 0});
            peer.wait_for_close();
        });
        outbox::BrokerUri uri;
        uri.channel_max = c.uri;
        Client client;
        EXPECT_EQ(client.connect(broker.port(), Client::default_options(), 20s, uri),
                  Progress::failed);
        EXPECT_EQ(client.failure_class(), FailureClass::configuration);
        EXPECT_EQ(client.failure(), c.failure);
    }
}

TEST(AmqpHandshake, ChannelsAreOpenedTogetherAndInAnyOrder) {
    Broker broker([](Peer& peer) {
        ASSERT_TRUE(peer.login());
        // All of it comes before the first answer.
        ASSERT_TRUE(peer.read_open(1) && peer.read_open(2) && peer.read_open(3));
        peer.send_method(3, 20, 11, Writer().long_string(""));
        peer.send_method(1, 20, 11, Writer().long_string(""));
        peer.send_method(3, 85, 11);
        peer.send_method(1, 85, 11);
        peer.send_method(0, 10, 60, Writer().short_string("low on disk"));
        peer.send_method(2, 20, 11, Writer().long_string(""));
        peer.send_ack(1);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    EXPECT_EQ(client.next_as<Blocked>().value_or(Blocked{}).reason, "low on disk");
    EXPECT_TRUE(client.next_as<Confirm>().has_value());
}

TEST(AmqpHandshake, ChannelsThatAreNotOpenedAsTheyShould) {
    using Script = void (*)(Peer&);
    struct Case {
        Script script;
        const char* failure;
    };
    const auto open_ok = [](Peer& peer, std::uint16_t channel) {
        peer.send_method(channel, 20, 11, Writer().long_string(""));
    };
    static const auto send_open_ok = open_ok;
    const std::vector<Case> cases{
        {[](Peer& peer) { peer.send_method(1, 85, 11); },
         "unexpected confirm.select-ok from the broker on channel 1"},
        {[](Peer& peer) {
             send_open_ok(peer, 1);
             send_open_ok(peer, 1);
         },
         "unexpected channel.open-ok from the broker on channel 1"},
        {[](Peer& peer) {
             send_open_ok(peer, 2);
             peer.send_method(2, 85, 11);
         },
         "unexpected confirm.select-ok from the broker on channel 2"},
        {[](Peer& peer) {
             peer.send_open_ok(3);
             peer.send_ack(1, false, 3);
         },
         "unexpected basic.ack from the broker on channel 3 during the handshake"},
        {[](Peer& peer) { peer.send_channel_close(541, "INTERNAL_ERROR", 3); },
         "broker closed channel 3 while it was being opened: INTERNAL_ERROR"},
        {[](Peer& peer) { send_open_ok(peer, 4); },
         "frame from the broker on channel 4, which is not open during the handshake"},
    };
    for (const Case& c : cases) {
        Broker broker([&](Peer& peer) {
            ASSERT_TRUE(peer.login());
            ASSERT_TRUE(peer.read_open(1) && peer.read_open(2) && peer.read_open(3));
            c.script(peer);
            peer.wait_for_close();
        });
        Client client;
        EXPECT_EQ(client.connect(broker.port()), Progress::failed);
        EXPECT_EQ(client.failure(), c.failure);
        EXPECT_EQ(client.failure_class(), FailureClass::infrastructure);
    }
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
        {"Any old line of text",
         "the server does not speak AMQP 0-9-1: it answered \"Any old line of text\""},
        {std::string(100, 'x'),
         "the server does not speak AMQP 0-9-1: it answered \"" + std::string(40, 'x') + "\""},
        {std::string("\x01\0\0\x7f\xff\xff\xff\xff\xff", 9),
         "frame of 2147483655 bytes from the broker, larger than 65536 during the handshake"},
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
    EXPECT_EQ(client.connection.stage(), "waiting for the broker's greeting");
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
        outbox::BrokerUri uri;
    };
    const auto with = [](std::uint16_t channel_max, outbox::Duration heartbeat) {
        outbox::BrokerUri uri;
        uri.channel_max = channel_max;
        uri.heartbeat = heartbeat;
        return uri;
    };
    const std::vector<Case> cases{
        {{0, 0, 0}, 10s, {3, 131072, 10}, {}},
        {{3, 4096, 5}, 10s, {3, 4096, 5}, {}},
        {{2047, 1000000, 60}, 1500ms, {3, 131072, 2}, {}},
        {{2047, 131072, 60}, 0ms, {3, 131072, 60}, {}},
        {{2047, 131072, 60}, 10s, {100, 131072, 7}, with(100, 7s)},
        {{50, 131072, 60}, 10s, {50, 131072, 60}, with(100, 0s)},
        {{0, 131072, 0}, 10s, {100, 131072, 0}, with(100, 0s)},
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
        ASSERT_EQ(client.connect(broker.port(), options, 20s, c.uri), Progress::ready)
            << client.failure();
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
    outbox::BrokerUri uri;
    uri.host = "300.300.300.300.invalid";
    Client client;
    Progress progress =
        timed([&] { return client.connection.open(uri, Client::default_options()); });
    if (progress == Progress::in_progress) {
        EXPECT_EQ(client.connection.stage(), "resolving host \"300.300.300.300.invalid\"");
    }
    const auto deadline = Clock::now() + 20s;
    while (progress == Progress::in_progress && Clock::now() < deadline) {
        client.wait(deadline);
        progress = client.advance();
    }
    EXPECT_EQ(progress, Progress::failed);
    EXPECT_TRUE(
        client.failure().starts_with("could not resolve host \"300.300.300.300.invalid\": "))
        << client.failure();
    EXPECT_EQ(client.connection.fd(), -1);
}

}  // namespace
