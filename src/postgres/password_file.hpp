#pragma once

#include <string>
#include <variant>

namespace outbox::postgres {

/// Why a password file is not used, as in "is not a regular file"; does not name the file.
struct PasswordError {
    std::string reason;
};

/// Reads the first line of a password file. Refused: what is no regular file, what group or others
/// may access, a NUL or an empty line. Read anew at each connect, so a rotated password needs no
/// restart.
std::variant<std::string, PasswordError> read_password_file(const std::string& path);

}  // namespace outbox::postgres
