#include "amqp/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace outbox::amqp {

namespace {

// While other addresses are left, one that does not answer (a black hole, often a host's IPv6
// address) may not use up the caller's whole deadline. Two seconds allow for one lost SYN.
constexpr Duration address_patience{2000};

constexpr Duration no_deadline{3'600'000};

// Far more than the kernel's default, so that a whole window of unconfirmed messages fits.
constexpr int wanted_send_buffer = 1024 * 1024;

bool is_ready(int fd, short events) {
    pollfd entry{};
    entry.fd = fd;
    entry.events = events;
    int result = 0;
    do {
        result = ::poll(&entry, 1, 0);
    } while (result < 0 && errno == EINTR);
    return result > 0;
}

// Each option only improves on the kernel's default, so a kernel that refuses one is no error.
void set_option(int fd, int level, int name, int value) {
    (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

std::string numeric_host(const sockaddr_storage& storage, socklen_t length) {
    char text[NI_MAXHOST];
    const int result = ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, text,
                                     sizeof(text), nullptr, 0, NI_NUMERICHOST);
    return result == 0 ? text : "?";
}

}  // namespace

Duration time_until(Clock::time_point deadline, Clock::time_point now) {
    if (deadline <= now) {
        return Duration{0};
    }
    return std::chrono::ceil<Duration>(deadline - now);
}

bool is_readable(int fd) {
    return is_ready(fd, POLLIN);
}

bool is_writable(int fd) {
    return is_ready(fd, POLLOUT);
}

std::string peek(int fd, std::size_t limit) {
    // Without bytes a recv would take the socket's pending error away from the next read.
    int waiting = 0;
    if (::ioctl(fd, FIONREAD, &waiting) != 0 || waiting <= 0) {
        return {};
    }
    std::string bytes(limit, '\0');
    const ssize_t got = ::recv(fd, bytes.data(), limit, MSG_PEEK | MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
}

void push_corked(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

void set_user_timeout(int fd, Duration timeout) {
#ifdef TCP_USER_TIMEOUT
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout.count()));
#else
    (void)fd;
    (void)timeout;
#endif
}

std::size_t send_buffer_capacity(int fd) {
    int granted = 0;
    socklen_t length = sizeof(granted);
    if (::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &length) != 0 || granted < 0) {
        return 0;
    }
    // The kernel reports twice what it means for payload: the rest is for its own bookkeeping.
    return static_cast<std::size_t>(granted) / 2;
}

TcpConnect::Progress TcpConnect::start(const std::string& host, std::uint16_t port,
                                       Duration user_timeout) {
    drop();
    host_ = host;
    port_ = port;
    user_timeout_ = user_timeout;
    error_.clear();
    return resolve() ? try_next() : Progress::failed;
}

TcpConnect::Progress TcpConnect::advance() {
    if (fd_ < 0) {
        return Progress::failed;
    }
    const Address& address = addresses_[next_ - 1];
    if (!is_writable(fd_)) {
        const bool more = next_ < addresses_.size();
        if (!more || Clock::now() < give_up_) {
            return Progress::in_progress;
        }
        fail_address(address, ETIMEDOUT);
        return try_next();
    }
    int error_number = 0;
    socklen_t length = sizeof(error_number);
    if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) {
        error_number = errno;
    }
    if (error_number == 0) {
        return Progress::connected;
    }
    fail_address(address, error_number);
    return try_next();
}

int TcpConnect::release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
}

void TcpConnect::drop() {
    if (fd_ >= 0) {
        ::close(fd_);
        fd_ = -1;
    }
    addresses_.clear();
    next_ = 0;
}

Duration TcpConnect::max_wait() const {
    if (fd_ < 0 || next_ >= addresses_.size()) {
        return no_deadline;
    }
    return time_until(give_up_, Clock::now());
}

// getaddrinfo is the one call of a connection that may block (for as long as resolv.conf allows),
// since the C library has no portable way to resolve without waiting. A numeric address never
// blocks.
bool TcpConnect::resolve() {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const int result = ::getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &list);
    if (result != 0) {
        const char* reason = result == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(result);
        error_ = "could not resolve host \"" + host_ + "\": " + reason;
        return false;
    }
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        if (entry->ai_addrlen > sizeof(sockaddr_storage)) {
            continue;
        }
        Address& address = addresses_.emplace_back();
        std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
        address.length = entry->ai_addrlen;
    }
    ::freeaddrinfo(list);
    if (addresses_.empty()) {
        error_ = "host \"" + host_ + "\" has no address";
        return false;
    }
    return true;
}

TcpConnect::Progress TcpConnect::try_next() {
    while (next_ < addresses_.size()) {
        if (try_address(addresses_[next_++])) {
            give_up_ = Clock::now() + address_patience;
            return Progress::in_progress;
        }
    }
    return Progress::failed;
}

bool TcpConnect::try_address(const Address& address) {
    fd_ = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) {
        fail_address(address, errno);
        return false;
    }
    set_option(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd_, SOL_SOCKET, SO_SNDBUF, wanted_send_buffer);
    set_user_timeout(fd_, user_timeout_);
    const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
    // EINTR: the connect goes on by itself, like EINPROGRESS.
    if (::connect(fd_, name, address.length) != 0 && errno != EINPROGRESS && errno != EINTR) {
        fail_address(address, errno);
        return false;
    }
    return true;
}

void TcpConnect::fail_address(const Address& address, int error_number) {
    if (fd_ >= 0) {
        ::close(fd_);
        fd_ = -1;
    }
    const std::string numeric = numeric_host(address.storage, address.length);
    error_ = "could not connect to host \"" + host_ + "\"";
    if (numeric != host_) {
        error_ += " (" + numeric + ")";
    }
    error_ += ", port " + std::to_string(port_) + ": " + std::strerror(error_number);
}

}  // namespace outbox::amqp
