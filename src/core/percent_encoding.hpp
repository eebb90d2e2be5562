#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

/// Decodes %XX in a piece of a URI. Gives why that cannot be done, naming `what` and not the text,
/// which may be a secret; nullopt: `out` is set.
std::optional<std::string> percent_decode(std::string_view what, std::string_view text,
                                          std::string& out);

/// Printable ASCII, fit for every database encoding and every log: what else the text holds, and %
/// itself, becomes %XX.
std::string encode_unprintable(std::string_view text);

bool is_control_or_space(char c);

}  // namespace outbox
