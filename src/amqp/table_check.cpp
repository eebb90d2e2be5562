#include "amqp/table_check.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace outbox::amqp {

namespace {

// Our own messages, which may come back, have tables of depth 65 at most; this is what
// rabbitmq-c 0.14 takes.
constexpr int max_depth = 100;

std::optional<std::uint32_t> take_number(std::string_view& bytes, std::size_t size) {
    if (bytes.size() < size) {
        return std::nullopt;
    }
    std::uint32_t value = 0;
    for (const char byte : bytes.substr(0, size)) {
        value = (value << 8U) | static_cast<unsigned char>(byte);
    }
    bytes.remove_prefix(size);
    return value;
}

// What follows a length of `size` bytes.
std::optional<std::string_view> take_counted(std::string_view& bytes, std::size_t size) {
    const std::optional<std::uint32_t> length = take_number(bytes, size);
    if (!length || *length > bytes.size()) {
        return std::nullopt;
    }
    const std::string_view taken = bytes.substr(0, *length);
    bytes.remove_prefix(*length);
    return taken;
}

// Bytes of a value of the kinds whose size does not vary; nullopt: no such kind.
std::optional<std::size_t> fixed_size(char kind) {
    switch (kind) {
        case 'V':
            return 0;
        case 't':
        case 'b':
        case 'B':
            return 1;
        case 's':
        case 'u':
            return 2;
        case 'I':
        case 'i':
        case 'f':
            return 4;
        case 'D':
            return 5;
        case 'l':
        case 'L':
        case 'd':
        case 'T':
            return 8;
        default:
            return std::nullopt;
    }
}

bool take_table(std::string_view& bytes, int depth, bool has_keys);

bool take_value(std::string_view& bytes, int depth) {
    if (bytes.empty()) {
        return false;
    }
    const char kind = bytes[0];
    bytes.remove_prefix(1);
    if (kind == 'S' || kind == 'x') {
        return take_counted(bytes, 4).has_value();
    }
    if (kind == 'F' || kind == 'A') {
        return depth < max_depth && take_table(bytes, depth + 1, kind == 'F');
    }
    const std::optional<std::size_t> size = fixed_size(kind);
    if (!size || *size > bytes.size()) {
        return false;
    }
    bytes.remove_prefix(*size);
    return true;
}

// An array is a table without keys.
bool take_table(std::string_view& bytes, int depth, bool has_keys) {
    std::optional<std::string_view> inside = take_counted(bytes, 4);
    if (!inside) {
        return false;
    }
    while (!inside->empty()) {
        if ((has_keys && !take_counted(*inside, 1)) || !take_value(*inside, depth)) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool is_sound_table(std::string_view bytes) {
    return take_table(bytes, 1, true);
}

}  // namespace outbox::amqp
