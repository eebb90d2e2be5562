#include "core/broker_advice.hpp"

#include <algorithm>
#include <string_view>

namespace outbox {

namespace {

bool is_loopback(std::string_view host) {
    std::string name(host);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (name.starts_with("::ffff:")) {
        name.erase(0, 7);
    }
    const bool is_address = name.find_first_not_of("0123456789.") == std::string::npos;
    return name == "localhost" || name == "localhost." || name.ends_with(".localhost") ||
           name == "::1" || (is_address && name.starts_with("127."));
}

/// Whether no authorities of one's own are named.
bool trusts_the_public(const TlsOptions& tls) {
    return tls.root_cert.empty() || tls.root_cert == "system";
}

/// The names of the brokers to which something applies, separated by commas.
template <class Predicate>
std::string names_of(const std::vector<BrokerUri>& uris, const Predicate& applies) {
    std::string names;
    for (const BrokerUri& uri : uris) {
        if (applies(uri)) {
            names += (names.empty() ? "" : ", ") + display_name(uri);
        }
    }
    return names;
}

}  // namespace

std::vector<std::string> broker_advice(const std::vector<BrokerUri>& uris, bool has_password_file) {
    std::vector<std::string> advice;
    const auto add = [&](const auto& applies, std::string_view before, std::string_view after) {
        const std::string names = names_of(uris, applies);
        if (!names.empty()) {
            advice.push_back(std::string(before) + names + std::string(after));
        }
    };
    if (std::any_of(uris.begin(), uris.end(), [](const auto& uri) { return uri.has_password; })) {
        advice.emplace_back(
            "the configuration file holds a password, which a server that has not loaded "
            "outbox_drainer yet would write to its log at reload; better put it into "
            "outbox_drainer.password_file");
    }
    add(
        [&](const auto& uri) {
            return !uri.tls && !is_loopback(uri.host) && (uri.has_password || has_password_file);
        },
        "password and events are sent without encryption to ", ": better use amqps://");
    // With a file of authorities, require checks as much as verify-ca does.
    add(
        [](const auto& uri) {
            return uri.tls && uri.tls->mode == SslMode::require && trusts_the_public(*uri.tls);
        },
        "the certificate is not checked of ",
        ", so that anybody between could read the password and the events: better use "
        "sslmode=verify-full");
    add(
        [](const auto& uri) {
            return uri.tls && uri.tls->mode == SslMode::verify_ca && trusts_the_public(*uri.tls);
        },
        "any certificate of a public authority is accepted from ",
        ": name your own in sslrootcert, or use sslmode=verify-full");
    add(
        [](const auto& uri) {
            return uri.auth == AuthMechanism::plain && uri.user == "guest" &&
                   !is_loopback(uri.host);
        },
        "the user is guest for ",
        ", whom RabbitMQ by default lets in from its own machine only: name another user");
    return advice;
}

}  // namespace outbox
