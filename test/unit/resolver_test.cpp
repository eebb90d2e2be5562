#include "amqp/resolver.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using outbox::amqp::Address;
using outbox::amqp::Resolver;
using Progress = Resolver::Progress;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t amqp_port = 5672;
constexpr std::uint16_t type_a = 1;
constexpr std::uint16_t type_aaaa = 28;
constexpr int no_error = 0;
constexpr int server_failure = 2;
constexpr int name_error = 3;

// No call may take longer. Far above what one takes, far below any wait for a name server.
constexpr auto at_once = 500ms;
// For what must come about, on however busy a machine.
constexpr auto generous = 60s;

template <typename Call>
auto timed(Call call) {
    const auto start = Clock::now();
    auto result = call();
    EXPECT_LT(Clock::now() - start, at_once) << "a call has waited";
    return result;
}

std::string text_of(const Address& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (address.storage.ss_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
        ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
        return std::string(text) + " " + std::to_string(ntohs(v4->sin_port));
    }
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    return std::string(text) + " " + std::to_string(ntohs(v6->sin6_port));
}

std::vector<std::string> texts_of(const Resolver& resolver) {
    std::vector<std::string> texts;
    for (const Address& address : resolver.addresses()) {
        texts.push_back(text_of(address));
    }
    std::sort(texts.begin(), texts.end());
    return texts;
}

int open_descriptors() {
    int count = 0;
    DIR* directory = ::opendir("/proc/self/fd");
    while (::readdir(directory) != nullptr) {
        count++;
    }
    ::closedir(directory);
    return count;
}

/// What a name server answers to a question for one type.
struct Reply {
    int code = no_error;
    std::vector<std::string> addresses;
};

/// A scripted name server on a UDP port of 127.0.0.1, in a thread of its own.
class NameServer {
  public:
    /// Gives the reply to a question; nullopt: says nothing.
    using Script = std::function<std::optional<Reply>(const std::string& name, std::uint16_t type)>;

    explicit NameServer(Script script) : script_(std::move(script)) {
        socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
        socklen_t length = sizeof(address);
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { serve(); });
    }
    ~NameServer() {
        stop_ = true;
        thread_.join();
        ::close(socket_);
    }

    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
    int questions() const { return questions_; }

  private:
    void serve() {
        while (!stop_) {
            pollfd entry{socket_, POLLIN, 0};
            if (::poll(&entry, 1, 20) > 0) {
                answer();
            }
        }
    }

    void answer() {
        char packet[1500];
        sockaddr_in peer{};
        socklen_t length = sizeof(peer);
        const ssize_t size = ::recvfrom(socket_, packet, sizeof(packet), 0,
                                        reinterpret_cast<sockaddr*>(&peer), &length);
        if (size < 17) {
            return;
        }
        questions_++;
        const std::string question(packet, static_cast<std::size_t>(size));
        std::string name;
        std::size_t at = 12;
        while (question[at] != 0) {
            const auto label = static_cast<std::size_t>(question[at]);
            name += (name.empty() ? "" : ".") + question.substr(at + 1, label);
            at += label + 1;
        }
        const auto type =
            static_cast<std::uint16_t>(static_cast<unsigned char>(question[at + 1]) << 8 |
                                       static_cast<unsigned char>(question[at + 2]));
        const std::optional<Reply> reply = script_(name, type);
        if (reply) {
            const std::string bytes = encode(question.substr(0, at + 5), type, *reply);
            ::sendto(socket_, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&peer),
                     length);
        }
    }

    static std::string encode(std::string question, std::uint16_t type, const Reply& reply) {
        std::string bytes = question.substr(0, 2);  // id
        bytes += '\x81';                            // an answer, recursion desired
        bytes += static_cast<char>(0x80 | reply.code);
        bytes += std::string("\0\1\0", 3);
        bytes += static_cast<char>(reply.addresses.size());
        bytes += std::string(4, '\0');
        bytes += question.substr(12);
        for (const std::string& text : reply.addresses) {
            const int family = type == type_a ? AF_INET : AF_INET6;
            char raw[16];
            EXPECT_EQ(::inet_pton(family, text.c_str(), raw), 1);
            const char size = family == AF_INET ? 4 : 16;
            bytes += std::string("\xc0\x0c\0", 3) + static_cast<char>(type);
            bytes += std::string("\0\1\0\0\0\x3c\0", 7) + size;
            bytes += std::string(raw, static_cast<std::size_t>(size));
        }
        return bytes;
    }

    Script script_;
    int socket_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<bool> stop_{false};
    std::atomic<int> questions_{0};
    std::thread thread_;
};

