#include "amqp/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace outbox::amqp {

namespace {

// While other addresses are left, one that does not answer (a black hole, often a host's IPv6
// address) may not use up the caller's whole deadline. Two seconds allow for one lost SYN.
constexpr Duration address_patience{2000};

constexpr Duration no_deadline{3'600'000};

// Far more than the kernel's default, so that a whole window of unconfirmed messages fits.
constexpr int wanted_send_buffer = 1024 * 1024;

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

bool is_writable(int fd) {
    pollfd entry{};
    entry.fd = fd;
    entry.events = POLLOUT;
    int result = 0;
    do {
        result = ::poll(&entry, 1, 0);
    } while (result < 0 && errno == EINTR);
    return result > 0;
}

void set_user_timeout(int fd, Duration timeout) {
#ifdef TCP_USER_TIMEOUT
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout.count()));
#else
    (void)fd;
    (void)timeout;
#endif
}

TcpConnect::Progress TcpConnect::start(const std::string& host, std::uint16_t port,
                                       std::vector<Address> addresses, Duration user_timeout) {
    drop();
    host_ = host;
    port_ = port;
    addresses_ = std::move(addresses);
    user_timeout_ = user_timeout;
    error_ = "host \"" + host + "\" has no address";
    return try_next();
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
    error_ = "could not connect to " + describe(address) + ": " + std::strerror(error_number);
}

std::string TcpConnect::describe(const Address& address) const {
    std::string text = "host \"" + host_ + "\"";
    const std::string numeric = numeric_host(address.storage, address.length);
    if (numeric != host_) {
        text += " (" + numeric + ")";
    }
    return text + ", port " + std::to_string(port_);
}

std::string TcpConnect::target() const {
    return next_ == 0 ? "host \"" + host_ + "\"" : describe(addresses_[next_ - 1]);
}

}  // namespace outbox::amqp
