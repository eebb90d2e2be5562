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
    bool skip_returned_content(const amqp_frame_t& frame);

    // A basic.return is followed by the message itself, which nobody wants.
    ReturnPart return_part_ = ReturnPart::none;
    std::uint64_t return_left_ = 0;
};

}  // namespace outbox::amqp
