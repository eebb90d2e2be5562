#pragma once

#include <cstdint>

#include "amqp/connection.hpp"
#include "amqp/rabbitmq.hpp"

namespace outbox::amqp {

/// Puts together what comes back on one channel. A basic.return is followed by the message itself,
/// in frames between which those of other channels may come. Its properties say which one it is;
/// the body is dropped frame by frame, so that no size which the broker names takes memory.
class ReturnReader {
  public:
    /// Whether no content is expected.
    bool idle() const { return part_ == Part::none; }
    /// Starts with the method; only when idle.
    void begin(Channel channel, const amqp_basic_return_t& method);
    /// Takes a frame of content. False: it has no place here.
    bool take(const amqp_frame_t& frame);
    /// Whether all of it has come; finish() is next.
    bool complete() const { return part_ == Part::body && left_ == 0; }
    Returned finish();
    void abandon() { *this = ReturnReader{}; }

  private:
    enum class Part : std::uint8_t { none, header, body };

    Part part_ = Part::none;
    std::uint64_t left_ = 0;
    Returned returned_;
};

}  // namespace outbox::amqp
