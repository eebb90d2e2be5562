#pragma once

#include <string_view>

namespace outbox::amqp {

/// Whether a field table lies at the beginning of `bytes`, is whole, and is nested no deeper than
/// any honest one. rabbitmq-c decodes tables by recursion, before 0.14 without a limit.
bool is_sound_table(std::string_view bytes);

}  // namespace outbox::amqp
