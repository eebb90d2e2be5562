#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "postgres/transaction.hpp"

namespace outbox::postgres {

// What a drainer writes to its relay, and calls for it. Each runs one statement in `transaction`,
// which must be open; false: it failed and the transaction is aborted.

/// Pauses the relay with this reason, if it is not paused.
bool pause_relay(Transaction& transaction, const char* reason);
/// Calls the relay's on_dead function for each of these events. An error in it is logged and
/// undone, and nothing else comes of it.
bool call_on_dead(Transaction& transaction, std::span<const std::int64_t> seqs);

struct Backlog {
    std::int64_t events = 0;
    /// The last one noted in outbox.relay_state was empty.
    bool noted_empty = false;
};
/// How many events are left to do, by outbox.backlog(), which works as the owner of the table by
/// itself and which that owner need not be allowed to call.
std::optional<Backlog> read_backlog(Transaction& transaction);
/// Notes it in outbox.relay_state.
bool write_backlog(Transaction& transaction, std::int64_t backlog);

}  // namespace outbox::postgres
