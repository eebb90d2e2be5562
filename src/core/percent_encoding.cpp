#include "core/percent_encoding.hpp"

#include <charconv>
#include <cstddef>
#include <utility>

namespace outbox {

namespace {

constexpr std::string_view HEX_DIGITS = "0123456789ABCDEF";

std::optional<unsigned char> decode_escape(std::string_view text) {
    unsigned char byte = 0;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, byte, 16);
    if (text.size() != 2 || result.ec != std::errc{} || result.ptr != end) {
        return std::nullopt;
    }
    return byte;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view what, std::string_view text,
                                          std::string& out) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            decoded += text[i];
            continue;
        }
        const std::optional<unsigned char> byte = decode_escape(text.substr(i + 1, 2));
        if (!byte) {
            return "the " + std::string(what) +
                   " contains a % without two hexadecimal digits (a % itself is written %25)";
        }
        // The client library takes C strings: a NUL would cut the value short.
        if (*byte == 0) {
            return "the " + std::string(what) + " contains %00";
        }
        decoded += static_cast<char>(*byte);
        i += 2;
    }
    out = std::move(decoded);
    return std::nullopt;
}

std::string encode_unprintable(std::string_view text) {
    std::string printable;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (is_control_or_space(c) || c == '%' || byte >= 0x80) {
            printable += '%';
            printable += HEX_DIGITS[byte >> 4];
            printable += HEX_DIGITS[byte & 0x0f];
        } else {
            printable += c;
        }
    }
    return printable;
}

bool is_control_or_space(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte <= 0x20 || byte == 0x7f;
}

}  // namespace outbox
