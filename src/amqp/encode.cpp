#include "amqp/encode.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace outbox::amqp {

namespace {

constexpr std::uint8_t transient_delivery = 1;
constexpr std::uint8_t persistent_delivery = 2;

void set_text(amqp_basic_properties_t& properties, amqp_flags_t flag, amqp_bytes_t& field,
              const std::optional<std::string_view>& text) {
    if (text) {
        properties._flags |= flag;
        field = to_bytes(*text);
    }
}

}  // namespace

const amqp_basic_properties_t& PropertiesEncoder::encode(const Message& message) {
    amqp_basic_properties_t& p = properties_;
    p = amqp_basic_properties_t{};
    set_text(p, AMQP_BASIC_CONTENT_TYPE_FLAG, p.content_type, message.content_type);
    set_text(p, AMQP_BASIC_CONTENT_ENCODING_FLAG, p.content_encoding, message.content_encoding);
    set_text(p, AMQP_BASIC_CORRELATION_ID_FLAG, p.correlation_id, message.correlation_id);
    set_text(p, AMQP_BASIC_REPLY_TO_FLAG, p.reply_to, message.reply_to);
    set_text(p, AMQP_BASIC_TYPE_FLAG, p.type, message.type);
    set_text(p, AMQP_BASIC_APP_ID_FLAG, p.app_id, message.app_id);
    if (!message.message_id.empty()) {
        set_text(p, AMQP_BASIC_MESSAGE_ID_FLAG, p.message_id, message.message_id);
    }
    if (!message.expiration.empty()) {
        set_text(p, AMQP_BASIC_EXPIRATION_FLAG, p.expiration, message.expiration);
    }
    p._flags |= AMQP_BASIC_DELIVERY_MODE_FLAG;
    p.delivery_mode = message.persistent ? persistent_delivery : transient_delivery;
    if (message.priority) {
        p._flags |= AMQP_BASIC_PRIORITY_FLAG;
        p.priority = *message.priority;
    }
    if (message.timestamp) {
        p._flags |= AMQP_BASIC_TIMESTAMP_FLAG;
        p.timestamp = *message.timestamp;
    }
    if (!message.headers.empty()) {
        p._flags |= AMQP_BASIC_HEADERS_FLAG;
        p.headers = headers_.encode(message.headers);
    }
    return p;
}

amqp_table_t TableEncoder::encode(const Table& table) {
    Size size;
    measure(table, size);
    entries_.resize(size.entries);
    values_.resize(size.values);
    used_ = Size{};
    return fill(table);
}

void TableEncoder::measure(const Table& table, Size& size) {
    size.entries += table.size();
    for (const auto& [key, value] : table) {
        measure(value, size);
    }
}

void TableEncoder::measure(const FieldValue& value, Size& size) {
    if (const auto* table = std::get_if<Table>(&value.value)) {
        measure(*table, size);
    } else if (const auto* array = std::get_if<Array>(&value.value)) {
        size.values += array->size();
        for (const FieldValue& element : *array) {
            measure(element, size);
        }
    }
}

amqp_table_t TableEncoder::fill(const Table& table) {
    amqp_table_entry_t* entries = entries_.data() + used_.entries;
    used_.entries += table.size();
    std::size_t i = 0;
    for (const auto& [key, value] : table) {
        entries[i].key = to_bytes(key);
        fill(value, entries[i].value);
        ++i;
    }
    return {static_cast<int>(table.size()), entries};
}

amqp_array_t TableEncoder::fill(const Array& array) {
    amqp_field_value_t* values = values_.data() + used_.values;
    used_.values += array.size();
    std::size_t i = 0;
    for (const FieldValue& element : array) {
        fill(element, values[i]);
        ++i;
    }
    return {static_cast<int>(array.size()), values};
}

void TableEncoder::fill(const FieldValue& value, amqp_field_value_t& out) {
    if (const auto* boolean = std::get_if<bool>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_BOOLEAN;
        out.value.boolean = *boolean ? 1 : 0;
    } else if (const auto* integer = std::get_if<std::int64_t>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_I64;
        out.value.i64 = *integer;
    } else if (const auto* real = std::get_if<double>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_F64;
        out.value.f64 = *real;
    } else if (const auto* text = std::get_if<std::string>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_UTF8;
        out.value.bytes = to_bytes(*text);
    } else if (const auto* table = std::get_if<Table>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_TABLE;
        out.value.table = fill(*table);
    } else if (const auto* array = std::get_if<Array>(&value.value)) {
        out.kind = AMQP_FIELD_KIND_ARRAY;
        out.value.array = fill(*array);
    } else {
        out.kind = AMQP_FIELD_KIND_VOID;
    }
}

}  // namespace outbox::amqp
