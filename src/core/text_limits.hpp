#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outbox {

/// Bytes that fit an AMQP short string: exchange, routing key, header names and most properties.
inline constexpr std::size_t MAX_SHORT_STRING = 255;

/// The beginning of a text of any length, for a message; never cuts a UTF-8 character in two.
inline std::string clip(std::string_view text) {
    constexpr std::size_t limit = 64;
    if (text.size() <= limit) {
        return std::string(text);
    }
    std::size_t end = limit;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
        --end;
    }
    return std::string(text.substr(0, end)) + "...";
}

}  // namespace outbox
