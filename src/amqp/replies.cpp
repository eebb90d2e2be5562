#include "amqp/replies.hpp"

#include <cctype>
#include <cstddef>
#include <cstdint>

namespace outbox::amqp {

namespace {

constexpr std::uint16_t reply_success = 200;

// Reply codes after which a new attempt fares no better until somebody acts.
constexpr std::uint16_t reply_access_refused = 403;
constexpr std::uint16_t reply_not_found = 404;
constexpr std::uint16_t reply_not_allowed = 530;

std::string reply_text(std::uint16_t code, amqp_bytes_t text) {
    if (text.len == 0) {
        return "broker closed the connection with reply code " + std::to_string(code) +
               " and no reason";
    }
    return printable(to_view(text));
}

Failure connection_failure(const amqp_connection_close_t& close) {
    const bool configuration =
        close.reply_code == reply_access_refused || close.reply_code == reply_not_allowed;
    return {configuration ? FailureClass::configuration : FailureClass::infrastructure,
            reply_text(close.reply_code, close.reply_text)};
}

Failure channel_failure(const amqp_channel_close_t& close) {
    const bool configuration =
        close.reply_code == reply_access_refused || close.reply_code == reply_not_found;
    return {configuration ? FailureClass::configuration : FailureClass::infrastructure,
            reply_text(close.reply_code, close.reply_text)};
}

bool is_continuation(unsigned char byte) {
    return (byte & 0xC0U) == 0x80U;
}

// Length of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), 0 if
// none.
std::size_t sequence_length(std::string_view text) {
    const auto at = [text](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i])
                               : static_cast<unsigned char>(0);
    };
    const unsigned char first = at(0);
    const unsigned char second = at(1);
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4 || !is_continuation(second)) {
        return 0;
    }
    if (first < 0xE0) {
        return 2;
    }
    if (!is_continuation(at(2))) {
        return 0;
    }
    if (first < 0xF0) {
        const bool overlong = first == 0xE0 && second < 0xA0;
        const bool surrogate = first == 0xED && second > 0x9F;
        return overlong || surrogate ? 0 : 3;
    }
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool beyond_unicode = first == 0xF4 && second > 0x8F;
    return overlong || beyond_unicode || !is_continuation(at(3)) ? 0 : 4;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = sequence_length(text);
        const auto first = static_cast<unsigned char>(text[0]);
        if (length == 0 || first < 0x20 || first == 0x7F) {
            result += '?';
            text.remove_prefix(1);
        } else {
            result += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return result;
}

std::string describe(const amqp_frame_t& frame) {
    switch (frame.frame_type) {
        case AMQP_FRAME_HEADER:
            return "content header";
        case AMQP_FRAME_BODY:
            return "content body";
        case AMQP_FRAME_METHOD:
            break;
        default:
            return "frame of type " + std::to_string(frame.frame_type);
    }
    const char* constant = amqp_method_name(frame.payload.method.id);
    if (constant == nullptr) {
        return "method " + std::to_string(frame.payload.method.id);
    }
    // AMQP_CONNECTION_OPEN_OK_METHOD is what the specification calls connection.open-ok.
    std::string_view name = constant;
    constexpr std::string_view prefix = "AMQP_";
    constexpr std::string_view suffix = "_METHOD";
    name.remove_prefix(name.starts_with(prefix) ? prefix.size() : 0);
    name.remove_suffix(name.ends_with(suffix) ? suffix.size() : 0);
    std::string result;
    bool class_named = false;
    for (const char c : name) {
        if (c == '_') {
            result += class_named ? '-' : '.';
            class_named = true;
        } else {
            result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return result;
}

Failure unexpected_frame(const amqp_frame_t& frame) {
    return {FailureClass::infrastructure, "unexpected " + describe(frame) +
                                              " from the broker on channel " +
                                              std::to_string(frame.channel)};
}

void say_goodbye(Link& link) {
    amqp_connection_close_t goodbye{};
    goodbye.reply_code = reply_success;
    goodbye.reply_text = to_bytes("goodbye");
    link.send_if_possible(0, AMQP_CONNECTION_CLOSE_METHOD, &goodbye);
}

std::optional<Failure> take_close(Link& link, const amqp_frame_t& frame) {
    if (frame.frame_type != AMQP_FRAME_METHOD) {
        return std::nullopt;
    }
    const amqp_method_t& method = frame.payload.method;
    if (frame.channel == 0 && method.id == AMQP_CONNECTION_CLOSE_METHOD) {
        amqp_connection_close_ok_t close_ok{};
        link.send_if_possible(0, AMQP_CONNECTION_CLOSE_OK_METHOD, &close_ok);
        return connection_failure(*static_cast<const amqp_connection_close_t*>(method.decoded));
    }
    if (frame.channel != 0 && method.id == AMQP_CHANNEL_CLOSE_METHOD) {
        amqp_channel_close_ok_t close_ok{};
        link.send_if_possible(frame.channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &close_ok);
        say_goodbye(link);
        return channel_failure(*static_cast<const amqp_channel_close_t*>(method.decoded));
    }
    return std::nullopt;
}

}  // namespace outbox::amqp
