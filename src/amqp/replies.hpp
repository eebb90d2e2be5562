#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "amqp/link.hpp"
#include "amqp/rabbitmq.hpp"

namespace outbox::amqp {

/// Text from the broker made fit for logs and for columns: control characters and what is not valid
/// UTF-8 (a name that the broker has cut in the middle of a character) become '?'.
std::string printable(std::string_view text);

/// A name for messages: "basic.ack", "connection.open-ok", "content header".
std::string describe(const amqp_frame_t& frame);

/// What to do about a frame that has no place here.
Failure unexpected_frame(const amqp_frame_t& frame);

/// Sends connection.close, as far as that goes without waiting.
void say_goodbye(Link& link);

/// When the frame is a connection.close or channel.close: answers it, as far as that goes without
/// waiting, and says what it means. Says goodbye as well when only the channel is closed, since a
/// connection without its channel is of no use. Copies all it needs.
std::optional<Failure> take_close(Link& link, const amqp_frame_t& frame);

}  // namespace outbox::amqp
