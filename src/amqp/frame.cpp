#include "amqp/frame.hpp"

#include <algorithm>

#include "amqp/replies.hpp"
#include "amqp/table_check.hpp"

namespace outbox::amqp {

namespace {

// First byte of a TLS alert record, which a TLS server answers to a plain protocol header.
constexpr char tls_alert = 0x15;
constexpr std::string_view protocol_name = "AMQP";
constexpr std::size_t protocol_header_size = 8;
// What is shown of a server that speaks another protocol.
constexpr std::size_t shown_of_greeting = 40;

constexpr std::size_t method_id_size = 4;
constexpr std::size_t class_id_size = 2;
// Class, weight, body size and flags.
constexpr std::size_t content_header_size = 14;

std::uint32_t number(std::string_view bytes, std::size_t at, std::size_t size) {
    std::uint32_t value = 0;
    for (std::size_t i = at; i < at + size; ++i) {
        value = (value << 8U) | static_cast<unsigned char>(bytes[i]);
    }
    return value;
}

// What a server has to say to a client that only publishes, asks and declares.
bool is_for_us(std::uint32_t method, amqp_channel_t channel) {
    switch (method) {
        case AMQP_CONNECTION_START_METHOD:
        case AMQP_CONNECTION_TUNE_METHOD:
        case AMQP_CONNECTION_OPEN_OK_METHOD:
        case AMQP_CONNECTION_CLOSE_METHOD:
        case AMQP_CONNECTION_CLOSE_OK_METHOD:
        case AMQP_CONNECTION_BLOCKED_METHOD:
        case AMQP_CONNECTION_UNBLOCKED_METHOD:
            return channel == 0;
        case AMQP_CHANNEL_OPEN_OK_METHOD:
        case AMQP_CHANNEL_CLOSE_METHOD:
        case AMQP_CONFIRM_SELECT_OK_METHOD:
        case AMQP_BASIC_ACK_METHOD:
        case AMQP_BASIC_NACK_METHOD:
        case AMQP_BASIC_RETURN_METHOD:
        case AMQP_EXCHANGE_DECLARE_OK_METHOD:
        case AMQP_QUEUE_DECLARE_OK_METHOD:
        case AMQP_QUEUE_BIND_OK_METHOD:
            return channel != 0;
        default:
            return false;
    }
}

std::string malformed(const std::string& what, amqp_channel_t channel) {
    return "malformed " + what + " from the broker on channel " + std::to_string(channel);
}

std::optional<std::string> problem_of_method(const FrameHead& head, std::string_view payload) {
    if (payload.size() < method_id_size) {
        return malformed("method", head.channel);
    }
    const std::uint32_t method = number(payload, 0, method_id_size);
    if (!is_for_us(method, head.channel)) {
        return unexpected(describe_method(method), head.channel);
    }
    // The one method with a table. Before it, the version in two bytes.
    constexpr std::size_t before_table = method_id_size + 2;
    if (method == AMQP_CONNECTION_START_METHOD &&
        (payload.size() < before_table || !is_sound_table(payload.substr(before_table)))) {
        return malformed(describe_method(method), head.channel);
    }
    return std::nullopt;
}

std::optional<std::string> problem_of_content_header(const FrameHead& head,
                                                     std::string_view payload) {
    if (payload.size() < content_header_size) {
        return malformed("content header", head.channel);
    }
    // Properties of another class would be laid out in another way.
    if (number(payload, 0, class_id_size) != AMQP_BASIC_CLASS) {
        return unexpected("content header", head.channel);
    }
    const std::uint32_t flags = number(payload, content_header_size - 2, 2);
    constexpr std::uint32_t more_flags = 1;  // class basic has no more
    std::string_view properties = payload.substr(content_header_size);
    for (const std::uint32_t text :
         {AMQP_BASIC_CONTENT_TYPE_FLAG, AMQP_BASIC_CONTENT_ENCODING_FLAG}) {
        if ((flags & text) != 0 && !properties.empty()) {
            const std::size_t size = 1 + static_cast<unsigned char>(properties[0]);
            properties.remove_prefix(std::min(size, properties.size()));
        }
    }
    const bool has_headers = (flags & AMQP_BASIC_HEADERS_FLAG) != 0;
    if ((flags & more_flags) != 0 || (has_headers && !is_sound_table(properties))) {
        return malformed("content header", head.channel);
    }
    return std::nullopt;
}

std::string not_amqp(std::string_view first_bytes) {
    if (first_bytes.starts_with(tls_alert)) {
        return "the server expects TLS on this port";
    }
    const std::string_view line = first_bytes.substr(0, first_bytes.find_first_of("\r\n"));
    return "the server does not speak AMQP 0-9-1: it answered \"" +
           printable(line.substr(0, shown_of_greeting)) + "\"";
}

}  // namespace

FrameHead read_head(std::string_view bytes) {
    FrameHead head;
    head.type = static_cast<std::uint8_t>(bytes[0]);
    head.channel = static_cast<amqp_channel_t>(number(bytes, 1, 2));
    head.size = number(bytes, 3, 4);
    return head;
}

void write_head(const FrameHead& head, char* out) {
    out[0] = static_cast<char>(head.type);
    write_u16(head.channel, out + 1);
    write_u32(head.size, out + 3);
}

void write_u16(std::uint16_t value, char* out) {
    out[0] = static_cast<char>(value >> 8U);
    out[1] = static_cast<char>(value & 0xFFU);
}

void write_u32(std::uint32_t value, char* out) {
    write_u16(static_cast<std::uint16_t>(value >> 16U), out);
    write_u16(static_cast<std::uint16_t>(value & 0xFFFFU), out + 2);
}

void write_u64(std::uint64_t value, char* out) {
    write_u32(static_cast<std::uint32_t>(value >> 32U), out);
    write_u32(static_cast<std::uint32_t>(value & 0xFFFFFFFFU), out + 4);
}

std::optional<std::string> problem_of_greeting(std::string_view bytes) {
    if (bytes.empty() || bytes[0] == static_cast<char>(AMQP_FRAME_METHOD)) {
        return std::nullopt;
    }
    // A protocol header is how a server says that it wants another version.
    if (!protocol_name.starts_with(bytes.substr(0, protocol_name.size()))) {
        return not_amqp(bytes);
    }
    if (bytes.size() < protocol_header_size) {
        return std::nullopt;
    }
    std::string version;
    for (std::size_t i = protocol_name.size(); i < protocol_header_size; ++i) {
        version += version.empty() ? "" : "-";
        version += std::to_string(static_cast<unsigned char>(bytes[i]));
    }
    return "the server does not speak AMQP 0-9-1: it asks for protocol version " + version;
}

std::optional<std::string> problem_of_head(const FrameHead& head, std::size_t frame_max) {
    switch (head.type) {
        case AMQP_FRAME_METHOD:
        case AMQP_FRAME_HEADER:
        case AMQP_FRAME_BODY:
            break;
        case AMQP_FRAME_HEARTBEAT:
            if (head.channel != 0 || head.size != 0) {
                return malformed("heartbeat", head.channel);
            }
            break;
        default:
            return "frame of unknown type " + std::to_string(head.type) + " from the broker";
    }
    if (head.channel > channel_count) {
        return "frame from the broker on channel " + std::to_string(head.channel) +
               ", which is not open";
    }
    if (head.size > frame_max - frame_overhead) {
        return "frame of " + std::to_string(head.size + std::uint64_t{frame_overhead}) +
               " bytes from the broker, larger than " + std::to_string(frame_max);
    }
    return std::nullopt;
}

std::optional<std::string> problem_of_payload(const FrameHead& head, std::string_view payload) {
    switch (head.type) {
        case AMQP_FRAME_METHOD:
            return problem_of_method(head, payload);
        case AMQP_FRAME_HEADER:
            return problem_of_content_header(head, payload);
        default:
            return std::nullopt;
    }
}

}  // namespace outbox::amqp
