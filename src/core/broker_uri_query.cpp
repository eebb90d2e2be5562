#include "core/broker_uri_query.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "core/percent_encoding.hpp"
#include "core/text_limits.hpp"

namespace outbox {

namespace {

using Problem = std::optional<std::string>;

// The limits of the settings that these stand for.
constexpr std::uint32_t MAX_HEARTBEAT_SECONDS = 600;
constexpr std::uint32_t MIN_CONNECTION_TIMEOUT_MS = 100;
constexpr std::uint32_t MAX_CONNECTION_TIMEOUT_MS = 600000;
constexpr std::uint32_t MIN_CHANNELS = 3;  // as many as a connection needs
constexpr std::uint32_t MAX_CHANNELS = 65535;

constexpr std::array<std::string_view, 10> TLS_PARAMETERS{"sslmode",
                                                          "verify",
                                                          "sslrootcert",
                                                          "cacertfile",
                                                          "sslcert",
                                                          "certfile",
                                                          "sslkey",
                                                          "keyfile",
                                                          "ssl_min_protocol_version",
                                                          "server_name_indication"};
constexpr std::array<std::string_view, 4> OTHER_PARAMETERS{"auth_mechanism", "heartbeat",
                                                           "connection_timeout", "channel_max"};

/// Parameters that other clients know and that would make a secret part of the URI.
struct Forbidden {
    std::string_view name;
    std::string_view cure;
};
constexpr std::array<Forbidden, 3> FORBIDDEN{
    Forbidden{"password", "put the password into the file that outbox_drainer.password_file names"},
    Forbidden{"passfile", "name the file in outbox_drainer.password_file"},
    Forbidden{"sslpassword",
              "use a private key that needs no password and that only the server's "
              "operating system user can read"},
};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::string parameter(std::string_view name) {
    return "the parameter " + std::string(name);
}

std::string lower_case(std::string text) {
    for (char& c : text) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return text;
}

/// The parameters as they were given, decoded.
class Query {
  public:
    Problem read(std::string_view text);
    /// nullptr: not given.
    const std::string* find(std::string_view name) const;
    /// One thing under libpq's name and under RabbitMQ's: both may be given if they say the same.
    Problem read_either(std::string_view name, std::string_view other, std::string& out) const;

  private:
    Problem add(std::string_view piece);

    std::vector<std::pair<std::string_view, std::string>> values_;
};

Problem Query::read(std::string_view text) {
    for (std::size_t start = 0; start <= text.size();) {
        const std::size_t end = std::min(text.find('&', start), text.size());
        if (Problem problem = add(text.substr(start, end - start))) {
            return problem;
        }
        start = end + 1;
    }
    return std::nullopt;
}

/// Whether the text reads as the name of a parameter. What does not may be part of a secret that
/// was not encoded, and is not repeated.
bool is_name(std::string_view text) {
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), fits);
}

Problem Query::add(std::string_view piece) {
    const std::size_t equals = piece.find('=');
    if (equals == std::string_view::npos) {
        return "a query parameter has no = (a ? in a name or password is written %3F)";
    }
    const std::string_view name = piece.substr(0, equals);
    for (const Forbidden& forbidden : FORBIDDEN) {
        if (name == forbidden.name) {
            return parameter(name) + " is refused: " + std::string(forbidden.cure);
        }
    }
    if (!contains(TLS_PARAMETERS, name) && !contains(OTHER_PARAMETERS, name)) {
        return is_name(name) ? parameter(name) + " is unknown"
                             : std::string("it contains a query parameter that is unknown");
    }
    if (find(name) != nullptr) {
        return parameter(name) + " is given twice";
    }
    std::string value;
    if (Problem problem =
            decode_percent("parameter " + std::string(name), piece.substr(equals + 1), value)) {
        return problem;
    }
    if (value.empty()) {
        return parameter(name) + " is empty";
    }
    values_.emplace_back(name, std::move(value));
    return std::nullopt;
}

