#include "core/header_table.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "core/text_limits.hpp"
#include "core/uuid.hpp"

namespace outbox {

namespace {

using Outcome = std::optional<Rejection>;

bool is_integer(std::string_view number) {
    number.remove_prefix(number.starts_with('-') ? 1 : 0);
    return !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Whether a number is so close to zero that a double cannot tell: no digit before the point but
/// zeros.
bool is_below_one(std::string_view number) {
    return number.substr(0, number.find('.')).find_first_not_of("-0") == std::string_view::npos;
}

std::optional<std::int64_t> parse_int64(std::string_view number) {
    std::int64_t value = 0;
    const char* const end = number.data() + number.size();
    const auto result = std::from_chars(number.data(), end, value);
    if (!is_integer(number) || result.ec != std::errc{} || result.ptr != end) {
        return std::nullopt;
    }
    return value;
}

/// nullopt when the number is too large for a double; what is too small is zero.
std::optional<double> parse_double(std::string_view number) {
    double value = 0;
    const char* const end = number.data() + number.size();
    const auto result = std::from_chars(number.data(), end, value);
    if (result.ec == std::errc::result_out_of_range && is_below_one(number)) {
        return number.starts_with('-') ? -0.0 : 0.0;
    }
    if (result.ec != std::errc{} || result.ptr != end || !std::isfinite(value)) {
        return std::nullopt;
    }
    return value;
}

/// A new field at the end of the table, to be filled where it stands.
FieldValue& add(Table& table, std::string_view name) {
    return table.emplace_back(std::string(name), FieldValue{}).second;
}

/// Turns the tokens of one JSON value into an AMQP field.
class JsonReader {
  public:
    /// `what`: whose tokens these are, for messages.
    JsonReader(std::string_view what, Json tokens) : what_(what), tokens_(tokens) {}

    /// The whole value; anything that follows it is malformed.
    Outcome read(FieldValue& out) {
        if (Outcome rejection = value(0, out)) {
            return rejection;
        }
        if (position_ != tokens_.size()) {
            return malformed();
        }
        return std::nullopt;
    }

  private:
    const JsonToken* next() { return position_ < tokens_.size() ? &tokens_[position_++] : nullptr; }

    Outcome value(int depth, FieldValue& out) {
        const JsonToken* token = next();
        if (token == nullptr) {
            return malformed();
        }
        switch (token->kind) {
            case JsonToken::Kind::begin_object:
                return object(depth + 1, out);
            case JsonToken::Kind::begin_array:
                return array(depth + 1, out);
            case JsonToken::Kind::string:
                out.value = std::string(token->text);
                return std::nullopt;
            case JsonToken::Kind::number:
                return number(token->text, out);
            case JsonToken::Kind::boolean_true:
                out.value = true;
                return std::nullopt;
            case JsonToken::Kind::boolean_false:
                out.value = false;
                return std::nullopt;
            case JsonToken::Kind::null:
                out.value = std::monostate{};
                return std::nullopt;
            case JsonToken::Kind::end_object:
            case JsonToken::Kind::end_array:
            case JsonToken::Kind::key:
                break;
        }
        return malformed();
    }

    Outcome object(int depth, FieldValue& out) {
        if (depth > MAX_HEADER_DEPTH) {
            return too_deep();
        }
        Table table;
        for (;;) {
            const JsonToken* token = next();
            if (token != nullptr && token->kind == JsonToken::Kind::end_object) {
                out.value = std::move(table);
                return std::nullopt;
            }
            if (token == nullptr || token->kind != JsonToken::Kind::key) {
                return malformed();
            }
            key_ = token->text;
            if (key_.size() > MAX_SHORT_STRING) {
                return header_name_too_long();
            }
            if (Outcome rejection = value(depth, add(table, key_))) {
                return rejection;
            }
        }
    }

    Outcome array(int depth, FieldValue& out) {
        if (depth > MAX_HEADER_DEPTH) {
            return too_deep();
        }
        Array array;
        while (position_ < tokens_.size()) {
            if (tokens_[position_].kind == JsonToken::Kind::end_array) {
                ++position_;
                out.value = std::move(array);
                return std::nullopt;
            }
            if (Outcome rejection = value(depth, array.emplace_back())) {
                return rejection;
            }
        }
        return malformed();
    }

    Outcome number(std::string_view text, FieldValue& out) {
        if (const std::optional<std::int64_t> integer = parse_int64(text)) {
            out.value = *integer;
            return std::nullopt;
        }
        if (const std::optional<double> real = parse_double(text)) {
            out.value = *real;
            return std::nullopt;
        }
        return Rejection{"number_out_of_range", std::string(what_) + " has under key " +
                                                    clip(key_) + " the number " + clip(text) +
                                                    ", which is outside the range of a double"};
    }

    Rejection header_name_too_long() const {
        return Rejection{"header_name_too_long",
                         std::string(what_) + " has a key of " + std::to_string(key_.size()) +
                             " bytes, the limit is " + std::to_string(MAX_SHORT_STRING) + ": " +
                             clip(key_)};
    }

    Rejection too_deep() const {
        return Rejection{"headers_too_deep", std::string(what_) +
                                                 " is nested deeper than the limit of " +
                                                 std::to_string(MAX_HEADER_DEPTH) + " levels"};
    }

    Rejection malformed() const {
        return Rejection{"malformed_json", std::string(what_) + " is not one complete JSON value"};
    }

    std::string_view what_;
    Json tokens_;
    std::size_t position_ = 0;
    std::string_view key_;  // the last one read, for messages
};

/// Refuses attributes that would clash with our own headers or close the channel.
Outcome check_attribute(const std::pair<std::string, FieldValue>& attribute) {
    const auto& [name, field] = attribute;
    if (name.starts_with(RESERVED_HEADER_PREFIX)) {
        return Rejection{"reserved_header",
                         "column attributes has the key " + clip(name) + ", but the prefix " +
                             std::string(RESERVED_HEADER_PREFIX) + " is reserved"};
    }
    // RabbitMQ routes by these two and answers another type with a channel error.
    if ((name == "CC" || name == "BCC") && !std::holds_alternative<Array>(field.value)) {
        return Rejection{"invalid_routing_header", "column attributes has the key " + name +
                                                       ", which must be an array of routing keys"};
    }
    return std::nullopt;
}

Outcome add_attributes(Json attributes, Table& out) {
    if (attributes.empty()) {
        return std::nullopt;
    }
    FieldValue field;
    if (Outcome rejection = JsonReader("column attributes", attributes).read(field)) {
        return rejection;
    }
    auto* table = std::get_if<Table>(&field.value);
    if (table == nullptr) {
        return Rejection{"attributes_not_object", "column attributes must be a JSON object"};
    }
    for (const auto& attribute : *table) {
        if (Outcome rejection = check_attribute(attribute)) {
            return rejection;
        }
    }
    out = std::move(*table);
    return std::nullopt;
}

void add_text(Table& table, std::string_view name, std::optional<std::string_view> text) {
    if (text) {
        add(table, name).value = std::string(*text);
    }
}

/// A column beats an attribute of the same name: a table must not name a field twice.
void add_trace_header(Table& table, std::string_view name, std::optional<std::string_view> text) {
    if (text) {
        std::erase_if(table, [name](const auto& field) { return field.first == name; });
        add_text(table, name, text);
    }
}

std::string reserved(std::string_view name) {
    return std::string(RESERVED_HEADER_PREFIX).append(name);
}

Outcome add_envelope(const Event& event, Table& out) {
    // Without a message_id of its own the event is named by its id already.
    if (event.message_id) {
        add(out, reserved("id")).value = to_string(event.id);
    }
    add_text(out, reserved("key"), event.key);
    if (event.schema_version) {
        add(out, reserved("schema-version")).value = std::int64_t{*event.schema_version};
    }
    if (!event.schema_reference.empty()) {
        FieldValue field;
        if (Outcome rejection =
                JsonReader("column schema_reference", event.schema_reference).read(field)) {
            return rejection;
        }
        out.emplace_back(reserved("schema-reference"), std::move(field));
    }
    add_text(out, reserved("source-event-id"), event.source_event_id);
    if (event.source_position) {
        add(out, reserved("source-position")).value = *event.source_position;
    }
    add_text(out, reserved("causation-id"), event.causation_id);
    if (event.replay_job != 0) {
        add(out, reserved("replay")).value = event.replay_job;
    }
    return std::nullopt;
}

}  // namespace

std::optional<Rejection> build_arguments(Json arguments, Table& out) {
    out.clear();
    FieldValue field;
    if (Outcome rejection = JsonReader("parameter arguments", arguments).read(field)) {
        return rejection;
    }
    auto* table = std::get_if<Table>(&field.value);
    if (table == nullptr) {
        return Rejection{"arguments_not_object", "parameter arguments must be a JSON object"};
    }
    out = std::move(*table);
    return std::nullopt;
}

std::optional<Rejection> build_headers(const Event& event, Table& out) {
    out.clear();
    if (Outcome rejection = add_attributes(event.attributes, out)) {
        return rejection;
    }
    add_trace_header(out, "traceparent", event.traceparent);
    add_trace_header(out, "tracestate", event.tracestate);
    return add_envelope(event, out);
}

}  // namespace outbox
