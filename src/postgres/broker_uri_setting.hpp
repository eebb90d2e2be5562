#pragma once

namespace outbox::postgres {

/// Defines outbox_drainer.broker_uri. Its value as the server knows and shows it never has a
/// password in it; broker_uri_with_passwords() has.
void define_broker_uri();

/// The setting as it was given; "" where it is not set.
const char* broker_uri_with_passwords();

}  // namespace outbox::postgres
