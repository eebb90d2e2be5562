#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/claim_order.hpp"
#include "core/event.hpp"
#include "core/fresh_lane.hpp"
#include "postgres/arena.hpp"
#include "postgres/event_store.hpp"
#include "worker/drainer.hpp"
#include "worker/marks.hpp"

namespace outbox::worker {

/// How soon a row that somebody else holds is looked at again.
inline constexpr Duration HOLE_RETRY{500};
/// How soon a row is tried again that could not be claimed.
inline constexpr Duration UNCLAIMABLE_RETRY{60000};
/// More rows than this are no matter of single rows.
inline constexpr std::size_t MOST_UNCLAIMABLE = 100;
/// Rows of one key in hand: what a hot key takes of a batch that others could have.
inline constexpr std::size_t MOST_OF_ONE_KEY = 64;
/// No key takes more of batch_bytes than this part, so that large rows of one leave room as well.
inline constexpr std::size_t LEAST_KEYS_IN_BATCH_BYTES = 4;

/// One claim on its way: how much may be taken, what was read, what was taken.
struct Drainer::Claim {
    Claim(const Drain& hand, const ClaimOrder::Limits& limits)
        : room(limits.rows), to_walk(limits.changes), order(hand, limits) {}

    /// The rows that are to be taken, and where they were seen.
    std::vector<postgres::PlacedRow> wanted() const;

    std::size_t room;     ///< rows that may be taken
    std::size_t to_walk;  ///< rows that may be looked at
    ClaimOrder order;
    std::string token;
    FreshLane lane;  ///< becomes the drainer's when the transaction has committed
    postgres::Arena memory;

    bool lane_read = false;  ///< the fresh lane was looked at
    std::span<const postgres::WalkedRow> due;
    std::span<const postgres::WalkedRow> in_gaps;
    std::span<const postgres::WalkedRow> fresh;
    LeftRows::Chosen left;                                    ///< rows left before, to look at
    bool complete = true;                                     ///< the gaps were read to their end
    std::int64_t shown_to = 0;                                ///< behind the cursor
    std::unordered_map<std::uint64_t, std::int64_t> holders;  ///< by group; 0: none
    std::span<const std::int64_t> locked;  ///< passed over before and locked by us now, ascending
    TakenBack taken_back;                  ///< from dead drainers
    bool sequence_moved = false;           ///< the lane starts anew

    std::span<Event> events;             ///< what is claimed, ascending
    std::vector<std::int64_t> deferred;  ///< what was put behind others, ascending
    std::optional<Duration> halted_for;  ///< stop_the_line waits that long
    std::int64_t halted_on = 0;          ///< for this row; 0: it does not wait
    bool more = false;
    std::optional<Duration> next_due;
    std::optional<std::int64_t> woken_to;  ///< see TransactionResult
};

}  // namespace outbox::worker
