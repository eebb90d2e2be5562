#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/broker_uri.hpp"
#include "core/channel.hpp"
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
    /// The broker closed the connection and named basic.publish as the method that it could not
    /// take: a message that is unconfirmed may be the cause.
    bool by_publish = false;
};

/// What the broker said.
struct Confirm {
    Channel channel = Channel::main;
    std::uint64_t tag = 0;
    bool multiple = false;
    bool ack = true;
};
/// No queue takes a message that was published as mandatory. It carries no delivery tag, and the
/// broker acks the message nonetheless: the ack comes after this one.
struct Returned {
    Channel channel = Channel::main;
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
/// The broker closed a channel: what was unconfirmed on it stays without an answer. The connection
/// opens it again by itself and tells by ChannelOpened; its delivery tags begin anew at 1.
struct ChannelClosed {
    Channel channel = Channel::main;
    std::uint16_t code = 0;  ///< 403, 404, 406 ...
    std::string text;        ///< "NOT_FOUND - no exchange 'x' in vhost '/'"
};
struct ChannelOpened {
    Channel channel = Channel::main;
};
/// The answer to ask().
struct Answer {
    bool ok = false;
    std::uint16_t code = 0;       ///< why not: 403, 404, 405, 406
    std::string text;             ///< in the broker's words
    std::uint32_t messages = 0;   ///< of a queue
    std::uint32_t consumers = 0;  ///< likewise
};
struct Closed {
    Failure failure;
};
using Incoming = std::variant<Confirm, Returned, Blocked, Unblocked, ChannelClosed, ChannelOpened,
                              Answer, Closed>;

/// What can be asked of the broker, or done there, beside publishing. It goes on a channel of its
/// own, so that a refusal disturbs nothing.
struct Question {
    enum class Kind : std::uint8_t {
        exchange_exists,   ///< `exchange`
        queue_exists,      ///< `queue`
        declare_exchange,  ///< `exchange`, `type`, `durable`, `auto_delete`, `internal`,
                           ///< `arguments`
        declare_queue,     ///< `queue`, `durable`, `auto_delete`, `arguments`
        bind_queue,        ///< `queue`, `exchange`, `routing_key`, `arguments`
    };
    Kind kind = Kind::exchange_exists;
    std::string exchange;
    std::string queue;
    std::string routing_key;
    std::string type;
    bool durable = true;
    bool auto_delete = false;
    bool internal = false;
    Table arguments;
};

struct Options {
    Duration heartbeat{10000};
    std::string product;          ///< client property "product"
    std::string version;          ///< client property "version"
    std::string connection_name;  ///< client property "connection_name"
    std::string name_servers;     ///< to ask instead of the system's, for tests (see Resolver)
};

/// Version of rabbitmq-c that is in use: that of the library which was found at run time.
std::string client_version();

/// One connection to one broker, with three channels: main and trial for publishing, both in
/// confirm mode, and one for questions. Nothing in here waits or blocks, in no circumstances: names
/// are resolved, TLS is spoken and frames are read and sent as far as the sockets allow. The caller
/// waits on fd() for what wanted() says, or max_wait(), and calls again; deadlines are the
/// caller's.
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

    /// Starts with the name, or the address. Any earlier connection is dropped first.
    Progress open(const BrokerUri& uri, const Options& options);
    /// Goes on with name, TCP connect, TLS, protocol header, login, tune, open and the channels as
    /// far as possible without waiting. `ready` once messages can be published.
    Progress advance();
    /// What it is at while it is in progress, for a user: "resolving host \"x\"", "in the TLS
    /// handshake", "logging in".
    std::string stage() const;
    /// Why the last open, advance, poll, publish or flush failed.
    const Failure& failure() const;

    /// Reads what the broker has sent without waiting; nullopt when there is nothing more. Sends
    /// and checks heartbeats. After Closed the connection is gone.
    std::optional<Incoming> poll();

    /// Whether the channel is open.
    bool is_open(Channel channel) const;
    /// Takes a message to be sent; its delivery tag is returned, counted from 1 on each opening of
    /// the channel. It is sent with others by this call or by flush(). nullopt: the connection
    /// failed (see failure()) and is gone; poll() still gives what counts of that which had arrived
    /// (returns, confirms, closed channels, answers). A caller that publishes on a channel which is
    /// not open, or what does not fit (max_properties_bytes(), names above 255 bytes), also gets
    /// nullopt and a failure() that says so; then nothing was sent and the connection stays.
    /// `mandatory`: poll() gives a Returned before the confirm when no queue takes it.
    std::optional<std::uint64_t> publish(Channel channel, const Message& message,
                                         bool mandatory = false);
    /// Asks; poll() gives the Answer, the broker's own or one of ours for names that are too long.
    /// When the broker closes the connection for it, the Answer comes before Closed. One question
    /// at a time; false: another one is open, or the connection is gone. It is sent by flush() or
    /// poll().
    bool ask(const Question& question);
    /// Sends what is waiting to be sent, as far as the socket takes it. False: the connection
    /// failed, as with publish().
    bool flush();
    /// Bytes taken and not yet sent.
    std::size_t unsent_bytes() const;

    /// Optional before close(): says goodbye, so that poll() gives the last confirms and then
    /// Closed once the broker has answered. A broker logs a connection that ends before that as
    /// unexpectedly closed.
    void start_close();
    /// Closes without waiting; says goodbye if that has not been done and the link is healthy.
    void close();

    bool is_open() const;
    int fd() const;  ///< -1 when there is no socket
    Wanted wanted() const;
    /// How long the caller may wait before it must call again: poll() for the heartbeat, advance()
    /// for the next name server or address.
    Duration max_wait() const;
    /// Largest payload of a content header frame on this connection.
    std::size_t max_properties_bytes() const;
    /// What should be unconfirmed at most, in bytes, so that little memory is taken.
    std::size_t send_buffer_bytes() const;
    /// Product and version that the broker gave, "RabbitMQ 3.10.8"; empty before login.
    const std::string& broker_version() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace outbox::amqp
