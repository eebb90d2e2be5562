#include "core/claim_token.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace outbox {

namespace {

constexpr std::string_view PREFIX = "obd1:";
constexpr char SEPARATOR = ':';
constexpr std::size_t FIELD_COUNT = 7;  // the last one, suspicion, is left out when it is 0
using Fields = std::array<std::uint64_t, FIELD_COUNT>;

constexpr std::uint64_t MAX_TIMELINE = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t MAX_SLOT = std::numeric_limits<int>::max();

// 64-bit fields: system identifier, server start, generation, counter. 32-bit fields: timeline,
// slot. 16 bits: suspicion.
static_assert(PREFIX.size() + 4 * 16 + 2 * 8 + 4 + (FIELD_COUNT - 1) <= MAX_TOKEN_LENGTH);

void append_hex(std::string& text, std::uint64_t value) {
    std::array<char, 16> digits{};
    const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16);
    text.append(digits.data(), result.ptr);
}

/// A number as append_hex writes it: lower case, no leading zero, so that one token has one text.
std::optional<std::uint64_t> parse_hex(std::string_view text) {
    if (text.empty() || (text.front() == '0' && text.size() > 1) ||
        text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
        return std::nullopt;
    }
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value, 16);
    if (result.ec != std::errc{} || result.ptr != end) {
        return std::nullopt;
    }
    return value;
}

std::optional<Fields> parse_fields(std::string_view rest) {
    Fields fields{};
    for (std::size_t i = 0; i < FIELD_COUNT; ++i) {
        const std::size_t separator = rest.find(SEPARATOR);
        const bool last = separator == std::string_view::npos;
        const std::optional<std::uint64_t> value = parse_hex(rest.substr(0, separator));
        if (!value) {
            return std::nullopt;
        }
        fields[i] = *value;
        if (last) {
            return i + 2 >= FIELD_COUNT ? std::optional(fields) : std::nullopt;
        }
        rest.remove_prefix(separator + 1);
    }
    return std::nullopt;
}

bool same_server(const Incarnation& a, const Incarnation& b) {
    return a.system_identifier == b.system_identifier && a.timeline == b.timeline &&
           a.server_start == b.server_start;
}

}  // namespace

std::string make_token(const Incarnation& incarnation, std::uint64_t counter,
                       std::uint64_t suspicion) {
    const Fields fields = {incarnation.system_identifier,
                           incarnation.timeline,
                           incarnation.server_start,
                           static_cast<std::uint32_t>(incarnation.slot),
                           incarnation.generation,
                           counter,
                           std::min(suspicion, MAX_SUSPICION)};
    std::string token;
    token.reserve(MAX_TOKEN_LENGTH);
    token += PREFIX;
    const std::size_t count = suspicion == 0 ? FIELD_COUNT - 1 : FIELD_COUNT;
    for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) {
            token += SEPARATOR;
        }
        append_hex(token, fields[i]);
    }
    return token;
}

std::optional<TokenParts> parse_token(std::string_view token) {
    if (token.size() > MAX_TOKEN_LENGTH || !token.starts_with(PREFIX)) {
        return std::nullopt;
    }
    const std::optional<Fields> fields = parse_fields(token.substr(PREFIX.size()));
    if (!fields) {
        return std::nullopt;
    }
    const auto [system_identifier, timeline, server_start, slot, generation, counter, suspicion] =
        *fields;
    const bool says_nothing = suspicion == 0 && token.back() == '0' &&
                              std::count(token.begin(), token.end(), SEPARATOR) == FIELD_COUNT;
    if (timeline > MAX_TIMELINE || slot > MAX_SLOT || suspicion > MAX_SUSPICION || says_nothing) {
        return std::nullopt;
    }
    return TokenParts{.incarnation = {.system_identifier = system_identifier,
                                      .timeline = static_cast<std::uint32_t>(timeline),
                                      .server_start = server_start,
                                      .slot = static_cast<int>(slot),
                                      .generation = generation},
                      .counter = counter,
                      .suspicion = suspicion};
}

TokenOwner classify_token(std::string_view token, const Incarnation& self) {
    const std::optional<TokenParts> parts = parse_token(token);
    if (!parts) {
        return TokenOwner::foreign;
    }
    const Incarnation& holder = parts->incarnation;
    if (!same_server(holder, self)) {
        return TokenOwner::dead;
    }
    if (holder.slot != self.slot) {
        return TokenOwner::live_other_slot;
    }
    return holder.generation == self.generation ? TokenOwner::mine : TokenOwner::dead;
}

}  // namespace outbox
