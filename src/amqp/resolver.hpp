#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/time.hpp"

namespace outbox::amqp {

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;
};

/// Resolves a host name through c-ares, without ever waiting: the hosts file and the name servers
/// of the system, IPv4 and IPv6. A numeric address needs neither.
class Resolver {
  public:
    enum class Progress : std::uint8_t { in_progress, done, failed };

    Resolver();
    ~Resolver();
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;

    /// Starts; may be done at once. `servers`: "address:port,..." to ask instead of the system's
    /// (for tests); empty: the system's.
    Progress start(const std::string& host, std::uint16_t port, const std::string& servers = {});
    /// To be called when fd() is readable or max_wait() has passed.
    Progress advance();
    void drop();

    /// Becomes readable when advance() has something to do; -1 when there is nothing to wait for.
    int fd() const;
    Duration max_wait() const;
    /// In the order in which they should be tried (RFC 6724 as far as c-ares goes); at least one
    /// after `done`.
    const std::vector<Address>& addresses() const;
    const std::string& error() const;  ///< "could not resolve host \"x\": domain name not found"

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace outbox::amqp
