#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "amqp/resolver.hpp"
#include "core/time.hpp"

namespace outbox::amqp {

using Clock = std::chrono::steady_clock;

/// Milliseconds until `deadline`, rounded up so that a caller who waits that long is never early,
/// and not below zero.
Duration time_until(Clock::time_point deadline, Clock::time_point now);

/// Whether a short send() would return at once; of a socket that connects: whether that is over.
bool is_writable(int fd);
/// How long sent data may stay unacknowledged before the kernel ends the connection; zero: its
/// default.
void set_user_timeout(int fd, Duration timeout);
/// A TCP connect that never waits: it tries the addresses of a host one after another. Owns its
/// socket until release(). The socket is non-blocking and has all the options that a connection
/// wants.
class TcpConnect {
  public:
    enum class Progress : std::uint8_t { in_progress, connected, failed };

    TcpConnect() = default;
    ~TcpConnect() { drop(); }
    TcpConnect(const TcpConnect&) = delete;
    TcpConnect& operator=(const TcpConnect&) = delete;

    /// Starts with the first of the addresses; `host` and `port` are for messages. `user_timeout`:
    /// see set_user_timeout.
    Progress start(const std::string& host, std::uint16_t port, std::vector<Address> addresses,
                   Duration user_timeout);
    /// To be called when the socket is writable or max_wait() has passed.
    Progress advance();
    /// Hands the connected socket over.
    int release();
    void drop();

    int fd() const { return fd_; }
    Duration max_wait() const;
    /// "host \"x\" (10.0.0.1), port 5672": the address that is tried.
    std::string target() const;
    /// Why the last address could not be reached.
    const std::string& error() const { return error_; }

  private:
    Progress try_next();
    bool try_address(const Address& address);
    void fail_address(const Address& address, int error_number);
    std::string describe(const Address& address) const;

    std::string host_;
    std::uint16_t port_ = 0;
    Duration user_timeout_{0};
    std::vector<Address> addresses_;
    std::size_t next_ = 0;
    int fd_ = -1;
    Clock::time_point give_up_{};
    std::string error_;
};

}  // namespace outbox::amqp
