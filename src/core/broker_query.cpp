#include "core/broker_query.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "core/percent_encoding.hpp"
#include "core/text_limits.hpp"

namespace outbox {

namespace {

using Problem = std::optional<std::string>;
using Parameters = std::map<std::string, std::string, std::less<>>;

/// What a number may be. heartbeat and connection_timeout have the limits of the settings that they
/// stand for: without a heartbeat a peer that has gone is not noticed.
struct Range {
    std::uint64_t least;
    std::uint64_t most;
    std::string_view unit;
};
constexpr Range HEARTBEAT{1, 600, " (seconds)"};
constexpr Range CONNECTION_TIMEOUT{100, 600'000, " (milliseconds)"};
constexpr Range CHANNEL_MAX{0, 65535, ""};
constexpr std::uint64_t CHANNELS_NEEDED = 3;

/// RabbitMQ's names of what libpq names otherwise.
constexpr std::pair<std::string_view, std::string_view> SYNONYMS[] = {
    {"cacertfile", "sslrootcert"},
    {"certfile", "sslcert"},
    {"keyfile", "sslkey"},
};

constexpr std::string_view TLS_PARAMETERS[] = {
    "sslmode", "sslrootcert",           "sslcert", "sslkey", "ssl_min_protocol_version",
    "verify",  "server_name_indication"};
constexpr std::string_view OTHER_PARAMETERS[] = {"auth_mechanism", "heartbeat",
                                                 "connection_timeout", "channel_max"};

template <class List>
bool contains(const List& list, std::string_view name) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::string lower_case(std::string text) {
    for (char& c : text) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return text;
}

bool is_secret(std::string_view name) {
    return name.find("password") != std::string_view::npos || name == "passfile" ||
           name == "passwd" || name == "secret";
}

// What does not look like a name may be a piece of a password.
std::string shown(std::string_view name) {
    const bool is_name = !name.empty() && name.size() <= 40 &&
                         name.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
                             "Z0123456789_") == std::string_view::npos;
    return is_name ? "\"" + std::string(name) + "\"" : "whose name is not shown";
}

Problem add_parameter(std::string_view text, Parameters& parameters) {
    const std::size_t equals = text.find('=');
    std::string name(text.substr(0, equals));
    if (equals == std::string_view::npos) {
        return "a parameter has no = and value";
    }
    if (is_secret(name)) {
        return "a password has no place among the parameters: put it into a file that "
               "outbox_drainer.password_file names";
    }
    for (const auto& [rabbitmq, libpq] : SYNONYMS) {
        name = name == rabbitmq ? std::string(libpq) : name;
    }
    if (!contains(TLS_PARAMETERS, name) && !contains(OTHER_PARAMETERS, name)) {
        return "there is no parameter " + shown(name);
    }
    std::string value;
    if (Problem problem =
            percent_decode("parameter \"" + name + "\"", text.substr(equals + 1), value)) {
        return problem;
    }
    if (!parameters.emplace(name, std::move(value)).second) {
        return "the parameter \"" + name + "\" is given twice";
    }
    return std::nullopt;
}

Problem split(std::string_view query, Parameters& parameters) {
    while (!query.empty()) {
        const std::size_t end = std::min(query.find('&'), query.size());
        if (Problem problem = add_parameter(query.substr(0, end), parameters)) {
            return problem;
        }
        query.remove_prefix(std::min(end + 1, query.size()));
    }
    return std::nullopt;
}

const std::string* find(const Parameters& parameters, std::string_view name) {
    const auto found = parameters.find(name);
    return found == parameters.end() ? nullptr : &found->second;
}

std::optional<SslMode> mode_of_sslmode(std::string_view value) {
    if (value == "require") {
        return SslMode::require;
    }
    if (value == "verify-ca") {
        return SslMode::verify_ca;
    }
    return value == "verify-full" ? std::optional(SslMode::verify_full) : std::nullopt;
}

Problem read_mode(const Parameters& parameters, TlsOptions& tls) {
    const std::string* sslmode = find(parameters, "sslmode");
    const std::string* verify = find(parameters, "verify");
    if (sslmode != nullptr) {
        const std::optional<SslMode> mode = mode_of_sslmode(*sslmode);
        if (!mode.has_value()) {
            return "sslmode must be verify-full, verify-ca or require: a connection by amqps:// "
                   "never falls back to plain text (amqp:// is plain)";
        }
        tls.mode = *mode;
    }
    if (verify == nullptr) {
        return std::nullopt;
    }
    if (*verify != "verify_peer" && *verify != "verify_none") {
        return "verify must be verify_peer or verify_none";
    }
    const bool verifies = *verify == "verify_peer";
    if (sslmode != nullptr && verifies == (tls.mode == SslMode::require)) {
        return "sslmode and verify contradict each other";
    }
    if (!verifies) {
        tls.mode = SslMode::require;
    }
    return std::nullopt;
}

Problem read_min_version(const Parameters& parameters, TlsVersion& out) {
    const std::string* given = find(parameters, "ssl_min_protocol_version");
    if (given == nullptr) {
        return std::nullopt;
    }
    const std::string version = lower_case(*given);  // in letters of any case, as in libpq
    if (version != "tlsv1.2" && version != "tlsv1.3") {
        return "ssl_min_protocol_version must be TLSv1.2 or TLSv1.3 (older ones are not safe)";
    }
    out = version == "tlsv1.3" ? TlsVersion::tls_1_3 : TlsVersion::tls_1_2;
    return std::nullopt;
}

Problem read_server_name(const Parameters& parameters, std::string& out) {
    const std::string* given = find(parameters, "server_name_indication");
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
    if (given->empty() || given->size() > MAX_SHORT_STRING ||
        !std::all_of(given->begin(), given->end(), fits)) {
        return "server_name_indication must be a host name";
    }
    out = *given;
    return std::nullopt;
}

Problem read_tls(const Parameters& parameters, TlsOptions& tls) {
    if (Problem problem = read_mode(parameters, tls)) {
        return problem;
    }
    for (auto [name, target] : {std::pair{"sslrootcert", &tls.root_cert},
                                std::pair{"sslcert", &tls.cert}, std::pair{"sslkey", &tls.key}}) {
        if (const std::string* value = find(parameters, name)) {
            if (value->empty()) {
                return "the parameter \"" + std::string(name) + "\" is empty";
            }
            *target = *value;
        }
    }
    if (tls.cert.empty() != tls.key.empty()) {
        return "sslcert and sslkey must be given together";
    }
    if (Problem problem = read_min_version(parameters, tls.min_version)) {
        return problem;
    }
    return read_server_name(parameters, tls.server_name);
}

Problem read_number(const Parameters& parameters, std::string_view name, const Range& range,
                    std::optional<std::uint64_t>& out) {
    const std::string* text = find(parameters, name);
    if (text == nullptr) {
        return std::nullopt;
    }
    std::uint64_t number = 0;
    const char* const end = text->data() + text->size();
    const auto result = std::from_chars(text->data(), end, number);
    if (result.ec != std::errc{} || result.ptr != end || number < range.least ||
        number > range.most) {
        return std::string(name) + " must be a number from " + std::to_string(range.least) +
               " to " + std::to_string(range.most) + std::string(range.unit);
    }
    out = number;
    return std::nullopt;
}

Problem read_numbers(const Parameters& parameters, BrokerUri& uri) {
    std::optional<std::uint64_t> heartbeat;
    std::optional<std::uint64_t> timeout;
    std::optional<std::uint64_t> channels;
    if (Problem problem = read_number(parameters, "heartbeat", HEARTBEAT, heartbeat)) {
        return problem;
    }
    if (Problem problem =
            read_number(parameters, "connection_timeout", CONNECTION_TIMEOUT, timeout)) {
        return problem;
    }
    if (Problem problem = read_number(parameters, "channel_max", CHANNEL_MAX, channels)) {
        return problem;
    }
    const std::uint64_t channel_max = channels.value_or(0);
    if (channel_max > 0 && channel_max < CHANNELS_NEEDED) {
        return "channel_max must be 0 (no limit) or at least " + std::to_string(CHANNELS_NEEDED);
    }
    if (heartbeat.has_value()) {
        uri.heartbeat = std::chrono::seconds(*heartbeat);
    }
    if (timeout.has_value()) {
        uri.connect_timeout = Duration{static_cast<Duration::rep>(*timeout)};
    }
    uri.channel_max = static_cast<std::uint16_t>(channel_max);
    return std::nullopt;
}

Problem read_auth(const Parameters& parameters, BrokerUri& uri) {
    const std::string* mechanism = find(parameters, "auth_mechanism");
    if (mechanism == nullptr || lower_case(*mechanism) == "plain") {
        return std::nullopt;
    }
    if (lower_case(*mechanism) != "external") {
        return "auth_mechanism must be plain or external";
    }
    if (!uri.tls.has_value() || uri.tls->cert.empty()) {
        return "auth_mechanism external needs amqps:// with sslcert and sslkey";
    }
    if (uri.has_password) {
        return "a password has no meaning with auth_mechanism external";
    }
    uri.auth = AuthMechanism::external;
    return std::nullopt;
}

}  // namespace

std::optional<std::string> read_broker_query(std::string_view query, BrokerUri& uri) {
    Parameters parameters;
    if (Problem problem = split(query, parameters)) {
        return problem;
    }
    if (uri.tls.has_value()) {
        if (Problem problem = read_tls(parameters, *uri.tls)) {
            return problem;
        }
    } else {
        for (const auto& [name, value] : parameters) {
            if (contains(TLS_PARAMETERS, name)) {
                return "the parameter \"" + name + "\" needs amqps://";
            }
        }
    }
    if (Problem problem = read_numbers(parameters, uri)) {
        return problem;
    }
    return read_auth(parameters, uri);
}

}  // namespace outbox
