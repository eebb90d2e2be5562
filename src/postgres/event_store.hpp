#pragma once

#include <span>
#include <string>

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
    std::optional<std::uint64_t> group;  ///< see Event::group
    std::int64_t holder = 0;             ///< of a due row, see Candidate::holder
    std::int32_t attempts = 0;
    Uuid id{};
    std::uint64_t place = 0;  ///< see Event::place
};

/// What stop_the_line waits for.
struct HaltedRow {
    std::int64_t seq = 0;  ///< 0: nothing
    bool due = false;
    Duration due_in{};
};

/// A row looked at for its claim.
struct HeldRow {
    std::int64_t seq = 0;
    std::string_view claimed_by;  ///< empty: nobody
    bool expired = false;         ///< its lease is over
    bool fresh = false;           ///< neither ended nor deferred
    std::uint64_t bucket_hash = 0;
    std::int32_t attempts = 0;
    Uuid id{};
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
std::optional<std::span<const WalkedRow>> walk_fresh(Transaction& transaction, Ordering ordering,
                                                     std::int64_t cursor, std::int64_t last,
                                                     std::size_t limit);
/// Rows in the intervals, likewise.
std::optional<std::span<const WalkedRow>> walk_gaps(Transaction& transaction, Ordering ordering,
                                                    std::span<const Interval> gaps,
                                                    std::size_t limit);
/// For fresh rows, each one the first of its group: the lowest row of the deferred lane that holds
/// the group.
struct Holder {
    std::int64_t seq = 0;     ///< the row
    std::int64_t holder = 0;  ///< 0: none
};
std::optional<std::span<const Holder>> lowest_holders(Transaction& transaction, Ordering ordering,
                                                      std::span<const std::int64_t> seqs);
/// Deferred rows of the buckets whose time has come and that nobody holds or has locked, in the
/// order in which they came due; locks them.
std::optional<std::span<const WalkedRow>> walk_due(Transaction& transaction, Ordering ordering,
                                                   std::uint64_t buckets, std::size_t limit);
std::optional<HaltedRow> halted_row(Transaction& transaction);
/// How long until the next deferred row comes due; negative when there is none.
std::optional<Duration> next_due(Transaction& transaction);

/// A row and where it was last seen.
struct PlacedRow {
    std::int64_t seq = 0;
    std::uint64_t place = 0;  ///< see Event::place
};

/// Claims those of the rows that are still free and that nobody has locked, and copies them,
/// ascending, to `memory`, in which they outlive the transaction.
std::optional<std::span<Event>> claim_rows(Transaction& transaction, Oid table,
                                           std::span<const PlacedRow> rows, const char* token,
                                           MemoryContext memory);

// Marks, guarded by the claim token. They give the rows that were hit.
std::optional<std::span<const std::int64_t>> mark_published(Transaction& transaction, Oid table,
                                                            std::span<const PlacedRow> rows,
                                                            std::string_view token);
/// Puts off those that failed, charged, and those that are held, uncharged.
std::optional<std::span<const std::int64_t>> mark_failed(Transaction& transaction,
                                                         std::span<const FailedMark> marks,
                                                         const char* token);
/// Gives those that were rejected or have used their attempts their end.
std::optional<std::span<const std::int64_t>> mark_ended(Transaction& transaction,
                                                        std::span<const EndedMark> marks,
                                                        const char* token);
/// Puts rows in hand behind others of their group.
std::optional<std::span<const std::int64_t>> put_behind(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs,
                                                        const char* token);
std::optional<std::span<const std::int64_t>> release_rows(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs,
                                                          const char* token);
std::optional<std::span<const std::int64_t>> renew_rows(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs,
                                                        const char* token);

/// Locks those of the rows that nobody else has locked; gives them, ascending.
std::optional<std::span<const std::int64_t>> lock_rows(Transaction& transaction,
                                                       std::span<const std::int64_t> seqs);
/// Locks those rows of the deferred lane that are still there, so that they cannot come to their
/// end before this transaction has put others behind them. Gives the rows locked.
std::optional<std::span<const std::int64_t>> lock_holders(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs);
/// Puts free rows behind others of their group; gives those that nobody else has locked.
std::optional<std::span<const std::int64_t>> defer_rows(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs);
/// Makes due what waits in the deferred lane for the groups of these rows, as far as nothing else
/// holds them: at most FOLLOWERS_AT_ONCE of each. Gives how many.
std::optional<std::size_t> release_followers(Transaction& transaction, Ordering ordering,
                                             std::span<const std::int64_t> seqs);
/// A group of which rows are in the deferred lane.
struct WaitingGroup {
    std::int64_t seq = 0;  ///< of the lowest row there that holds the group
    std::uint64_t group = 0;
    bool headless = false;  ///< that row itself waits for another, in nobody's hand
};
/// Groups in the deferred lane, at most `limit`, in the order of the index, after the group of row
/// `after` (0, or a row that is there no more: from the first one).
std::optional<std::span<const WaitingGroup>> waiting_groups(Transaction& transaction,
                                                            Ordering ordering, std::int64_t after,
                                                            std::size_t limit);
/// Makes due whatever waits for others, at most `limit` rows: what has no group that could call it.
/// Gives how many.
std::optional<std::size_t> call_all_followers(Transaction& transaction, bool only_keyless,
                                              std::size_t limit);
/// Rows made due at once when their group is set free.
inline constexpr int FOLLOWERS_AT_ONCE = 64;

/// Rows looked at in one step of wake_held.
inline constexpr int LOOKED_AT_ONCE = 1000;
/// How far a step of wake_held came.
struct HeldStep {
    std::size_t woken = 0;                ///< rows that are due now
    std::optional<std::int64_t> reached;  ///< next_attempt_at to go on behind; nullopt: all is done
};
/// Makes due what is held with that last_error (empty: whatever it is held for), as far as the next
/// LOOKED_AT_ONCE rows of the deferred lane go that come due behind `after`, both times in
/// microseconds since the Unix epoch.
std::optional<HeldStep> wake_held(Transaction& transaction, const std::string& error,
                                  std::int64_t after);

/// Rows above `after` up to `last`, ascending, at most `limit`, whatever their state.
std::optional<std::span<const HeldRow>> inspect_rows(Transaction& transaction, Ordering ordering,
                                                     std::int64_t after, std::int64_t last,
                                                     std::size_t limit, Duration lease_ttl);
/// Deferred rows with a claim, at most `limit`.
std::optional<std::span<const HeldRow>> held_deferred_rows(Transaction& transaction,
                                                           Ordering ordering, std::size_t limit,
                                                           Duration lease_ttl);

/// The persisted floor of the relay; 0 when there is none.
std::optional<std::int64_t> read_floor(Transaction& transaction);
bool write_floor(Transaction& transaction, std::int64_t floor);

/// A fingerprint of what ALTER DATABASE/ROLE ... SET says for this worker, which it reads at start
/// only.
std::optional<std::int64_t> stored_settings_fingerprint(Transaction& transaction);

}  // namespace outbox::postgres
