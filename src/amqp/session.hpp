#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "amqp/channels.hpp"
#include "amqp/connection.hpp"
#include "amqp/encode.hpp"
#include "amqp/handshake.hpp"
#include "amqp/link.hpp"

namespace outbox::amqp {

/// What a connection does once its socket is connected: TLS, the handshake, and all that follows
/// until it ends. Connection describes the calls; one Session is good for one socket.
class Session {
  public:
    using Progress = Connection::Progress;

    Session() = default;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Takes the connected socket. -1, for tests: what the peer says is given to feed().
    Progress start(int fd, const BrokerUri& uri, const Options& options);
    Progress advance();
    void feed(std::string_view bytes) { link_.stream().feed(bytes); }
    std::string stage() const;

    std::optional<Incoming> poll();
    std::optional<std::uint64_t> publish(Channel channel, const Message& message, bool mandatory);
    bool ask(const Question& question);
    bool flush();
    void start_close();
    void close();

    bool is_ready() const { return phase_ == Phase::ready; }
    /// Ready, or saying goodbye.
    bool is_alive() const { return phase_ == Phase::ready || phase_ == Phase::closing; }
    bool is_open(Channel channel) const { return is_ready() && channels_.is_open(channel); }
    int fd() const { return link_.stream().fd(); }
    std::size_t unsent_bytes() const { return link_.stream().unsent(); }
    Duration max_wait() const { return link_.max_wait(); }
    std::size_t max_properties_bytes() const { return handshake_.frame_max() - frame_overhead; }
    const std::string& broker_version() const { return handshake_.broker_version(); }
    const Failure& failure() const { return failure_; }
    /// How long the kernel lets sent data be unacknowledged.
    static Duration user_timeout(const BrokerUri& uri, const Options& options);

  private:
    enum class Phase : std::uint8_t { closed, securing, handshaking, ready, closing };

    Progress advance_tls();
    Progress advance_handshake();
    Progress fail(Failure reason);
    void drop();
    bool read_next();
    void take(const amqp_frame_t& frame);
    void take_connection_method(const amqp_frame_t& frame);
    void take_close(const amqp_connection_close_t& close);
    void note(const Incoming& incoming);
    Failure last_words();

    Phase phase_ = Phase::closed;
    Link link_;
    Handshake handshake_;
    Channels channels_;
    PropertiesEncoder encoder_;
    SecretUri uri_;
    Options options_;
    Duration user_timeout_{0};
    /// What has come and was not asked for yet, in its order. Closed is the last.
    std::deque<Incoming> pending_;
    bool broker_said_why_ = false;  ///< that Closed is from the broker's own words
    Failure failure_;
};

}  // namespace outbox::amqp
