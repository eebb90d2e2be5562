#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "core/broker_uri.hpp"

namespace outbox {

/// Why a password file has no password for a broker, as in "has no line for ..."; quotes nothing of
/// the file.
struct NoPassword {
    std::string reason;
};

/// The password for a broker in the text of a password file. The file holds either the password
/// alone, in its only line, or lines as in libpq's .pgpass,
///
///     host:port:vhost:user:password
///
/// where a field may be * for any, a : or \ in a field has a \ before it, lines that begin with #
/// are comments, and the first line that fits is taken. A single line counts as a password when it
/// has fewer than four unescaped colons.
std::variant<std::string, NoPassword> find_password(std::string_view text, const BrokerUri& uri);

}  // namespace outbox
