#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/broker_uri.hpp"

namespace outbox {

/// Reads the query of a URI (what follows the ?, nullopt: there is none) into `uri`, whose scheme,
/// user and password are known already; `uri.tls` says that the scheme is amqps. Returns why it is
/// refused: the reason names the parameter, never what it was set to.
std::optional<std::string> read_query(std::optional<std::string_view> query, BrokerUri& uri);

}  // namespace outbox
