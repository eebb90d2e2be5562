#pragma once

#include <optional>
#include <string_view>

#include "core/event.hpp"
#include "core/message.hpp"

namespace outbox {

/// Headers whose name begins so are ours: what an event's attributes may not use.
inline constexpr std::string_view RESERVED_HEADER_PREFIX = "outbox-";

/// Levels of objects and arrays that a header may nest, the attributes object itself being the
/// first. Consumers decode tables by recursion, so an unlimited depth would be a way to crash them.
inline constexpr int MAX_HEADER_DEPTH = 64;

/// Builds the headers of an event's message, in the order in which they are sent: its attributes,
/// the trace context, then the rest of the envelope under the reserved prefix, only what is set. Or
/// says why the event can never be sent; `out` is then unspecified.
std::optional<Rejection> build_headers(const Event& event, Table& out);

/// The arguments of an exchange, a queue or a binding from a JSON object, in its order; or says why
/// they cannot be sent.
std::optional<Rejection> build_arguments(Json arguments, Table& out);

}  // namespace outbox
