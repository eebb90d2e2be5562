#pragma once

#include <cstring>
#include <string>

#include "core/broker_uri.hpp"

namespace outbox::amqp {

/// Overwrites a secret before its memory goes back to where anybody may get it.
inline void wipe(std::string& secret) {
    ::explicit_bzero(secret.data(), secret.size());
    secret.clear();
}

/// A copy of a URI that does not leave its password behind.
class SecretUri {
  public:
    SecretUri() = default;
    ~SecretUri() { forget(); }
    SecretUri(const SecretUri&) = delete;
    SecretUri& operator=(const SecretUri&) = delete;

    void set(const BrokerUri& uri) {
        forget();
        uri_ = uri;
    }
    void forget() { wipe(uri_.password); }
    const BrokerUri& get() const { return uri_; }

  private:
    BrokerUri uri_;
};

}  // namespace outbox::amqp
