#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace outbox {

/// Where a broker is and how to log in: amqp://user:password@host:port/vhost.
struct BrokerUri {
    std::string host = "localhost";
    std::uint16_t port = 5672;
    std::string user = "guest";
    std::string password = "guest";
    bool has_password = false;  ///< the URI itself carried a password
    std::string vhost = "/";
};

struct UriError {
    std::string reason;
};

/// Parses an AMQP URI (RabbitMQ URI specification: percent-encoding in user, password and vhost, an
/// absent path is vhost "/", a path of "/" alone is the empty vhost, [::1] for IPv6). amqps and
/// query parameters are refused with the reason until TLS is there.
std::variant<BrokerUri, UriError> parse_broker_uri(std::string_view text);

/// The URI text with the password, if any, replaced by "****". Text that is no URI is returned with
/// everything between "://" and the last "@" replaced: better to hide too much than a secret.
std::string redact_uri(std::string_view text);

/// "host:port/vhost" as shown to users; never carries user or password.
std::string display_name(const BrokerUri& uri);

}  // namespace outbox
