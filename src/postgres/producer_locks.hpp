#pragma once

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// Whether a relay that reads the table has serialize_producers. Reads outbox.relay as it is
/// committed, whatever the rights and the snapshot of the caller.
bool producers_are_serialized(Oid table);

/// Waits for the other transactions that have written events of this source and key to the table,
/// and makes later ones wait for the end of this one. Raises an error when the transaction has
/// locked as many keys as it may.
///
/// The lock is an advisory one with a 64-bit hash of table, source and key; in pg_locks it has the
/// objsubid 5672, so it meets no lock that pg_advisory_lock takes.
void lock_group(Oid table, std::string_view source, std::string_view key);

}  // namespace outbox::postgres
