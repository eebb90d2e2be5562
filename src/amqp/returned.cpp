#include "amqp/returned.hpp"

#include <utility>

#include "amqp/replies.hpp"

namespace outbox::amqp {

void ReturnReader::begin(Channel channel, const amqp_basic_return_t& method) {
    returned_ = Returned{};
    returned_.channel = channel;
    returned_.reply_code = method.reply_code;
    returned_.reply_text = printable(to_view(method.reply_text));
    returned_.exchange = printable(to_view(method.exchange));
    returned_.routing_key = printable(to_view(method.routing_key));
    part_ = Part::header;
}

bool ReturnReader::take(const amqp_frame_t& frame) {
    if (frame.frame_type == AMQP_FRAME_HEADER && part_ == Part::header) {
        const auto& properties =
            *static_cast<const amqp_basic_properties_t*>(frame.payload.properties.decoded);
        if ((properties._flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0) {
            returned_.message_id = to_view(properties.message_id);
        }
        if ((properties._flags & AMQP_BASIC_APP_ID_FLAG) != 0) {
            returned_.app_id = to_view(properties.app_id);
        }
        left_ = frame.payload.properties.body_size;
        part_ = Part::body;
        return true;
    }
    if (frame.frame_type == AMQP_FRAME_BODY && part_ == Part::body &&
        frame.payload.body_fragment.len <= left_) {
        left_ -= frame.payload.body_fragment.len;
        return true;
    }
    return false;
}

Returned ReturnReader::finish() {
    part_ = Part::none;
    return std::exchange(returned_, Returned{});
}

}  // namespace outbox::amqp
