#pragma once

#include <cstdint>
#include <optional>

#include "amqp/connection.hpp"
#include "amqp/link.hpp"

namespace outbox::amqp {

/// Turns the frames of an established connection into what the caller wants to know.
class IncomingDecoder {
  public:
    /// nullopt: nothing to tell. Answers close methods on the link. After Closed the connection is
    /// of no further use.
    std::optional<Incoming> decode(Link& link, const amqp_frame_t& frame);

  private:
    enum class ReturnPart : std::uint8_t { none, header, body };

    std::optional<Incoming> decode_connection_method(const amqp_method_t& method,
                                                     const amqp_frame_t& frame);
    std::optional<Incoming> decode_channel_method(const amqp_method_t& method,
                                                  const amqp_frame_t& frame);
    void begin_return(const amqp_basic_return_t& method);
    bool read_returned_header(const amqp_frame_t& frame);
    bool skip_returned_body(const amqp_frame_t& frame);

    // A basic.return is followed by the message itself. Its properties say which one it is; the
    // body is dropped frame by frame, so that no size which the broker names takes memory.
    ReturnPart return_part_ = ReturnPart::none;
    std::uint64_t return_left_ = 0;
    Returned returned_;
};

}  // namespace outbox::amqp
