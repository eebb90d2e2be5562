#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "amqp/frame.hpp"
#include "amqp/rabbitmq.hpp"
#include "amqp/stream.hpp"
#include "core/time.hpp"

namespace outbox::amqp {

/// The framing layer: takes frames out of a stream and puts frames into it, and keeps the
/// heartbeats.
///
/// rabbitmq-c only decodes and encodes here. Its connection state never gets a socket, so that none
/// of its calls can wait.
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

    Stream& stream() { return stream_; }
    const Stream& stream() const { return stream_; }

    /// How often a caller may take from the socket before it gives others their turn: a peer can
    /// send without end.
    static constexpr int reads_at_once = 16;
    /// The next frame, if one has arrived. Takes from the socket `reads` times at most, and counts
    /// that down. `nothing` leaves no whole frame behind, so that the socket tells when there is
    /// more. What the frame points to lives until recycle() of its channel. Heartbeats are taken in
    /// here.
    Read read(amqp_frame_t& frame, int& reads);
    /// Frees what frames of the channel point to.
    void recycle(amqp_channel_t channel);

    // What is sent waits in the stream for a flush().
    void send_protocol_header();
    /// False: the method does not fit into a frame; nothing of it is sent.
    bool send_method(amqp_channel_t channel, amqp_method_number_t id, void* method);
    /// Likewise.
    bool send_message(amqp_channel_t channel, amqp_basic_publish_t& method,
                      const amqp_basic_properties_t& properties, std::string_view body);
    /// Overwrites what is left of frames that carried a secret and have been sent, now and later.
    void set_secret(bool secret);

    /// Sets what the peers agreed on. `heartbeat` zero: none. False when memory is out.
    bool tune(std::size_t frame_max, Duration heartbeat);
    /// Sends a heartbeat when one is due. False when the peer has been silent for two intervals.
    bool beat();
    /// How long until beat() has something to do.
    Duration max_wait() const;

    /// Why read(), attach(), tune() or beat() failed.
    const Failure& failure() const { return failure_; }
    /// It was the first bytes of the peer: it speaks another protocol.
    bool is_foreign() const { return foreign_; }

  private:
    Read take_frame(amqp_frame_t& frame);
    Read take_greeting();
    Read decode(std::string_view bytes, amqp_frame_t& frame);
    Read fail(std::string text);
    void make_scratch();
    std::size_t encode_method(std::size_t at, amqp_channel_t channel, amqp_method_number_t id,
                              void* method);
    std::size_t encode_header(std::size_t at, amqp_channel_t channel,
                              const amqp_basic_properties_t& properties, std::size_t body_size);
    void append_scratch(std::size_t size);

    Stream stream_;
    amqp_connection_state_t codec_ = nullptr;
    std::unique_ptr<char[]> scratch_;  ///< where the head frames of a message are encoded
    std::size_t frame_max_ = 0;
    bool greeted_ = false;  ///< the first byte of the peer was the right one
    bool foreign_ = false;
    bool secret_ = false;
    Duration heartbeat_{0};
    Failure failure_;
};

}  // namespace outbox::amqp
