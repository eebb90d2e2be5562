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

Outcome map_address(const Event& event, const MessageRules& rules, Message& out) {
    if (!event.routing_key && !event.event_type) {
        return Rejection{"missing_event_type",
                         "columns event_type and routing_key are both NULL, so there is no routing "
                         "key"};
    }
    out.exchange = event.destination.value_or(rules.default_exchange);
    out.routing_key = event.routing_key ? *event.routing_key : *event.event_type;
    if (out.exchange.size() > MAX_SHORT_STRING) {
        return too_long(
            "exchange_too_long",
            event.destination ? "column destination" : "setting outbox_drainer.exchange",
            out.exchange.size(), MAX_SHORT_STRING);
    }
    if (out.routing_key.size() > MAX_SHORT_STRING) {
        return too_long("routing_key_too_long",
                        event.routing_key ? "column routing_key"
                                          : "column event_type, which is the routing key,",
                        out.routing_key.size(), MAX_SHORT_STRING);
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

void map_text_columns(const Event& event, Message& out) {
    out.message_id = event.message_id ? std::string(*event.message_id)
                                      : typeid_text(MESSAGE_ID_PREFIX, event.id);
    out.correlation_id = event.correlation_id;
    out.reply_to = event.reply_to;
    out.type = event.event_type;
    out.app_id = event.source.empty() ? OptionalText{} : OptionalText{event.source};
    out.content_type = event.content_type;
    out.content_encoding = event.content_encoding;
}

Outcome map_timestamp(const Event& event, Message& out) {
    out.timestamp.reset();
    if (!event.occurred_at_us) {
        return std::nullopt;
    }
    // The property is unsigned; infinity arrives as the largest value there is.
    if (*event.occurred_at_us < 0 ||
        *event.occurred_at_us == std::numeric_limits<std::int64_t>::max()) {
        return Rejection{"invalid_occurred_at",
                         "column occurred_at must be a finite time not before 1970, it is " +
                             std::to_string(*event.occurred_at_us) +
                             " microseconds after 1970 began"};
    }
    out.timestamp = static_cast<std::uint64_t>(*event.occurred_at_us / MICROSECONDS_PER_SECOND);
    return std::nullopt;
}

Outcome map_priority(const Event& event, Message& out) {
    out.priority.reset();
    if (!event.priority) {
        return std::nullopt;
    }
    if (*event.priority < 0 || *event.priority > std::numeric_limits<std::uint8_t>::max()) {
        return Rejection{"invalid_priority", "column priority must be from 0 to 255, it is " +
                                                 std::to_string(*event.priority)};
    }
    out.priority = static_cast<std::uint8_t>(*event.priority);
    return std::nullopt;
}

Outcome map_expiration(const Event& event, Message& out) {
    out.expiration.clear();
    if (!event.expiration_ms) {
        return std::nullopt;
    }
    if (*event.expiration_ms < 0 || *event.expiration_ms > MAX_EXPIRATION_MS) {
        return Rejection{"invalid_expiration", "column expiration must be from 0 to " +
                                                   std::to_string(MAX_EXPIRATION_MS) +
                                                   " ms, it is " +
                                                   std::to_string(*event.expiration_ms) + " ms"};
    }
    out.expiration = std::to_string(*event.expiration_ms);
    return std::nullopt;
}

Outcome map_body(const Event& event, const MessageRules& rules, Message& out) {
    if (event.payload.size() > rules.max_message_bytes) {
        return Rejection{"message_too_large",
                         "column payload is " + std::to_string(event.payload.size()) +
                             " bytes long, the limit outbox_drainer.max_message_bytes is " +
                             std::to_string(rules.max_message_bytes)};
    }
    out.body = event.payload;
    return std::nullopt;
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

}  // namespace

std::optional<Rejection> build_message(const Event& event, const MessageRules& rules,
                                       Message& out) {
    if (!event.unencodable.empty()) {
        return Rejection{"invalid_encoding",
                         std::string(event.unencodable) + " holds text that has no form in UTF-8"};
    }
    if (Outcome rejection = map_address(event, rules, out)) {
        return rejection;
    }
    if (Outcome rejection = check_text_columns(event)) {
        return rejection;
    }
    map_text_columns(event, out);
    if (Outcome rejection = map_timestamp(event, out)) {
        return rejection;
    }
    if (Outcome rejection = map_priority(event, out)) {
        return rejection;
    }
    if (Outcome rejection = map_expiration(event, out)) {
        return rejection;
    }
    if (Outcome rejection = map_body(event, rules, out)) {
        return rejection;
    }
    if (Outcome rejection = build_headers(event, out.headers)) {
        return rejection;
    }
    return check_properties(out, rules);
}

std::size_t encoded_size(const Table& table) {
    std::size_t size = 4;
    for (const auto& [name, field] : table) {
        size += 1 + name.size() + value_size(field);
    }
    return size;
}

}  // namespace outbox
