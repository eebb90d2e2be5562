#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"

namespace outbox {

/// Makes UUIDs of version 7 (RFC 9562, section 5.7), strictly increasing for one generator even
/// when the clock stands still or goes back: rand_a carries a 12-bit counter that starts at random
/// in its lower half and moves the millisecond on when it is used up (section 6.2, methods 1 and
/// 4).
class UuidV7Generator {
  public:
    /// `unix_ms`: wall clock in milliseconds. `random`: ten fresh random bytes.
    Uuid next(std::uint64_t unix_ms, const std::array<std::uint8_t, 10>& random) noexcept;

  private:
    std::uint64_t last_ms_ = 0;
    std::uint16_t counter_ = 0;
};

/// The text form with hyphens, lower case.
std::string to_string(const Uuid& id);
/// Parses the hyphenated text form; nullopt when it is anything else.
std::optional<Uuid> parse_uuid(std::string_view text);

/// Whether `prefix` is one to 63 lower-case ASCII letters.
bool is_typeid_prefix(std::string_view prefix) noexcept;
/// The TypeID `prefix_suffix` of an id: 26 characters of Crockford base32 after the prefix
/// (TypeID specification 0.3). The prefix must satisfy is_typeid_prefix.
std::string typeid_text(std::string_view prefix, const Uuid& id);

}  // namespace outbox
