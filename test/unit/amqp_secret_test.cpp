#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "amqp/session.hpp"
#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using outbox::amqp::Session;

// The password is never written down here, so that a search does not find the search.
constexpr char mask = 0x5A;

std::string masked_password() {
    std::string masked;
    for (int i = 0; i < 40; ++i) {
        masked += static_cast<char>(('A' + i % 13) ^ mask);
    }
    return masked;
}

/// How often the password lies in the writable memory of this process. Not on the stack: what
/// memcpy leaves in registers is saved there whenever the linker resolves a function.
int copies_in_memory() {
    const std::string masked = masked_password();
    int copies = 0;
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        char rights[5] = "";
        constexpr std::uintptr_t too_large = 256 * 1024 * 1024;  // shadow memory of a sanitizer
        if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 ||
            std::strncmp(rights, "rw", 2) != 0 || end - begin > too_large ||
            line.find("[stack]") != std::string::npos) {
            continue;
        }
        FILE* memory = std::fopen("/proc/self/mem", "r");
        for (std::uintptr_t at = begin; at < end; at += 4096) {
            // Pages overlap by the length of what is looked for.
            static char page[8192];
            const std::size_t size = std::min<std::size_t>(4096 + masked.size(), end - at);
            if (::pread(::fileno(memory), page, size, static_cast<off_t>(at)) <
                static_cast<ssize_t>(size)) {
                continue;
            }
            const char* found = page;
            while ((found = static_cast<const char*>(
                        std::memchr(found, masked[0] ^ mask, page + 4096 - found))) != nullptr) {
                std::size_t same = 0;
                while (same < masked.size() && found + same < page + size &&
                       (found[same] ^ mask) == masked[same]) {
                    ++same;
                }
                copies += same == masked.size() ? 1 : 0;
                ++found;
            }
            std::memset(page, 0, sizeof(page));
        }
        std::fclose(memory);
    }
    return copies;
}

/// A broker in a process of its own, as it sees the password too.
pid_t start_broker(int fd, int client_fd) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::close(client_fd);
        fake::Peer peer(fd);
        const bool good = peer.handshake().has_value() && peer.wait_for_close();
        ::_exit(good ? 0 : 1);
    }
    ::close(fd);
    return pid;
}

outbox::BrokerUri with_password() {
    outbox::BrokerUri uri;
    uri.password = masked_password();
    for (char& c : uri.password) {
        c = static_cast<char>(c ^ mask);
    }
    return uri;
}

/// `copies`: how many the caller has of the password.
void log_in(Session& session, const outbox::BrokerUri& uri, int copies) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    const pid_t broker = start_broker(ends[1], ends[0]);
    ASSERT_EQ(session.start(ends[0], uri, Client::default_options()), Progress::in_progress);
    const auto deadline = Clock::now() + 20s;
    while (session.advance() == Progress::in_progress && Clock::now() < deadline) {
        std::this_thread::yield();
    }
    EXPECT_TRUE(session.is_ready()) << session.failure().text;
    EXPECT_EQ(copies_in_memory(), copies);
    session.close();
    int status = -1;
    ASSERT_EQ(::waitpid(broker, &status, 0), broker);
    EXPECT_EQ(status, 0);
}

TEST(AmqpSecret, ThePasswordIsGoneAfterLogin) {
    Session session;
    {
        outbox::BrokerUri uri = with_password();
        EXPECT_EQ(copies_in_memory(), 1) << "the search finds what is there";
        ASSERT_NO_FATAL_FAILURE(log_in(session, uri, 1));
        ::explicit_bzero(uri.password.data(), uri.password.size());
    }
    EXPECT_EQ(copies_in_memory(), 0);
}

TEST(AmqpSecret, ThePasswordIsGoneAfterAFailure) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    Session session;
    outbox::BrokerUri uri = with_password();
    ASSERT_EQ(session.start(ends[0], uri, Client::default_options()), Progress::in_progress);
    ::explicit_bzero(uri.password.data(), uri.password.size());
    ::close(ends[1]);
    EXPECT_EQ(session.advance(), Progress::failed);
    session.close();
    EXPECT_EQ(copies_in_memory(), 0);
}

}  // namespace
