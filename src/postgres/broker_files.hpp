#pragma once

#include <string>
#include <vector>

#include "core/broker_uri.hpp"

namespace outbox::postgres {

/// Which files that these brokers need, for TLS, this process cannot use, and why.
std::vector<std::string> find_tls_file_problems(const std::vector<BrokerUri>& uris);

/// What is wrong with the password file for these brokers, as in "is not a regular file".
std::vector<std::string> find_password_file_problems(const std::string& path,
                                                     const std::vector<BrokerUri>& uris);

}  // namespace outbox::postgres
