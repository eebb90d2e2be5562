#include "amqp/incoming.hpp"

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
    } else if (read_returned_header(frame) || skip_returned_body(frame)) {
        if (return_left_ > 0) {
            return std::nullopt;
        }
        return_part_ = ReturnPart::none;
        return std::exchange(returned_, Returned{});
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
            begin_return(*static_cast<const amqp_basic_return_t*>(method.decoded));
            return std::nullopt;
        default:
            return Closed{unexpected_frame(frame)};
    }
}

void IncomingDecoder::begin_return(const amqp_basic_return_t& method) {
    returned_.reply_code = method.reply_code;
    returned_.reply_text = printable(to_view(method.reply_text));
    returned_.exchange = printable(to_view(method.exchange));
    returned_.routing_key = printable(to_view(method.routing_key));
    return_part_ = ReturnPart::header;
}

bool IncomingDecoder::read_returned_header(const amqp_frame_t& frame) {
    // Properties of another class would be laid out in another way.
    if (frame.frame_type != AMQP_FRAME_HEADER || frame.channel != publish_channel ||
        return_part_ != ReturnPart::header ||
        frame.payload.properties.class_id != AMQP_BASIC_CLASS) {
        return false;
    }
    const auto& properties =
        *static_cast<const amqp_basic_properties_t*>(frame.payload.properties.decoded);
    if ((properties._flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0) {
        returned_.message_id = to_view(properties.message_id);
    }
    if ((properties._flags & AMQP_BASIC_APP_ID_FLAG) != 0) {
        returned_.app_id = to_view(properties.app_id);
    }
    return_left_ = frame.payload.properties.body_size;
    return_part_ = ReturnPart::body;
    return true;
}

bool IncomingDecoder::skip_returned_body(const amqp_frame_t& frame) {
    if (frame.frame_type != AMQP_FRAME_BODY || frame.channel != publish_channel ||
        return_part_ != ReturnPart::body || frame.payload.body_fragment.len > return_left_) {
        return false;
    }
    return_left_ -= frame.payload.body_fragment.len;
    return true;
}

}  // namespace outbox::amqp
