#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/broker_uri.hpp"
#include "core/message.hpp"
#include "core/time.hpp"

namespace outbox::amqp {

/// How a connection ended or failed to come about, in the classes that matter to a drainer.
enum class FailureClass : std::uint8_t {
    infrastructure,  ///< network, timeout, broker shutdown, protocol error: try again soon
    configuration,   ///< wrong password, vhost or permission: nothing changes until somebody acts
};

struct Failure {
    FailureClass failure_class = FailureClass::infrastructure;
    std::string text;  ///< "connection refused", "ACCESS_REFUSED - Login was refused ..."
};

/// What the broker said. A channel that the broker closes ends the connection here, as a Failure is
/// reported in Closed.
struct Confirm {
    std::uint64_t tag = 0;
    bool multiple = false;
    bool ack = true;
};
/// No queue takes a message that was published as mandatory. It carries no delivery tag, and the
/// broker acks the message nonetheless: the ack comes after this one.
struct Returned {
    std::uint16_t reply_code = 0;
    std::string reply_text;
    std::string exchange;
    std::string routing_key;
    std::string message_id;  ///< as it was sent; empty: it had none
    std::string app_id;      ///< likewise
};
struct Blocked {
    std::string reason;
};
struct Unblocked {};
struct Closed {
    Failure failure;
};
using Incoming = std::variant<Confirm, Returned, Blocked, Unblocked, Closed>;

struct Options {
    Duration heartbeat{10000};
    std::string product;          ///< client property "product"
    std::string version;          ///< client property "version"
    std::string connection_name;  ///< client property "connection_name"
};

/// One connection to one broker with one channel in confirm mode. Nothing in here waits: the caller
/// waits on fd() for what wanted() says and calls again. The single exception is a send that the
/// socket buffer cannot take, which callers avoid by keeping less unconfirmed than
/// send_buffer_bytes() and bound with shutdown(fd) from a timer.
class Connection {
  public:
    enum class Progress : std::uint8_t { in_progress, ready, failed };
    struct Wanted {
        bool read = false;
        bool write = false;
    };

    Connection();
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Resolves the name and starts connecting. Any earlier connection is dropped first.
    Progress open(const BrokerUri& uri, const Options& options);
    /// Goes on with TCP connect, protocol header, login, tune, open, channel.open and
    /// confirm.select as far as possible without waiting. `ready` once messages can be published.
    Progress advance();
    /// Why the last open, advance, poll or publish failed.
    const Failure& failure() const;

    /// Reads what the broker has sent without waiting; nullopt when there is nothing more. Sends
    /// and checks heartbeats. After Closed the connection is gone.
    std::optional<Incoming> poll();

    /// Publishes a message; its delivery tag is returned, counted from 1 on each connection.
    /// nullopt: the connection failed (see failure()) and is gone; poll() still gives the returns
    /// and confirms that had arrived. `mandatory`: poll() gives a Returned before the confirm when
    /// no queue takes the message.
    std::optional<std::uint64_t> publish(const Message& message, bool mandatory = false);
    /// To be called when a burst of publishes is over: makes the kernel send what it holds back.
    void flush();

    /// Optional before close(): says goodbye, so that poll() gives the last confirms and then
    /// Closed once the broker has answered. A broker logs a connection that ends before that as
    /// unexpectedly closed.
    void start_close();
    /// Closes without waiting; says goodbye if that has not been done and the link is healthy.
    void close();

    bool is_open() const;
    int fd() const;  ///< -1 when there is no socket
    Wanted wanted() const;
    /// How long the caller may wait before poll() must be called again for the heartbeat, or
    /// advance() to try the next address of the host.
    Duration max_wait() const;
    /// Largest payload of a content header frame on this connection.
    std::size_t max_properties_bytes() const;
    /// What may be unconfirmed, in bytes, so that a publish does not block.
    std::size_t send_buffer_bytes() const;
    /// Product and version that the broker gave, "RabbitMQ 3.10.8"; empty before login.
    const std::string& broker_version() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace outbox::amqp
