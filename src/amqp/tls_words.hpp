#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "core/broker_uri.hpp"

namespace outbox::amqp {

/// What is known when a session fails, apart from OpenSSL's queue of errors.
struct TlsContext {
    const TlsOptions& options;
    const std::string& name;          ///< the host that was to be verified
    bool established = false;         ///< the handshake was done
    bool certificate_wanted = false;  ///< the server asked for a certificate and we have none
    int verify_error = X509_V_OK;
    X509* refused = nullptr;  ///< the certificate in which the verification found the error
};

/// Takes the errors of OpenSSL's queue and says what happened.
Failure explain_tls_failure(const TlsContext& context);

/// Text that a peer has sent as it can be shown: short, printable, without quotes.
std::string quotable(std::string_view text, std::size_t limit = 100);

}  // namespace outbox::amqp