/// Goes on as a caller does, until it is done or failed.
Progress finish(Resolver& resolver, Progress progress) {
    const auto limit = Clock::now() + generous;
    while (progress == Progress::in_progress && Clock::now() < limit) {
        EXPECT_GE(resolver.fd(), 0);
        EXPECT_GT(resolver.max_wait(), 0ms);
        pollfd entry{resolver.fd(), POLLIN, 0};
        ::poll(&entry, 1, static_cast<int>(resolver.max_wait().count()));
        progress = timed([&] { return resolver.advance(); });
    }
    return progress;
}

Progress resolve(Resolver& resolver, const std::string& host, const std::string& servers = {}) {
    return finish(resolver, timed([&] { return resolver.start(host, amqp_port, servers); }));
}

NameServer::Script always(Reply reply) {
    return [reply](const std::string&, std::uint16_t) { return reply; };
}

NameServer::Script by_type(std::optional<Reply> v4, std::optional<Reply> v6) {
    return [v4, v6](const std::string&, std::uint16_t type) {
        return type == type_a ? v4 : type == type_aaaa ? v6 : Reply{name_error, {}};
    };
}

TEST(Resolver, NumericAddressesAreDoneAtOnce) {
    Resolver resolver;
    EXPECT_EQ(timed([&] { return resolver.start("192.0.2.7", 5672, "127.0.0.1:1"); }),
              Progress::done);
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"192.0.2.7 5672"});
    EXPECT_EQ(resolver.fd(), -1);

    EXPECT_EQ(resolver.start("2001:db8::7", 5671, "127.0.0.1:1"), Progress::done);
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"2001:db8::7 5671"});
    EXPECT_EQ(resolver.addresses().at(0).length, sizeof(sockaddr_in6));
}

TEST(Resolver, AZoneIsUnderstood) {
    Resolver resolver;
    EXPECT_EQ(resolver.start("fe80::1%lo", 5672, "127.0.0.1:1"), Progress::done);
    ASSERT_EQ(texts_of(resolver), std::vector<std::string>{"fe80::1 5672"});
    const auto* address =
        reinterpret_cast<const sockaddr_in6*>(&resolver.addresses().at(0).storage);
    EXPECT_EQ(address->sin6_scope_id, ::if_nametoindex("lo"));
}

TEST(Resolver, LocalhostNeedsNoServer) {
    Resolver resolver;
    ASSERT_EQ(timed([&] { return resolver.start("localhost", 5672, "127.0.0.1:1"); }),
              Progress::done);
    for (const std::string& text : texts_of(resolver)) {
        EXPECT_TRUE(text == "127.0.0.1 5672" || text == "::1 5672") << text;
    }
    EXPECT_FALSE(resolver.addresses().empty());
}

TEST(Resolver, BothFamiliesAreAsked) {
    NameServer server(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{no_error, {"2001:db8::1"}}));
    Resolver resolver;
    ASSERT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::done)
        << resolver.error();
    EXPECT_EQ(texts_of(resolver), (std::vector<std::string>{"192.0.2.1 5672", "2001:db8::1 5672"}));
    EXPECT_EQ(server.questions(), 2);
    EXPECT_EQ(resolver.fd(), -1);
}

TEST(Resolver, AllAddressesOfANameAreGiven) {
    NameServer server(by_type(Reply{no_error, {"192.0.2.1", "192.0.2.2"}}, Reply{}));
    Resolver resolver;
    ASSERT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::done)
        << resolver.error();
    EXPECT_EQ(texts_of(resolver), (std::vector<std::string>{"192.0.2.1 5672", "192.0.2.2 5672"}));
}

TEST(Resolver, AnUnknownNameFails) {
    NameServer server(always(Reply{name_error, {}}));
    Resolver resolver;
    EXPECT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::failed);
    EXPECT_EQ(resolver.error(),
              "could not resolve host \"broker.example.\": domain name not found");
    EXPECT_TRUE(resolver.addresses().empty());
    EXPECT_EQ(resolver.advance(), Progress::failed);
}

TEST(Resolver, ANameWithoutAddressFails) {
    NameServer server(always(Reply{}));
    Resolver resolver;
    EXPECT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::failed);
    EXPECT_EQ(resolver.error(),
              "could not resolve host \"broker.example.\": the name has no address");
}

TEST(Resolver, OneFamilyIsEnough) {
    NameServer server(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{server_failure, {}}));
    Resolver resolver;
    ASSERT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::done)
        << resolver.error();
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"192.0.2.1 5672"});
}

TEST(Resolver, TheNextServerIsAskedWhenOneFails) {
    NameServer bad(always(Reply{server_failure, {}}));
    NameServer good(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{}));
    Resolver resolver;
    ASSERT_EQ(resolve(resolver, "broker.example.", bad.address() + "," + good.address()),
              Progress::done)
        << resolver.error();
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"192.0.2.1 5672"});
}

