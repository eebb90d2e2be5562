#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "core/broker_uri.hpp"

namespace outbox {

/// Why a password file gives no password, as in "has no line for ..."; never repeats any of it.
struct NoPassword {
    std::string reason;
};

/// Finds the password for a broker in the text of a password file, which is one of two:
///   - one line, the password as it is: no other line has anything in it, and it contains fewer
///     than four colons;
///   - lines like those of .pgpass, host:port:vhost:user:password, of which the first that fits
///     counts. A field may be * for any; \: and \\ stand for a colon and a backslash; a line that
///     begins with # is a comment. Fields are compared decoded: the vhost "/" is written /.
/// Where no line fits, the password that the URI itself carries is taken, if it does.
std::variant<std::string, NoPassword> find_password(std::string_view text, const BrokerUri& uri);

}  // namespace outbox
