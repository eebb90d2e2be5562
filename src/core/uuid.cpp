#include "core/uuid.hpp"

#include <algorithm>
#include <cstddef>

namespace outbox {

namespace {

constexpr std::uint64_t MAX_UNIX_MS = (std::uint64_t{1} << 48) - 1;
constexpr std::uint16_t MAX_COUNTER = 0x0fff;
constexpr std::uint16_t COUNTER_SEED_MASK = 0x07ff;  // the lower half: 2048 ids are always left

constexpr std::string_view HEX_DIGITS = "0123456789abcdef";
constexpr std::string_view CROCKFORD_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";
constexpr std::size_t TEXT_LENGTH = 36;
constexpr std::size_t TYPEID_SUFFIX_LENGTH = 26;

constexpr bool is_hyphen_position(std::size_t position) {
    return position == 8 || position == 13 || position == 18 || position == 23;
}

/// The value of a hexadecimal digit of either case, or -1.
constexpr int hex_value(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

}  // namespace

Uuid UuidV7Generator::next(std::uint64_t unix_ms,
                           const std::array<std::uint8_t, 10>& random) noexcept {
    const auto seed = static_cast<std::uint16_t>((random[0] << 8 | random[1]) & COUNTER_SEED_MASK);
    const std::uint64_t now = std::min(unix_ms, MAX_UNIX_MS);
    if (now > last_ms_) {
        last_ms_ = now;
        counter_ = seed;
    } else if (counter_ < MAX_COUNTER) {
        ++counter_;
    } else {
        // Borrow from the future: the clock catches up, the order does not suffer.
        last_ms_ = std::min(last_ms_ + 1, MAX_UNIX_MS);
        counter_ = seed;
    }

    Uuid id{};
    for (std::size_t i = 0; i < 6; ++i) {
        id[i] = static_cast<std::uint8_t>(last_ms_ >> (40 - 8 * i));
    }
    id[6] = static_cast<std::uint8_t>(0x70 | counter_ >> 8);
    id[7] = static_cast<std::uint8_t>(counter_);
    std::copy(random.begin() + 2, random.end(), id.begin() + 8);
    id[8] = static_cast<std::uint8_t>(0x80 | (id[8] & 0x3f));
    return id;
}

std::string to_string(const Uuid& id) {
    std::string text;
    text.reserve(TEXT_LENGTH);
    for (const std::uint8_t byte : id) {
        if (is_hyphen_position(text.size())) {
            text += '-';
        }
        text += HEX_DIGITS[byte >> 4];
        text += HEX_DIGITS[byte & 0x0f];
    }
    return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
    if (text.size() != TEXT_LENGTH) {
        return std::nullopt;
    }
    Uuid id{};
    std::size_t digits = 0;
    for (std::size_t i = 0; i < TEXT_LENGTH; ++i) {
        if (is_hyphen_position(i)) {
            if (text[i] != '-') {
                return std::nullopt;
            }
            continue;
        }
        const int value = hex_value(text[i]);
        if (value < 0) {
            return std::nullopt;
        }
        std::uint8_t& byte = id[digits / 2];
        byte = static_cast<std::uint8_t>(byte << 4 | value);
        ++digits;
    }
    return id;
}

bool is_typeid_prefix(std::string_view prefix) noexcept {
    return !prefix.empty() && prefix.size() <= 63 &&
           std::all_of(prefix.begin(), prefix.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

std::string typeid_text(std::string_view prefix, const Uuid& id) {
    std::string text;
    text.reserve(prefix.size() + 1 + TYPEID_SUFFIX_LENGTH);
    text += prefix;
    text += '_';
    // 26 digits hold 130 bits: two zero bits stand before the 128 of the id.
    unsigned bits = 0;
    unsigned bit_count = 2;
    for (const std::uint8_t byte : id) {
        bits = bits << 8 | byte;
        bit_count += 8;
        while (bit_count >= 5) {
            bit_count -= 5;
            text += CROCKFORD_DIGITS[bits >> bit_count & 0x1f];
        }
    }
    return text;
}

}  // namespace outbox
