#include "amqp/replies.hpp"

#include <cctype>
#include <cstddef>
#include <cstdint>

namespace outbox::amqp {

namespace {

constexpr std::uint16_t reply_success = 200;

// Reply codes of a connection after which a new attempt fares no better until somebody acts.
constexpr std::uint16_t reply_access_refused = 403;
constexpr std::uint16_t reply_not_allowed = 530;

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

std::string describe_method(std::uint32_t id) {
    const char* constant = amqp_method_name(id);
    if (constant == nullptr) {
        return "method " + std::to_string(id >> 16U) + "." + std::to_string(id & 0xFFFFU);
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

std::string unexpected(std::string_view what, std::uint16_t channel) {
    return "unexpected " + std::string(what) + " from the broker on channel " +
           std::to_string(channel);
}

Failure unexpected_frame(const amqp_frame_t& frame) {
    std::string what;
    switch (frame.frame_type) {
        case AMQP_FRAME_HEADER:
            what = "content header";
            break;
        case AMQP_FRAME_BODY:
            what = "content body";
            break;
        default:
            what = describe_method(frame.payload.method.id);
    }
    return {FailureClass::infrastructure, unexpected(what, frame.channel)};
}

std::string reply_text(std::uint16_t code, amqp_bytes_t text) {
    if (text.len == 0) {
        return "broker gave reply code " + std::to_string(code) + " and no reason";
    }
    return printable(to_view(text));
}

Failure failure_of(const amqp_connection_close_t& close) {
    const bool configuration =
        close.reply_code == reply_access_refused || close.reply_code == reply_not_allowed;
    Failure failure;
    failure.failure_class =
        configuration ? FailureClass::configuration : FailureClass::infrastructure;
    failure.text = reply_text(close.reply_code, close.reply_text);
    failure.by_publish = (std::uint32_t{close.class_id} << 16U | close.method_id) ==
                         std::uint32_t{AMQP_BASIC_PUBLISH_METHOD};
    return failure;
}

void say_goodbye(Link& link) {
    amqp_connection_close_t goodbye{};
    goodbye.reply_code = reply_success;
    goodbye.reply_text = to_bytes("goodbye");
    (void)link.send_method(0, AMQP_CONNECTION_CLOSE_METHOD, &goodbye);
}

const amqp_connection_close_t* take_connection_close(Link& link, const amqp_frame_t& frame) {
    if (frame.channel != 0 || frame.frame_type != AMQP_FRAME_METHOD ||
        frame.payload.method.id != AMQP_CONNECTION_CLOSE_METHOD) {
        return nullptr;
    }
    amqp_connection_close_ok_t close_ok{};
    (void)link.send_method(0, AMQP_CONNECTION_CLOSE_OK_METHOD, &close_ok);
    (void)link.stream().flush();
    return static_cast<const amqp_connection_close_t*>(frame.payload.method.decoded);
}

}  // namespace outbox::amqp
