#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "amqp/link.hpp"
#include "amqp/rabbitmq.hpp"

namespace outbox::amqp {

/// Text from the broker made fit for logs and for columns: control characters and what is not valid
/// UTF-8 (a name that the broker has cut in the middle of a character) become '?'.
std::string printable(std::string_view text);

/// A name for messages: "basic.ack", "connection.open-ok", "method 999.1".
std::string describe_method(std::uint32_t id);

/// What to say about something that has no place here.
std::string unexpected(std::string_view what, std::uint16_t channel);
Failure unexpected_frame(const amqp_frame_t& frame);

/// The broker's reason for a close, or its code if it gave none.
std::string reply_text(std::uint16_t code, amqp_bytes_t text);

/// What it means that the broker closes the connection.
Failure failure_of(const amqp_connection_close_t& close);

/// Puts connection.close behind what is to be sent.
void say_goodbye(Link& link);

/// When the frame is a connection.close: answers it, as far as that goes without waiting, and gives
/// its content, which lives as long as the frame's.
const amqp_connection_close_t* take_connection_close(Link& link, const amqp_frame_t& frame);

}  // namespace outbox::amqp
