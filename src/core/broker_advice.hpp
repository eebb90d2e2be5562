#pragma once

#include <string>
#include <vector>

#include "core/broker_uri.hpp"

namespace outbox {

/// What works with these brokers and is yet not as it should be, in words for a user.
std::vector<std::string> broker_advice(const std::vector<BrokerUri>& uris, bool has_password_file);

}  // namespace outbox
