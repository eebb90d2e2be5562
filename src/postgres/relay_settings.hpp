#pragma once

#include "core/relay_settings.hpp"
#include "postgres/transaction.hpp"

namespace outbox::postgres {

/// The relay's own settings, by one statement in `transaction`, which must be open. nullopt: it
/// failed and the transaction is aborted. May throw std::bad_alloc.
std::optional<RelaySettings> read_relay(Transaction& transaction);

}  // namespace outbox::postgres
