#include "core/password_lines.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "core/percent_encoding.hpp"

namespace outbox {

namespace {

constexpr std::size_t FIELDS_BEFORE_PASSWORD = 4;  // host, port, vhost, user

struct Line {
    std::array<std::string_view, FIELDS_BEFORE_PASSWORD> fields;  ///< as written, escapes and all
    std::string_view password;                                    ///< likewise
};

/// Takes the next line off the front, without its line end.
std::string_view take_line(std::string_view& text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') {
        line.remove_suffix(1);
    }
    return line;
}

bool is_blank(std::string_view line) {
    return line.find_first_not_of(" \t") == std::string_view::npos;
}

/// Where the field that begins the text ends: at a colon that is not escaped; npos: nowhere.
std::size_t find_field_end(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\') {
            ++i;
        } else if (text[i] == ':') {
            return i;
        }
    }
    return std::string_view::npos;
}

/// nullopt: there are fewer fields than there must be.
std::optional<Line> split(std::string_view text) {
    Line line;
    for (std::string_view& field : line.fields) {
        const std::size_t end = find_field_end(text);
        if (end == std::string_view::npos) {
            return std::nullopt;
        }
        field = text.substr(0, end);
        text.remove_prefix(end + 1);
    }
    line.password = text;
    return line;
}

std::string unescape(std::string_view text) {
    std::string plain;
    plain.reserve(text.size());  // so that growing leaves no copy of a password behind
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) {
            ++i;
        }
        plain += text[i];
    }
    return plain;
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool fits(std::string_view field, std::string_view value) {
    return field == "*" || unescape(field) == value;
}

/// Names of hosts are the same in letters of any case.
bool fits_host(std::string_view field, std::string_view host) {
    const std::string name = unescape(field);
    return field == "*" || std::equal(name.begin(), name.end(), host.begin(), host.end(),
                                      [](char a, char b) { return lower(a) == lower(b); });
}

bool fits(const Line& line, const BrokerUri& uri) {
    return fits_host(line.fields[0], uri.host) && fits(line.fields[1], std::to_string(uri.port)) &&
           fits(line.fields[2], uri.vhost) && fits(line.fields[3], uri.user);
}

/// The only line with anything in it, if it is not one of several fields.
std::optional<std::string_view> find_single_line(std::string_view text) {
    std::optional<std::string_view> single;
    while (!text.empty()) {
        const std::string_view line = take_line(text);
        if (is_blank(line)) {
            continue;
        }
        if (single || split(line)) {
            return std::nullopt;
        }
        single = line;
    }
    return single;
}

std::string description(const BrokerUri& uri) {
    return "host \"" + encode_unprintable(uri.host) + "\", port " + std::to_string(uri.port) +
           ", vhost \"" + encode_unprintable(uri.vhost) + "\", user \"" +
           encode_unprintable(uri.user) + "\"";
}

std::variant<std::string, NoPassword> find_line(std::string_view text, const BrokerUri& uri) {
    std::size_t number = 0;
    std::size_t malformed = 0;  // the first of them
    while (!text.empty()) {
        const std::string_view written = take_line(text);
        ++number;
        if (is_blank(written) || written.front() == '#') {
            continue;
        }
        const std::optional<Line> line = split(written);
        if (!line) {
            malformed = malformed == 0 ? number : malformed;
            continue;
        }
        if (!fits(*line, uri)) {
            continue;
        }
        if (line->password.empty()) {
            return NoPassword{"has no password in line " + std::to_string(number) +
                              ", the first for " + description(uri)};
        }
        return unescape(line->password);
    }
    if (uri.has_password) {
        return uri.password;
    }
    return NoPassword{"has no line for " + description(uri) +
                      (malformed == 0 ? " (lines are host:port:vhost:user:password)"
                                      : " (line " + std::to_string(malformed) +
                                            " is not host:port:vhost:user:password)")};
}

}  // namespace

std::variant<std::string, NoPassword> find_password(std::string_view text, const BrokerUri& uri) {
    if (text.find('\0') != std::string_view::npos) {
        return NoPassword{"contains a NUL byte"};
    }
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        return NoPassword{"is empty"};
    }
    if (const std::optional<std::string_view> single = find_single_line(text)) {
        return std::string(*single);
    }
    return find_line(text, uri);
}

}  // namespace outbox
