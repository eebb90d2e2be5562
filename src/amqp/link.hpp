#pragma once

#include <cstdint>
#include <string>

#include "amqp/rabbitmq.hpp"
#include "amqp/socket.hpp"
#include "core/time.hpp"

namespace outbox::amqp {

/// The framing layer: a connected socket with a rabbitmq-c connection on it, and the heartbeats.
///
/// rabbitmq-c is told that there is no heartbeat. Its own would be sent with a wait for the socket,
/// and in 0.11 the check that it makes before a publish waits for ever once two intervals have
/// passed. Without one all its deadlines are infinite, and no call here waits except a send into a
/// full socket.
class Link {
  public:
    enum class Read : std::uint8_t { frame, nothing, failed };

    Link() = default;
    ~Link() { drop(); }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Takes the connected socket; it is closed by drop(). False when memory is out.
    bool attach(int fd);
    /// Frees everything without a word to the peer.
    void drop();

    int fd() const { return fd_; }
    amqp_connection_state_t state() const { return state_; }

    /// The next frame, if one has arrived. What the frame points to lives until recycle() of its
    /// channel.
    Read read(amqp_frame_t& frame);
    /// Frees what frames of the channel point to.
    void recycle(amqp_channel_t channel);

    bool send_protocol_header();
    bool send_method(amqp_channel_t channel, amqp_method_number_t id, void* method);
    bool publish(amqp_channel_t channel, amqp_bytes_t exchange, amqp_bytes_t routing_key,
                 bool mandatory, const amqp_basic_properties_t& properties, amqp_bytes_t body);
    /// Like send_method, for words whose loss is harmless: left out when the socket does not take
    /// them at once.
    void send_if_possible(amqp_channel_t channel, amqp_method_number_t id, void* method);

    /// Sets what the peers agreed on. `heartbeat` zero: none.
    bool tune(int channel_max, int frame_max, Duration heartbeat);
    /// Sends a heartbeat when one is due. False when the peer has been silent for two intervals.
    bool beat();
    /// How long until beat() has something to do.
    Duration max_wait() const;

    /// Why the last call failed.
    const std::string& error() const { return error_; }
    /// The status of rabbitmq-c behind error().
    int error_status() const { return status_; }

  private:
    bool succeeded(int status);

    amqp_connection_state_t state_ = nullptr;
    int fd_ = -1;
    Duration heartbeat_{0};
    Clock::time_point last_sent_{};
    Clock::time_point last_received_{};
    int status_ = 0;
    std::string error_;
};

}  // namespace outbox::amqp
