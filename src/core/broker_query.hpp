#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/broker_uri.hpp"

namespace outbox {

/// Reads the query of an AMQP URI, what follows its "?", into `uri`, whose other parts are read
/// already. Gives why it cannot be used; reasons name parameters, never their values.
std::optional<std::string> read_broker_query(std::string_view query, BrokerUri& uri);

}  // namespace outbox
