#include "core/message_json.hpp"

#include <array>
#include <charconv>

namespace outbox {

namespace {

void append_string(std::string& out, std::string_view text) {
    constexpr std::string_view hex = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += "\\u00";
            out += hex[static_cast<std::size_t>(c) >> 4];
            out += hex[static_cast<std::size_t>(c) & 0xf];
        } else {
            out += c;
        }
    }
    out += '"';
}

void append_double(std::string& out, double number) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    out.append(digits.data(), end.ptr);
}

/// Writes the members of an object, with the commas between them.
class Members {
  public:
    explicit Members(std::string& out) : out_(out) { out_ += '{'; }

    std::string& name(std::string_view name) {
        if (!first_) {
            out_ += ',';
        }
        first_ = false;
        append_string(out_, name);
        return out_ += ':';
    }
    void text(std::string_view member, std::optional<std::string_view> value) {
        if (value) {
            append_string(name(member), *value);
        }
    }
    void end() { out_ += '}'; }

  private:
    std::string& out_;
    bool first_ = true;
};

void append_table(std::string& out, const Table& table);

void append_field(std::string& out, const FieldValue& field);

struct AppendValue {
    std::string& out;

    void operator()(std::monostate) const { out += "null"; }
    void operator()(bool value) const { out += value ? "true" : "false"; }
    void operator()(std::int64_t value) const { out += std::to_string(value); }
    void operator()(double value) const { append_double(out, value); }
    void operator()(const std::string& value) const { append_string(out, value); }
    void operator()(const Table& value) const { append_table(out, value); }
    void operator()(const Array& value) const {
        out += '[';
        for (std::size_t i = 0; i < value.size(); ++i) {
            out += i == 0 ? "" : ",";
            append_field(out, value[i]);
        }
        out += ']';
    }
};

void append_field(std::string& out, const FieldValue& field) {
    std::visit(AppendValue{out}, field.value);
}

void append_table(std::string& out, const Table& table) {
    Members members(out);
    for (const auto& [name, field] : table) {
        append_field(members.name(name), field);
    }
    members.end();
}

void append_properties(std::string& out, const Message& message) {
    Members members(out);
    members.text("content_type", message.content_type);
    members.text("content_encoding", message.content_encoding);
    members.name("delivery_mode") += message.persistent ? '2' : '1';
    if (message.priority) {
        members.name("priority") += std::to_string(*message.priority);
    }
    members.text("correlation_id", message.correlation_id);
    members.text("reply_to", message.reply_to);
    if (!message.expiration.empty()) {
        members.text("expiration", message.expiration);
    }
    members.text("message_id", message.message_id);
    if (message.timestamp) {
        members.name("timestamp") += std::to_string(*message.timestamp);
    }
    members.text("type", message.type);
    members.text("app_id", message.app_id);
    members.end();
}

std::string base64(std::string_view bytes) {
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t group = 0;
        for (std::size_t j = 0; j < 3; ++j) {
            const bool there = i + j < bytes.size();
            group = group << 8 | (there ? static_cast<unsigned char>(bytes[i + j]) : 0U);
        }
        for (std::size_t j = 0; j < 4; ++j) {
            out += i + j <= bytes.size() ? digits[group >> (18 - 6 * j) & 0x3f] : '=';
        }
    }
    return out;
}

}  // namespace

std::string message_json(const Message& message, bool mandatory, bool body_is_text) {
    std::string out;
    Members members(out);
    members.text("exchange", message.exchange);
    members.text("routing_key", message.routing_key);
    members.name("mandatory") += mandatory ? "true" : "false";
    append_properties(members.name("properties"), message);
    append_table(members.name("headers"), message.headers);
    members.name("body_size") += std::to_string(message.body.size());
    if (body_is_text) {
        members.text("body", message.body);
    } else {
        members.text("body_base64", base64(message.body));
    }
    members.end();
    return out;
}

std::string refusal_json(const Rejection& rejection) {
    std::string out;
    Members members(out);
    Members refused(members.name("refused"));
    refused.text("error_code", rejection.code);
    refused.text("detail", rejection.detail);
    refused.end();
    members.end();
    return out;
}

}  // namespace outbox
