#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/time.hpp"

namespace outbox {

/// How much of the broker's certificate is checked, in libpq's words.
enum class SslMode : std::uint8_t {
    require,      ///< encrypted, whoever it is; with a root_cert file like verify_ca, as libpq does
    verify_ca,    ///< its certificate comes from a trusted authority
    verify_full,  ///< and is for the host that was asked for
};

enum class TlsVersion : std::uint8_t { tls_1_2, tls_1_3 };

/// What an amqps:// URI asks of TLS. Paths are as they were given; empty: not given.
struct TlsOptions {
    SslMode mode = SslMode::verify_full;
    std::string root_cert;  ///< file with trusted authorities; empty or "system": the system's
    std::string cert;       ///< the client's certificate
    std::string key;        ///< and its private key
    TlsVersion min_version = TlsVersion::tls_1_2;
    std::string server_name;  ///< sent and verified instead of the host; empty: the host

    bool operator==(const TlsOptions&) const = default;
};

/// How to log in (SASL).
enum class AuthMechanism : std::uint8_t {
    plain,     ///< user and password
    external,  ///< the client's certificate says who it is
};

/// Where a broker is and how to log in: amqp://user:password@host:port/vhost?parameters.
struct BrokerUri {
    std::string host = "localhost";
    std::uint16_t port = 5672;  ///< 5671 with amqps
    std::string user = "guest";
    std::string password = "guest";
    bool has_user = false;      ///< the URI itself named a user
    bool has_password = false;  ///< the URI itself carried a password
    std::string vhost = "/";
    std::optional<TlsOptions> tls;  ///< amqps
    AuthMechanism auth = AuthMechanism::plain;
    std::optional<Duration> heartbeat;        ///< instead of the setting
    std::optional<Duration> connect_timeout;  ///< likewise
    std::uint16_t channel_max = 0;            ///< 0: no wish
};

struct UriError {
    std::string reason;
};

/// Parses one AMQP URI (RabbitMQ URI specification: percent-encoding in user, password and vhost,
/// an absent path is vhost "/", a path of "/" alone is the empty vhost, [::1] for IPv6). Query
/// parameters are libpq's (sslmode, sslrootcert, sslcert, sslkey, ssl_min_protocol_version) and
/// RabbitMQ's (cacertfile, certfile, keyfile, verify, server_name_indication, auth_mechanism,
/// heartbeat, connection_timeout, channel_max).
std::variant<BrokerUri, UriError> parse_broker_uri(std::string_view text);

/// Parses a list of URIs, separated by commas with blanks around them: the brokers in the order in
/// which they are tried, at least one. The reason of an error names which of several is meant.
std::variant<std::vector<BrokerUri>, UriError> parse_broker_list(std::string_view text);

/// How many brokers the list names; a text that is no such list counts as one.
std::size_t count_brokers(std::string_view text);

/// The text of a URI or a list of them with each password, if any, replaced by "****". Text that is
/// no URI is returned with more of it replaced: better to hide too much than a secret.
std::string redact_uri(std::string_view text);

/// "host:port/vhost" as shown to users; never carries user or password.
std::string display_name(const BrokerUri& uri);

}  // namespace outbox
