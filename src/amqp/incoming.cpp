#include "amqp/incoming.hpp"

#include <algorithm>
#include <utility>

#include "amqp/handshake.hpp"
#include "amqp/replies.hpp"

namespace outbox::amqp {

std::optional<Incoming> IncomingDecoder::decode(Link& link, const amqp_frame_t& frame) {
    if (std::optional<Failure> closed = take_close(link, frame)) {
        return Closed{std::move(*closed)};
    }
    if (frame.frame_type == AMQP_FRAME_METHOD) {
        if (frame.channel == 0) {
            return decode_connection_method(frame.payload.method, frame);
        }
        if (frame.channel == publish_channel && return_part_ == ReturnPart::none) {
            return decode_channel_method(frame.payload.method, frame);
        }
    } else if (skip_returned_content(frame)) {
        return std::nullopt;
    }
    return Closed{unexpected_frame(frame)};
}

std::optional<Incoming> IncomingDecoder::decode_connection_method(const amqp_method_t& method,
                                                                  const amqp_frame_t& frame) {
    switch (method.id) {
        case AMQP_CONNECTION_BLOCKED_METHOD: {
            const auto& blocked = *static_cast<const amqp_connection_blocked_t*>(method.decoded);
            return Blocked{printable(to_view(blocked.reason))};
        }
        case AMQP_CONNECTION_UNBLOCKED_METHOD:
            return Unblocked{};
        case AMQP_CONNECTION_CLOSE_OK_METHOD:
            return Closed{{FailureClass::infrastructure, "connection closed as asked"}};
        default:
            return Closed{unexpected_frame(frame)};
    }
}

std::optional<Incoming> IncomingDecoder::decode_channel_method(const amqp_method_t& method,
                                                               const amqp_frame_t& frame) {
    switch (method.id) {
        case AMQP_BASIC_ACK_METHOD: {
            const auto& ack = *static_cast<const amqp_basic_ack_t*>(method.decoded);
            return Confirm{ack.delivery_tag, ack.multiple != 0, true};
        }
        case AMQP_BASIC_NACK_METHOD: {
            const auto& nack = *static_cast<const amqp_basic_nack_t*>(method.decoded);
            return Confirm{nack.delivery_tag, nack.multiple != 0, false};
        }
        case AMQP_BASIC_RETURN_METHOD:
            return_part_ = ReturnPart::header;
            return std::nullopt;
        default:
            return Closed{unexpected_frame(frame)};
    }
}

bool IncomingDecoder::skip_returned_content(const amqp_frame_t& frame) {
    if (frame.channel != publish_channel) {
        return false;
    }
    if (frame.frame_type == AMQP_FRAME_HEADER && return_part_ == ReturnPart::header) {
        return_left_ = frame.payload.properties.body_size;
    } else if (frame.frame_type == AMQP_FRAME_BODY && return_part_ == ReturnPart::body) {
        return_left_ -= std::min<std::uint64_t>(return_left_, frame.payload.body_fragment.len);
    } else {
        return false;
    }
    return_part_ = return_left_ == 0 ? ReturnPart::none : ReturnPart::body;
    return true;
}

}  // namespace outbox::amqp
