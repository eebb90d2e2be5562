#include "core/channel_fault.hpp"

#include <charconv>

namespace outbox {

namespace {

// Reply codes of AMQP 0-9-1 (section 1.2) that a message can bring about.
constexpr std::uint16_t CONTENT_TOO_LARGE = 311;
constexpr std::uint16_t ACCESS_REFUSED = 403;
constexpr std::uint16_t NOT_FOUND = 404;
constexpr std::uint16_t PRECONDITION_FAILED = 406;

// "... exchange 'orders' in vhost '/' ...": a name may contain quotes itself. In its checks of
// permissions RabbitMQ has a name for the default exchange.
std::optional<std::string> named_exchange(std::string_view text) {
    constexpr std::string_view before = "exchange '";
    constexpr std::string_view after = "' in vhost";
    const std::size_t start = text.find(before);
    if (start == std::string_view::npos) {
        return std::nullopt;
    }
    const std::string_view rest = text.substr(start + before.size());
    const std::size_t end = rest.rfind(after);
    if (end == std::string_view::npos) {
        return std::nullopt;
    }
    const std::string_view name = rest.substr(0, end);
    return std::string(name == "amq.default" ? std::string_view() : name);
}

std::optional<std::size_t> next_number(std::string_view& text) {
    const std::size_t start = text.find_first_of("0123456789");
    if (start == std::string_view::npos) {
        return std::nullopt;
    }
    text.remove_prefix(start);
    std::size_t number = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    text.remove_prefix(static_cast<std::size_t>(result.ptr - text.data()));
    return result.ec == std::errc{} ? std::optional(number) : std::nullopt;
}

// "message size 21 is larger than configured max size 20", in one or other words.
std::optional<std::size_t> named_size_limit(std::string_view text) {
    const std::size_t start = text.find("message size");
    if (start == std::string_view::npos) {
        return std::nullopt;
    }
    text.remove_prefix(start);
    const std::optional<std::size_t> size = next_number(text);
    const std::optional<std::size_t> limit = next_number(text);
    const bool is_limit = size.has_value() && limit.has_value() && *limit > 0 && *limit < *size;
    return is_limit ? limit : std::nullopt;
}

}  // namespace

ChannelFault read_channel_fault(std::uint16_t code, std::string_view text) {
    using Kind = ChannelFault::Kind;
    ChannelFault fault;
    switch (code) {
        case NOT_FOUND:
            fault.exchange = named_exchange(text);
            fault.kind = fault.exchange.has_value() ? Kind::missing_exchange : Kind::content;
            break;
        case ACCESS_REFUSED:
            fault.exchange = named_exchange(text);
            fault.kind = Kind::refused;
            break;
        case CONTENT_TOO_LARGE:
        case PRECONDITION_FAILED:
            fault.size_limit = named_size_limit(text);
            fault.kind = fault.size_limit.has_value() ? Kind::too_large : Kind::content;
            break;
        default:
            break;
    }
    return fault;
}

}  // namespace outbox
