#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/event.hpp"
#include "core/fresh_lane.hpp"
#include "postgres/arena.hpp"
#include "postgres/event_store.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

/// How soon a row that somebody else holds is looked at again.
inline constexpr Duration HOLE_RETRY{500};
/// How soon a row is tried again that could not be claimed.
inline constexpr Duration UNCLAIMABLE_RETRY{60000};
/// More rows than this are no matter of single rows.
inline constexpr std::size_t MOST_UNCLAIMABLE = 100;

/// One claim on its way: how much may be taken, what was read, what was taken.
struct Drainer::Claim {
    std::size_t room = 0;        ///< rows
    std::int64_t max_bytes = 0;  ///< of payload; a first row may be larger
    std::string token;
    FreshLane lane;  ///< becomes the drainer's when the transaction has committed
    postgres::Arena memory;

    std::vector<std::int64_t> wanted;
    std::int64_t bytes = 0;
    std::span<const postgres::WalkedRow> in_gaps;
    std::span<const postgres::WalkedRow> fresh;
    bool complete = true;  ///< the gaps were read to their end
    std::size_t holes_tried = 0;
    std::size_t taken_back = 0;   ///< rows taken back from dead drainers
    bool sequence_moved = false;  ///< the lane starts anew

    std::span<const Event> events;
    bool more = false;
    std::optional<Duration> next_due;

    template <class Takeable>
    std::size_t take(std::span<const postgres::WalkedRow> rows, Takeable takeable);
};

}  // namespace outbox::worker