TEST(Resolver, NoStormWhenServersFail) {
    NameServer server(always(Reply{server_failure, {}}));
    Resolver resolver;
    EXPECT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::failed);
    EXPECT_EQ(resolver.error().find("could not resolve host \"broker.example.\": "), 0U);
    // Two families, two rounds; c-ares repeats a question without EDNS at most once.
    EXPECT_LE(server.questions(), 8);
}

TEST(Resolver, ASilentServerIsWaitedForInSmallSteps) {
    NameServer server([](const std::string&, std::uint16_t) { return std::nullopt; });
    Resolver resolver;
    ASSERT_EQ(timed([&] { return resolver.start("broker.example.", 5672, server.address()); }),
              Progress::in_progress);
    EXPECT_GE(resolver.fd(), 0);
    EXPECT_GT(resolver.max_wait(), 0ms);
    EXPECT_LE(resolver.max_wait(), 10s);
    // However often it is called.
    for (int i = 0; i < 1000; i++) {
        ASSERT_EQ(resolver.advance(), Progress::in_progress);
    }
    const int before = open_descriptors();
    resolver.drop();
    EXPECT_LT(open_descriptors(), before);
    EXPECT_EQ(resolver.fd(), -1);
}

TEST(Resolver, ASilentServerIsGivenUpInTheEnd) {
    NameServer server([](const std::string&, std::uint16_t) { return std::nullopt; });
    Resolver resolver;
    EXPECT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::failed);
    EXPECT_EQ(resolver.error(),
              "could not resolve host \"broker.example.\": no name server answered");
    EXPECT_LE(server.questions(), 4) << "two families, two rounds";
}

TEST(Resolver, ASilentServerDelaysTheNextOnly) {
    NameServer silent([](const std::string&, std::uint16_t) { return std::nullopt; });
    NameServer good(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{}));
    Resolver resolver;
    ASSERT_EQ(resolve(resolver, "broker.example.", silent.address() + "," + good.address()),
              Progress::done)
        << resolver.error();
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"192.0.2.1 5672"});
}

TEST(Resolver, SignalsDoNotDisturb) {
    NameServer server([](const std::string&, std::uint16_t type) -> std::optional<Reply> {
        std::this_thread::sleep_for(200ms);
        return type == type_a ? Reply{no_error, {"192.0.2.1"}} : Reply{};
    });
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, &before);
    const itimerval often{{0, 1000}, {0, 1000}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
    Resolver resolver;
    EXPECT_EQ(resolve(resolver, "broker.example.", server.address()), Progress::done)
        << resolver.error();
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before, nullptr);
}

TEST(Resolver, NonsenseIsNoName) {
    Resolver resolver;
    for (const std::string& host :
         {std::string(), std::string("a\0b.example", 11), std::string("a..b."),
          std::string(300, 'a'), std::string(64, 'a') + ".example."}) {
        EXPECT_EQ(resolve(resolver, host, "127.0.0.1:1"), Progress::failed) << host;
        EXPECT_NE(resolver.error(), "");
    }
}

TEST(Resolver, AnswersThatAreGarbageDoNoHarm) {
    // Not an answer to what was asked; c-ares takes no notice or fails.
    NameServer server([](const std::string&, std::uint16_t type) -> std::optional<Reply> {
        return type == type_a ? Reply{no_error, {"192.0.2.1"}} : Reply{15, {}};
    });
    Resolver resolver;
    EXPECT_NE(resolve(resolver, "broker.example.", server.address()), Progress::in_progress);
}

TEST(Resolver, StartsOverAtAnyMoment) {
    NameServer silent([](const std::string&, std::uint16_t) { return std::nullopt; });
    NameServer good(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{}));
    Resolver resolver;
    ASSERT_EQ(resolver.start("one.example.", 5672, silent.address()), Progress::in_progress);
    ASSERT_EQ(resolve(resolver, "two.example.", good.address()), Progress::done);
    EXPECT_EQ(texts_of(resolver), std::vector<std::string>{"192.0.2.1 5672"});
    ASSERT_EQ(resolver.start("three.example.", 5672, silent.address()), Progress::in_progress);
    EXPECT_TRUE(resolver.addresses().empty());
}

TEST(Resolver, NothingIsLeftOfAThousandStarts) {
    NameServer silent([](const std::string&, std::uint16_t) { return std::nullopt; });
    NameServer good(by_type(Reply{no_error, {"192.0.2.1"}}, Reply{no_error, {"2001:db8::1"}}));
    Resolver resolver;
    const auto round = [&](int i) {
        if (i % 2 == 0) {
            ASSERT_EQ(resolver.start("broker.example.", 5672, silent.address()),
                      Progress::in_progress);
            if (i % 4 == 0) {
                resolver.drop();
            }
        } else {
            ASSERT_EQ(resolve(resolver, "broker.example.", good.address()), Progress::done);
        }
    };
    round(1);
    const int before = open_descriptors();
    for (int i = 0; i < 1000; i++) {
        round(i);
    }
    EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
