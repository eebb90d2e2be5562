#include "core/message.hpp"

#include <array>
#include <limits>

#include "core/header_table.hpp"
#include "core/text_limits.hpp"
#include "core/uuid.hpp"

namespace outbox {

namespace {

using Outcome = std::optional<Rejection>;
using OptionalText = std::optional<std::string_view>;

constexpr std::string_view MESSAGE_ID_PREFIX = "msg";
constexpr std::int64_t MICROSECONDS_PER_SECOND = 1000000;
// Ten years. RabbitMQ closes the channel for a larger expiration.
constexpr std::int64_t MAX_EXPIRATION_MS = 315360000000;
// Class, weight, body size and property flags of a content header frame.
constexpr std::size_t CONTENT_HEADER_FIXED_BYTES = 2 + 2 + 8 + 2;
constexpr std::size_t TIMESTAMP_BYTES = 8;

Rejection too_long(std::string code, std::string_view what, std::size_t size, std::size_t limit) {
    return Rejection{std::move(code), std::string(what) + " is " + std::to_string(size) +
                                          " bytes long, the limit is " + std::to_string(limit)};
}

Outcome check_address(const Event& event, const MessageRules& rules) {
    if (!event.routing_key && !event.event_type) {
        return Rejection{"missing_event_type",
                         "columns event_type and routing_key are both NULL, so there is no routing "
                         "key"};
    }
    const std::string_view exchange = event.destination.value_or(rules.default_exchange);
    if (exchange.size() > MAX_SHORT_STRING) {
        return too_long(
            "exchange_too_long",
            event.destination ? "column destination" : "setting outbox_drainer.exchange",
            exchange.size(), MAX_SHORT_STRING);
    }
    const std::string_view routing_key = event.routing_key ? *event.routing_key : *event.event_type;
    if (routing_key.size() > MAX_SHORT_STRING) {
        return too_long("routing_key_too_long",
                        event.routing_key ? "column routing_key"
                                          : "column event_type, which is the routing key,",
                        routing_key.size(), MAX_SHORT_STRING);
    }
    return std::nullopt;
}

Outcome check_text_columns(const Event& event) {
    struct Column {
        std::string_view name;
        OptionalText text;
    };
    const std::array columns{
        Column{"message_id", event.message_id},
        Column{"event_type", event.event_type},
        Column{"source", event.source},
        Column{"content_type", event.content_type},
        Column{"content_encoding", event.content_encoding},
        Column{"correlation_id", event.correlation_id},
        Column{"reply_to", event.reply_to},
    };
    for (const Column& column : columns) {
        if (column.text && column.text->size() > MAX_SHORT_STRING) {
            return too_long(std::string(column.name) + "_too_long",
                            "column " + std::string(column.name), column.text->size(),
                            MAX_SHORT_STRING);
        }
    }
    return std::nullopt;
}

Outcome check_number_columns(const Event& event) {
    // The property is unsigned; infinity arrives as the largest value there is.
    if (event.occurred_at_us &&
        (*event.occurred_at_us < 0 ||
         *event.occurred_at_us == std::numeric_limits<std::int64_t>::max())) {
        return Rejection{"invalid_occurred_at",
                         "column occurred_at must be a finite time not before 1970, it is " +
                             std::to_string(*event.occurred_at_us) +
                             " microseconds after 1970 began"};
    }
    if (event.priority &&
        (*event.priority < 0 || *event.priority > std::numeric_limits<std::uint8_t>::max())) {
        return Rejection{"invalid_priority", "column priority must be from 0 to 255, it is " +
                                                 std::to_string(*event.priority)};
    }
    if (event.expiration_ms &&
        (*event.expiration_ms < 0 || *event.expiration_ms > MAX_EXPIRATION_MS)) {
        return Rejection{"invalid_expiration", "column expiration must be from 0 to " +
                                                   std::to_string(MAX_EXPIRATION_MS) +
                                                   " ms, it is " +
                                                   std::to_string(*event.expiration_ms) + " ms"};
    }
    return std::nullopt;
}

Outcome check_body(std::size_t bytes, const MessageRules& rules) {
    if (bytes <= rules.max_message_bytes) {
        return std::nullopt;
    }
    const char* const limit = rules.limit_is_the_brokers
                                  ? "the broker's limit, learnt from its refusal, is "
                                  : "the limit outbox_drainer.max_message_bytes is ";
    return Rejection{"message_too_large", "column payload is " + std::to_string(bytes) +
                                              " bytes long, " + limit +
                                              std::to_string(rules.max_message_bytes)};
}

/// The limits of each column by itself, but for those that hold JSON.
Outcome check_columns(const Event& event, std::size_t body_bytes, const MessageRules& rules) {
    if (!event.unencodable.empty()) {
        return Rejection{"invalid_encoding",
                         std::string(event.unencodable) + " holds text that has no form in UTF-8"};
    }
    if (Outcome rejection = check_address(event, rules)) {
        return rejection;
    }
    if (Outcome rejection = check_text_columns(event)) {
        return rejection;
    }
    if (Outcome rejection = check_number_columns(event)) {
        return rejection;
    }
    return check_body(body_bytes, rules);
}

void map_columns(const Event& event, const MessageRules& rules, Message& out) {
    out.exchange = event.destination.value_or(rules.default_exchange);
    out.routing_key = event.routing_key ? *event.routing_key : *event.event_type;
    out.message_id = event.message_id ? std::string(*event.message_id)
                                      : typeid_text(MESSAGE_ID_PREFIX, event.id);
    out.correlation_id = event.correlation_id;
    out.reply_to = event.reply_to;
    out.type = event.event_type;
    out.app_id = event.source.empty() ? OptionalText{} : OptionalText{event.source};
    out.content_type = event.content_type;
    out.content_encoding = event.content_encoding;
    out.timestamp.reset();
    if (event.occurred_at_us) {
        out.timestamp = static_cast<std::uint64_t>(*event.occurred_at_us / MICROSECONDS_PER_SECOND);
    }
    out.priority.reset();
    if (event.priority) {
        out.priority = static_cast<std::uint8_t>(*event.priority);
    }
    out.expiration = event.expiration_ms ? std::to_string(*event.expiration_ms) : std::string();
    out.body = event.payload;
}

std::size_t short_string_size(const OptionalText& text) {
    return text ? 1 + text->size() : 0;
}

/// Bytes of the message's content header frame payload, had it every property that it may have.
std::size_t properties_size(const Message& message) {
    return CONTENT_HEADER_FIXED_BYTES + short_string_size(message.content_type) +
           short_string_size(message.content_encoding) +
           (message.headers.empty() ? 0 : encoded_size(message.headers)) +
           (message.persistent ? 1 : 0) + (message.priority ? 1 : 0) +
           short_string_size(message.correlation_id) + short_string_size(message.reply_to) +
           (message.expiration.empty() ? 0 : 1 + message.expiration.size()) + 1 +
           message.message_id.size() + (message.timestamp ? TIMESTAMP_BYTES : 0) +
           short_string_size(message.type) + short_string_size(message.app_id);
}

Outcome check_properties(const Message& message, const MessageRules& rules) {
    const std::size_t size = properties_size(message);
    if (size <= rules.max_properties_bytes) {
        return std::nullopt;
    }
    return Rejection{"headers_too_large",
                     "the properties take " + std::to_string(size) + " bytes, of which " +
                         std::to_string(encoded_size(message.headers)) +
                         " are headers from column attributes and the envelope; the limit of the "
                         "connection is " +
                         std::to_string(rules.max_properties_bytes)};
}

std::size_t value_size(const FieldValue& field);

struct ValueSize {
    std::size_t operator()(std::monostate) const { return 0; }
    std::size_t operator()(bool) const { return 1; }
    std::size_t operator()(std::int64_t) const { return 8; }
    std::size_t operator()(double) const { return 8; }
    std::size_t operator()(const std::string& text) const { return 4 + text.size(); }
    std::size_t operator()(const Table& table) const { return encoded_size(table); }
    std::size_t operator()(const Array& array) const {
        std::size_t size = 4;
        for (const FieldValue& element : array) {
            size += value_size(element);
        }
        return size;
    }
};

/// A value with the byte that tells its type.
std::size_t value_size(const FieldValue& field) {
    return 1 + std::visit(ValueSize{}, field.value);
}

/// What is left once check_columns found nothing.
Outcome build_checked(const Event& event, const MessageRules& rules, Message& out) {
    map_columns(event, rules, out);
    if (Outcome rejection = build_headers(event, out.headers)) {
        return rejection;
    }
    return check_properties(out, rules);
}

bool is_lower_hex(std::string_view digits) {
    return digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_zero(std::string_view digits) {
    return digits.find_first_not_of('0') == std::string_view::npos;
}

/// Version 00 of the W3C's trace context: version, trace id, parent id and flags.
bool is_traceparent(std::string_view text) {
    constexpr std::size_t trace_id = 3;
    constexpr std::size_t parent_id = trace_id + 32 + 1;
    constexpr std::size_t flags = parent_id + 16 + 1;
    if (text.size() != flags + 2 || !text.starts_with("00-") || text[parent_id - 1] != '-' ||
        text[flags - 1] != '-') {
        return false;
    }
    const std::string_view trace = text.substr(trace_id, 32);
    const std::string_view parent = text.substr(parent_id, 16);
    return is_lower_hex(trace) && is_lower_hex(parent) && is_lower_hex(text.substr(flags)) &&
           !is_zero(trace) && !is_zero(parent);
}

/// What could be sent but serves nobody, or cannot be stored.
Outcome check_producer_columns(const Event& event, const StoredBytes& stored) {
    if (stored.key > MAX_KEY_BYTES) {
        return too_long("key_too_long", "column key", stored.key, MAX_KEY_BYTES);
    }
    if (event.traceparent && !is_traceparent(*event.traceparent)) {
        return Rejection{"invalid_traceparent",
                         "column traceparent is not a W3C trace context of version 00: " +
                             clip(*event.traceparent)};
    }
    return std::nullopt;
}

/// Whether the message is sure to be built without a look at it, as nearly every one without JSON
/// columns is. The short strings take at most 8 * 256 bytes; names, numbers and the id that go into
/// headers less than 1000.
bool surely_fits(const Event& event, const MessageRules& rules) {
    std::size_t bytes = std::size_t{4} * 1024;
    for (const OptionalText& text : {event.key, event.traceparent, event.tracestate,
                                     event.source_event_id, event.causation_id}) {
        bytes += text ? text->size() : 0;
    }
    return event.attributes.empty() && event.schema_reference.empty() &&
           bytes <= rules.max_properties_bytes;
}

}  // namespace

std::optional<Rejection> build_message(const Event& event, const MessageRules& rules,
                                       Message& out) {
    if (Outcome rejection = check_columns(event, event.payload.size(), rules)) {
        return rejection;
    }
    return build_checked(event, rules, out);
}

std::optional<Rejection> check_event(const Event& event, const StoredBytes& stored,
                                     const MessageRules& rules) {
    if (Outcome rejection = check_columns(event, stored.payload, rules)) {
        return rejection;
    }
    if (Outcome rejection = check_producer_columns(event, stored)) {
        return rejection;
    }
    if (surely_fits(event, rules)) {
        return std::nullopt;
    }
    Message message;
    return build_checked(event, rules, message);
}

std::size_t encoded_size(const Table& table) {
    std::size_t size = 4;
    for (const auto& [name, field] : table) {
        size += 1 + name.size() + value_size(field);
    }
    return size;
}

}  // namespace outbox