const std::string* Query::find(std::string_view name) const {
    for (const auto& [known, value] : values_) {
        if (known == name) {
            return &value;
        }
    }
    return nullptr;
}

std::string contradiction(std::string_view name, std::string_view other) {
    return "the parameters " + std::string(name) + " and " + std::string(other) +
           " contradict each other";
}

Problem Query::read_either(std::string_view name, std::string_view other, std::string& out) const {
    const std::string* const one = find(name);
    const std::string* const two = find(other);
    if (one != nullptr && two != nullptr && *one != *two) {
        return contradiction(name, other);
    }
    if (one != nullptr || two != nullptr) {
        out = one != nullptr ? *one : *two;
    }
    return std::nullopt;
}

Problem read_sslmode(const std::string& text, SslMode& out) {
    if (text == "disable" || text == "allow" || text == "prefer") {
        return "sslmode disable, allow and prefer are refused with amqps://, which never falls "
               "back to a connection without TLS";
    }
    if (text == "require") {
        out = SslMode::require;
    } else if (text == "verify-ca") {
        out = SslMode::verify_ca;
    } else if (text == "verify-full") {
        out = SslMode::verify_full;
    } else {
        return parameter("sslmode") + " is none of require, verify-ca and verify-full";
    }
    return std::nullopt;
}

Problem read_mode(const Query& query, SslMode& out) {
    const std::string* const sslmode = query.find("sslmode");
    const std::string* const verify = query.find("verify");
    if (sslmode != nullptr) {
        if (Problem problem = read_sslmode(*sslmode, out)) {
            return problem;
        }
    }
    if (verify == nullptr) {
        return std::nullopt;
    }
    if (*verify != "verify_peer" && *verify != "verify_none") {
        return parameter("verify") + " is neither verify_peer nor verify_none";
    }
    const SslMode wanted = *verify == "verify_peer" ? SslMode::verify_full : SslMode::require;
    if (sslmode != nullptr && wanted != out) {
        return contradiction("sslmode", "verify");
    }
    out = wanted;
    return std::nullopt;
}

Problem read_files(const Query& query, TlsOptions& tls) {
    if (Problem problem = query.read_either("sslrootcert", "cacertfile", tls.root_cert)) {
        return problem;
    }
    if (Problem problem = query.read_either("sslcert", "certfile", tls.cert)) {
        return problem;
    }
    if (Problem problem = query.read_either("sslkey", "keyfile", tls.key)) {
        return problem;
    }
    if (tls.cert.empty() != tls.key.empty()) {
        return tls.key.empty() ? "a client certificate (sslcert) needs its private key (sslkey)"
                               : "a private key (sslkey) needs its client certificate (sslcert)";
    }
    if (tls.mode == SslMode::require && !tls.root_cert.empty()) {
        return "sslmode=require (verify_none) checks no certificate, so that sslrootcert "
               "(cacertfile) would be of no use: take verify-ca or verify-full";
    }
    return std::nullopt;
}

Problem read_min_version(const Query& query, TlsVersion& out) {
    const std::string* const given = query.find("ssl_min_protocol_version");
    if (given == nullptr) {
        return std::nullopt;
    }
    const std::string version = lower_case(*given);
    if (version == "tlsv1.3") {
        out = TlsVersion::tls_1_3;
    } else if (version == "tlsv1" || version == "tlsv1.1") {
        return "TLSv1 and TLSv1.1 are refused as ssl_min_protocol_version: they are not safe any "
               "more";
    } else if (version != "tlsv1.2") {
        return parameter("ssl_min_protocol_version") + " is neither TLSv1.2 nor TLSv1.3";
    }
    return std::nullopt;
}

Problem read_server_name(const Query& query, std::string& out) {
    const std::string* const given = query.find("server_name_indication");
    if (given == nullptr) {
        return std::nullopt;
    }
    if (*given == "disable") {
        return "server_name_indication cannot be disabled";
    }
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '.' || c == '_' || c == ':';
    };
    if (given->size() > MAX_SHORT_STRING || !std::all_of(given->begin(), given->end(), fits)) {
        return parameter("server_name_indication") + " is not a host name";
    }
    out = *given;
    return std::nullopt;
}

