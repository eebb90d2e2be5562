#pragma once

#include <span>

#include "core/drain.hpp"
#include "core/event.hpp"
#include "core/fresh_lane.hpp"
#include "postgres/transaction.hpp"

namespace outbox::postgres {

/// What the catalogs say about the outbox table now.
struct TableInfo {
    Oid event = InvalidOid;
    Oid sequence = InvalidOid;
    Oid owner = InvalidOid;
    Oid sequence_file = InvalidOid;  ///< changes when the sequence is restarted or replaced
    bool logged = true;              ///< false for UNLOGGED, whose rows a crash takes
    bool sequence_cached = false;    ///< CACHE > 1 hands out numbers long before they are used
};

/// A row met by a walk over the table.
struct WalkedRow {
    std::int64_t seq = 0;
    bool fresh = false;           ///< neither ended nor deferred
    std::string_view claimed_by;  ///< empty: free
    std::int64_t payload_bytes = 0;
};

/// A row looked at for its claim.
struct HeldRow {
    std::int64_t seq = 0;
    std::string_view claimed_by;  ///< empty: nobody
    bool expired = false;         ///< its lease is over
    bool fresh = false;           ///< neither ended nor deferred
};

// Each function below runs one statement in `transaction`, which must be open. A nullopt or false
// says that it failed and that the transaction is aborted; the error is in the transaction. Spans
// and views live in the transaction's memory and are gone after its end, unless said otherwise.

std::optional<TableInfo> table_info(Transaction& transaction);
/// Whether the extension exists in this database.
std::optional<bool> extension_exists(Transaction& transaction);
/// The last number drawn; 0 when none was.
std::optional<std::int64_t> last_drawn(Transaction& transaction, Oid sequence);

/// Rows above `cursor` up to `last`, ascending, whatever their state, under the transaction's
/// snapshot.
std::optional<std::span<const WalkedRow>> walk_fresh(Transaction& transaction, std::int64_t cursor,
                                                     std::int64_t last, std::size_t limit);
/// Rows in the intervals, likewise.
std::optional<std::span<const WalkedRow>> walk_gaps(Transaction& transaction,
                                                    std::span<const Interval> gaps,
                                                    std::size_t limit);
/// Deferred rows whose time has come and that nobody holds or has locked, in the order in which
/// they came due; locks them.
std::optional<std::span<const WalkedRow>> walk_due(Transaction& transaction, std::size_t limit);
/// How long until the next deferred row comes due; negative when there is none.
std::optional<Duration> next_due(Transaction& transaction);

/// Claims those of the rows that are still free and that nobody has locked, and copies them,
/// ascending, to `memory`, in which they outlive the transaction.
std::optional<std::span<const Event>> claim_rows(Transaction& transaction,
                                                 std::span<const std::int64_t> seqs,
                                                 const char* token, MemoryContext memory);

// Marks, guarded by the claim token. They give the rows that were hit.
std::optional<std::span<const std::int64_t>> mark_published(Transaction& transaction,
                                                            std::span<const std::int64_t> seqs,
                                                            const char* token);
std::optional<std::span<const std::int64_t>> mark_failed(Transaction& transaction,
                                                         std::span<const FailedMark> marks,
                                                         const char* token);
std::optional<std::span<const std::int64_t>> release_rows(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs,
                                                          const char* token);
std::optional<std::span<const std::int64_t>> renew_rows(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs,
                                                        const char* token);

/// Rows above `after` up to `last`, ascending, at most `limit`, whatever their state.
std::optional<std::span<const HeldRow>> inspect_rows(Transaction& transaction, std::int64_t after,
                                                     std::int64_t last, std::size_t limit,
                                                     Duration lease_ttl);
/// Deferred rows with a claim, at most `limit`.
std::optional<std::span<const HeldRow>> held_deferred_rows(Transaction& transaction,
                                                           std::size_t limit, Duration lease_ttl);

/// The persisted floor of the relay; 0 when there is none.
std::optional<std::int64_t> read_floor(Transaction& transaction);
bool write_floor(Transaction& transaction, std::int64_t floor);

/// A fingerprint of what ALTER DATABASE/ROLE ... SET says for this worker, which it reads at start
/// only.
std::optional<std::int64_t> stored_settings_fingerprint(Transaction& transaction);

}  // namespace outbox::postgres
