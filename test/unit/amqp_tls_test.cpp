#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "amqp_client.hpp"
#include "fake_broker.hpp"
#include "tls_peer.hpp"

// Connections by TLS: a front ends TLS before the fake broker.
namespace {

using namespace amqp_test;
using certificates::Directory;
using certificates::Identity;
using fake::Broker;
using testing::HasSubstr;
using testing::StartsWith;

void write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
}

int loopback_socket(sockaddr_in& address, std::uint16_t port) {
    address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/// Speaks TLS with one client and passes what it says on to the broker's port.
class TlsFront {
  public:
    TlsFront(const Identity& identity, std::uint16_t broker_port, std::size_t piece = 1 << 20,
             const Identity* client_authority = nullptr)
        : peer_(identity), broker_port_(broker_port), piece_(piece) {
        if (client_authority != nullptr) {
            peer_.demand_certificate(*client_authority);
        }
        sockaddr_in address{};
        listen_fd_ = loopback_socket(address, 0);
        EXPECT_EQ(::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
        EXPECT_EQ(::listen(listen_fd_, 5), 0);
        socklen_t length = sizeof(address);
        ::getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &length);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { serve(); });
    }
    ~TlsFront() {
        stop_ = true;
        join();
        ::close(listen_fd_);
    }
    TlsFront(const TlsFront&) = delete;
    TlsFront& operator=(const TlsFront&) = delete;

    std::uint16_t port() const { return port_; }
    void join() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    // After join().
    const std::string& heard() const { return heard_; }
    const tls_test::Peer& peer() const { return peer_; }

  private:
    bool is_readable(int fd) {
        pollfd entry{fd, POLLIN, 0};
        return ::poll(&entry, 1, 0) > 0;
    }

    void serve() {
        pollfd entry{listen_fd_, POLLIN, 0};
        while (!stop_ && ::poll(&entry, 1, 20) == 0) {
        }
        client_ = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
        sockaddr_in address{};
        broker_ = loopback_socket(address, broker_port_);
        EXPECT_EQ(::connect(broker_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
        while (!stop_ && pass()) {
        }
        ::close(broker_);
        ::close(client_);
    }

    // False once an end has closed.
    bool pass() {
        pollfd entries[] = {{client_, POLLIN, 0}, {broker_, POLLIN, 0}};
        ::poll(entries, 2, 20);
        char buffer[65536];
        if (entries[0].revents != 0) {
            const ssize_t got = ::recv(client_, buffer, sizeof(buffer), 0);
            if (got <= 0) {
                return false;
            }
            const std::string bytes(buffer, static_cast<std::size_t>(got));
            heard_ += bytes;
            peer_.feed(bytes);
            write_all(broker_, peer_.received);
            peer_.received.clear();
        }
        if (entries[1].revents != 0) {
            const ssize_t got = ::recv(broker_, buffer, sizeof(buffer), 0);
            if (got <= 0) {
                if (SSL_is_init_finished(peer_.ssl()) != 0) {
                    peer_.close();
                    answer();
                }
                return false;
            }
            peer_.write(std::string(buffer, static_cast<std::size_t>(got)));
        }
        answer();
        return true;
    }

    void answer() {
        const std::string bytes = peer_.take();
        for (std::size_t at = 0; at < bytes.size(); at += piece_) {
            write_all(client_, bytes.substr(at, piece_));
        }
    }

    tls_test::Peer peer_;
    std::uint16_t broker_port_;
    std::size_t piece_;
    int listen_fd_ = -1;
    int client_ = -1;
    int broker_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<bool> stop_{false};
    std::string heard_;
    std::thread thread_;
};

class AmqpTls : public testing::Test {
  protected:
    outbox::BrokerUri uri() const {
        outbox::BrokerUri uri;
        uri.password = "se/cret";
        uri.tls.emplace();
        uri.tls->root_cert = ca_file_;
        return uri;
    }
    Progress connect(std::uint16_t port) { return connect(port, uri()); }
    Progress connect(std::uint16_t port, const outbox::BrokerUri& uri) {
        return client_.connect(port, Client::default_options(), 20s, uri);
    }
    bool is_configuration() {
        return client_.connection.failure().failure_class == FailureClass::configuration;
    }

    Directory directory_;
    Identity ca_{certificates::Request{"Test Authority", {}, true}};
    Identity server_{certificates::Request{"a broker", {"IP:127.0.0.1"}}, &ca_};
    std::string ca_file_ = directory_.write("ca.pem", ca_.certificate_pem());
    Client client_;
};

void confirm_one(fake::Peer& peer) {
    (void)peer.handshake();
    const std::optional<fake::Published> message = peer.read_message();
    ASSERT_TRUE(message.has_value());
    peer.send_ack(1);
    peer.wait_for_close();
}

TEST_F(AmqpTls, PublishesAndIsConfirmed) {
    Broker broker(confirm_one);
    TlsFront front(server_, broker.port());
    ASSERT_EQ(connect(front.port()), Progress::ready) << client_.failure();
    ASSERT_EQ(client_.publish("a body in the clear"), 1U);
    EXPECT_TRUE(client_.next_as<Confirm>().has_value());
    client_.connection.close();
    front.join();
    EXPECT_EQ(front.heard().substr(0, 2), "\x16\x03");
    for (const char* word : {"AMQP", "se/cret", "a body", "PLAIN"}) {
        EXPECT_EQ(front.heard().find(word), std::string::npos) << word;
    }
}

TEST_F(AmqpTls, BytesMayComeOneByOne) {
    Broker broker(confirm_one);
    TlsFront front(server_, broker.port(), 1);
    ASSERT_EQ(connect(front.port()), Progress::ready) << client_.failure();
    ASSERT_EQ(client_.publish("body"), 1U);
    EXPECT_TRUE(client_.next_as<Confirm>().has_value());
}

TEST_F(AmqpTls, LargeMessagesGoOutAsTheSocketTakesThem) {
    const std::string body(20'000'000, 'b');
    Broker broker([&](fake::Peer& peer) {
        (void)peer.handshake();
        const std::optional<fake::Published> message = peer.read_message();
        ASSERT_TRUE(message.has_value());
        EXPECT_TRUE(message->body == body);
        peer.send_ack(1);
        peer.wait_for_close();
    });
    TlsFront front(server_, broker.port());
    ASSERT_EQ(connect(front.port()), Progress::ready) << client_.failure();
    ASSERT_EQ(client_.publish(body), 1U);
    EXPECT_GT(client_.connection.unsent_bytes(), 0U);
    const auto deadline = Clock::now() + 60s;
    while (client_.connection.unsent_bytes() > 0 && Clock::now() < deadline) {
        client_.wait(deadline);
        ASSERT_TRUE(timed([&] { return client_.connection.flush(); })) << client_.failure();
    }
    EXPECT_TRUE(client_.next_as<Confirm>(60s).has_value());
}

TEST_F(AmqpTls, AnotherHostIsRefused) {
    Broker broker([](fake::Peer& peer) { EXPECT_EQ(peer.read_bytes(1), ""); });
    const Identity other({"other.example", {"DNS:other.example"}}, &ca_);
    TlsFront front(other, broker.port());
    EXPECT_EQ(connect(front.port()), Progress::failed);
    EXPECT_EQ(client_.failure(),
              "the server's certificate is not for host \"127.0.0.1\": it is "
              "for \"other.example\"");
    EXPECT_TRUE(is_configuration());
}

TEST_F(AmqpTls, APlainServerIsRefused) {
    Broker broker([](fake::Peer& peer) {
        peer.read_bytes(8);
        peer.send(std::string_view("AMQP\0\0\x9\1", 8));
    });
    EXPECT_EQ(connect(broker.port()), Progress::failed);
    EXPECT_EQ(client_.failure(),
              "the server does not speak TLS on this port: it answered \"AMQP\"");
    EXPECT_TRUE(is_configuration());
}

TEST_F(AmqpTls, AServerThatClosesInTheHandshake) {
    Broker broker([](fake::Peer& peer) { peer.read_bytes(1); });
    EXPECT_EQ(connect(broker.port()), Progress::failed);
    EXPECT_THAT(client_.failure(), HasSubstr(" in the TLS handshake"));
    EXPECT_FALSE(is_configuration());
}

TEST_F(AmqpTls, ASilentServerKeepsNobody) {
    Broker broker([](fake::Peer& peer) { peer.wait_for_close(); });
    EXPECT_EQ(client_.connect(broker.port(), Client::default_options(), 300ms, uri()),
              Progress::in_progress);
    EXPECT_EQ(client_.connection.stage(), "in the TLS handshake");
    timed([&] {
        client_.connection.close();
        return true;
    });
}

TEST_F(AmqpTls, TheEndOfTheSessionIsSeen) {
    Broker broker([](fake::Peer& peer) { (void)peer.handshake(); });
    TlsFront front(server_, broker.port());
    ASSERT_EQ(connect(front.port()), Progress::ready) << client_.failure();
    const std::optional<Closed> closed = client_.next_as<Closed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->failure.text, "the server closed the TLS session");
    EXPECT_EQ(closed->failure.failure_class, FailureClass::infrastructure);
}

TEST_F(AmqpTls, ACertificateIsALogin) {
    const Identity drainer({"drainer", {}}, &ca_);
    Broker broker([](fake::Peer& peer) {
        ASSERT_TRUE(peer.expect_header());
        peer.send_start("PLAIN EXTERNAL");
        const std::optional<fake::Frame> start_ok = peer.read_frame();
        ASSERT_TRUE(start_ok.has_value());
        EXPECT_NE(start_ok->payload.find("EXTERNAL"), std::string::npos);
        EXPECT_EQ(start_ok->payload.find("se/cret"), std::string::npos);
    });
    TlsFront front(server_, broker.port(), 1 << 20, &ca_);
    outbox::BrokerUri mutual = uri();
    mutual.tls->cert = directory_.write("client.pem", drainer.certificate_pem());
    mutual.tls->key = directory_.write("client.key", drainer.key_pem());
    mutual.auth = outbox::AuthMechanism::external;
    EXPECT_EQ(connect(front.port(), mutual), Progress::failed);
    broker.join();
    EXPECT_THAT(client_.failure(), StartsWith("the server closed the TLS session"));
    front.join();
    EXPECT_EQ(front.peer().subject_of_client(), "drainer");
}

TEST_F(AmqpTls, AMissingCertificateIsAskedFor) {
    Broker broker([](fake::Peer& peer) { EXPECT_EQ(peer.read_bytes(1), ""); });
    TlsFront front(server_, broker.port(), 1 << 20, &ca_);
    EXPECT_EQ(connect(front.port()), Progress::failed);
    EXPECT_EQ(client_.failure(),
              "the server asks for a client certificate (sslcert), and none is "
              "set: certificate required");
    EXPECT_TRUE(is_configuration());
}

}  // namespace
