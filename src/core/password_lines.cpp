#include "core/password_lines.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace outbox {

namespace {

constexpr std::size_t FIELDS = 5;

std::string_view next_line(std::string_view& text) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) {
        line.remove_suffix(1);
    }
    return line;
}

/// Up to the next colon that is not escaped, unescaped; the colon is taken away too.
std::string next_field(std::string_view& line, bool& ended_by_colon) {
    std::string field;
    ended_by_colon = false;
    while (!line.empty() && !ended_by_colon) {
        if (line.front() == '\\' && line.size() > 1) {
            line.remove_prefix(1);
            field += line.front();
        } else if (line.front() == ':') {
            ended_by_colon = true;
        } else {
            field += line.front();
        }
        line.remove_prefix(1);
    }
    return field;
}

/// The fields of a line; nullopt when there are fewer. The last one goes to the end of the line,
/// colons and all.
std::optional<std::array<std::string, FIELDS>> fields_of(std::string_view line) {
    std::array<std::string, FIELDS> fields;
    bool ended_by_colon = true;
    for (std::size_t i = 0; i + 1 < FIELDS; i++) {
        fields[i] = next_field(line, ended_by_colon);
        if (!ended_by_colon) {
            return std::nullopt;
        }
    }
    std::string& password = fields[FIELDS - 1];
    while (!line.empty()) {
        password += next_field(line, ended_by_colon);
        password += ended_by_colon ? ":" : "";
    }
    return fields;
}

bool fits(const std::array<std::string, FIELDS>& fields, const BrokerUri& uri) {
    const std::array<std::string, FIELDS - 1> wanted{uri.host, std::to_string(uri.port), uri.vhost,
                                                     uri.user};
    for (std::size_t i = 0; i < wanted.size(); i++) {
        if (fields[i] != "*" && fields[i] != wanted[i]) {
            return false;
        }
    }
    return true;
}

std::string no_line_for(const BrokerUri& uri) {
    return "has no line for host \"" + uri.host + "\", port " + std::to_string(uri.port) +
           ", vhost \"" + uri.vhost + "\", user \"" + uri.user +
           "\" (lines are host:port:vhost:user:password)";
}

}  // namespace

std::variant<std::string, NoPassword> find_password(std::string_view text, const BrokerUri& uri) {
    if (text.find('\0') != std::string_view::npos) {
        return NoPassword{"contains a NUL byte"};
    }
    std::string_view first;
    std::size_t lines = 0;
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view line = next_line(rest);
        if (!line.empty() && lines++ == 0) {
            first = line;
        }
    }
    if (lines == 0) {
        return NoPassword{"is empty"};
    }
    if (lines == 1 && !fields_of(first).has_value()) {
        return std::string(first);
    }
    while (!text.empty()) {
        const std::string_view line = next_line(text);
        if (line.empty() || line.front() == '#') {
            continue;
        }
        auto fields = fields_of(line);
        if (!fields.has_value()) {
            return NoPassword{
                "has more than one line, and one that is not host:port:vhost:user:password"};
        }
        if (fits(*fields, uri)) {
            return std::move(fields->back());
        }
    }
    return NoPassword{no_line_for(uri)};
}

}  // namespace outbox
