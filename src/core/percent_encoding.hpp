#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

/// Decodes %XX. `what` names the text in the reason for which it is refused, "password" or the
/// like; a %00 is refused, since it would cut short what is handed on as a C string.
std::optional<std::string> decode_percent(std::string_view what, std::string_view text,
                                          std::string& out);

/// Printable ASCII in every encoding and every log: all else, and % itself, becomes %XX.
std::string encode_unprintable(std::string_view text);

bool is_control_or_space(char c);

}  // namespace outbox
