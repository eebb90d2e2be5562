#pragma once

#include <string>

#include "core/message.hpp"

namespace outbox {

/// A message as JSON text in UTF-8, for people: exchange, routing_key, mandatory, properties and
/// headers (those that are set), body_size, and the body as text, or as body_base64 when it is no
/// text that JSON can hold.
std::string message_json(const Message& message, bool mandatory, bool body_is_text);

/// The refusal of an event in the place of its message.
std::string refusal_json(const Rejection& rejection);

}  // namespace outbox
