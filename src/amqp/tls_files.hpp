#pragma once

#include <openssl/ssl.h>

#include <optional>
#include <string>

namespace outbox::amqp {

/// Why a file cannot be used, for a user; nullopt: it can.
using FileProblem = std::optional<std::string>;

/// Whom to trust: the certificates of a PEM file, or the system's when `path` is empty or "system".
FileProblem load_authorities(SSL_CTX* context, const std::string& path);

/// Who we are: a certificate, with what leads from it to an authority after it, and its private key
/// (empty: in the same file). As libpq does, refuses a key that others can read; one that is
/// encrypted too, since nobody is there to be asked for a passphrase.
FileProblem load_identity(SSL_CTX* context, const std::string& cert, const std::string& key);

}  // namespace outbox::amqp
