#pragma once

#include <string>
#include <variant>

#include "core/broker_uri.hpp"

namespace outbox::postgres {

/// Why a password file is not used, as in "is not a regular file"; does not name the file.
struct PasswordError {
    std::string reason;
};

/// Reads the password for a broker (see find_password). Refused: what is no regular file, and what
/// group or others may access. Read anew at each connect, so a rotated password needs no restart.
std::variant<std::string, PasswordError> read_password_file(const std::string& path,
                                                            const BrokerUri& uri);

}  // namespace outbox::postgres