Problem read_tls(const Query& query, BrokerUri& uri) {
    if (!uri.tls) {
        for (const std::string_view name : TLS_PARAMETERS) {
            if (query.find(name) != nullptr) {
                return parameter(name) + " is for amqps:// only";
            }
        }
        return std::nullopt;
    }
    if (Problem problem = read_mode(query, uri.tls->mode)) {
        return problem;
    }
    if (Problem problem = read_files(query, *uri.tls)) {
        return problem;
    }
    if (Problem problem = read_min_version(query, uri.tls->min_version)) {
        return problem;
    }
    return read_server_name(query, uri.tls->server_name);
}

Problem read_auth(const Query& query, BrokerUri& uri) {
    const std::string* const given = query.find("auth_mechanism");
    if (given == nullptr) {
        return std::nullopt;
    }
    const std::string mechanism = lower_case(*given);
    if (mechanism == "plain") {
        return std::nullopt;
    }
    if (mechanism != "external") {
        return parameter("auth_mechanism") + " is neither plain nor external";
    }
    if (!uri.tls || uri.tls->cert.empty()) {
        return "auth_mechanism=external needs amqps:// with a client certificate (sslcert, sslkey)";
    }
    if (uri.has_password) {
        return "auth_mechanism=external logs in by the client's certificate and takes no password";
    }
    uri.auth = AuthMechanism::external;
    return std::nullopt;
}

struct Range {
    std::uint32_t least;
    std::uint32_t most;
    std::string_view unit;
};

Problem read_number(const Query& query, std::string_view name, const Range& range,
                    std::optional<std::uint32_t>& out) {
    const std::string* const given = query.find(name);
    if (given == nullptr) {
        return std::nullopt;
    }
    std::uint32_t number = 0;
    const char* const end = given->data() + given->size();
    const auto result = std::from_chars(given->data(), end, number);
    if (result.ec != std::errc{} || result.ptr != end || number < range.least ||
        number > range.most) {
        return parameter(name) + " is not a number from " + std::to_string(range.least) + " to " +
               std::to_string(range.most) + std::string(range.unit);
    }
    out = number;
    return std::nullopt;
}

Problem read_numbers(const Query& query, BrokerUri& uri) {
    std::optional<std::uint32_t> heartbeat;
    std::optional<std::uint32_t> timeout;
    std::optional<std::uint32_t> channels;
    if (Problem problem =
            read_number(query, "heartbeat", {1, MAX_HEARTBEAT_SECONDS, " (seconds)"}, heartbeat)) {
        return problem;
    }
    if (Problem problem = read_number(
            query, "connection_timeout",
            {MIN_CONNECTION_TIMEOUT_MS, MAX_CONNECTION_TIMEOUT_MS, " (milliseconds)"}, timeout)) {
        return problem;
    }
    if (Problem problem = read_number(query, "channel_max", {0, MAX_CHANNELS, ""}, channels)) {
        return problem;
    }
    if (channels && *channels != 0 && *channels < MIN_CHANNELS) {
        return "channel_max must be 0 (no limit) or at least " + std::to_string(MIN_CHANNELS);
    }
    if (heartbeat) {
        uri.heartbeat = std::chrono::seconds(*heartbeat);
    }
    if (timeout) {
        uri.connect_timeout = Duration(*timeout);
    }
    uri.channel_max = static_cast<std::uint16_t>(channels.value_or(0));
    return std::nullopt;
}

}  // namespace

Problem read_query(std::optional<std::string_view> text, BrokerUri& uri) {
    if (!text) {
        return std::nullopt;
    }
    Query query;
    if (Problem problem = query.read(*text)) {
        return problem;
    }
    if (Problem problem = read_tls(query, uri)) {
        return problem;
    }
    if (Problem problem = read_auth(query, uri)) {
        return problem;
    }
    return read_numbers(query, uri);
}

}  // namespace outbox
