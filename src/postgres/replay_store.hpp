#pragma once

#include <optional>

#include "core/replay_lane.hpp"
#include "postgres/transaction.hpp"

namespace outbox::postgres {

/// What a chunk of a replay may hold. The first event may be larger.
struct ReplayLimits {
    std::size_t events = 500;
    std::size_t looked_at = 2000;  ///< rows of the table, whether they are sent or not
    std::int64_t bytes = 0;        ///< of payload
};

/// What was read of a replay's events.
struct ReplayChunk {
    std::span<const Event> events;  ///< ascending, in the memory that was given
    std::int64_t looked_to = 0;     ///< every row up to here was looked at
};

// Each function runs its statements in `transaction`, which must be open. A nullopt says that it
// failed and that the transaction is aborted; the error is in the transaction.

/// Saves how far a job is. False: nothing was saved, because somebody has the job locked or it is
/// gone. A job that was stopped meanwhile keeps its state.
std::optional<bool> save_progress(Transaction& transaction, const ReplayPlan& plan);
/// The relay's first running job; one without an id when there is none.
std::optional<ReplayJob> read_active_job(Transaction& transaction);
/// The next published events of the job above `after` up to `last`, copied to `memory`. Ends before
/// an event that a drainer took in hand before the job began and still holds: the broker may have
/// routed it before the new subscriber was there.
std::optional<ReplayChunk> read_chunk(Transaction& transaction, std::int64_t job,
                                      std::int64_t after, std::int64_t last,
                                      const ReplayLimits& limits, MemoryContext memory);

/// All of the plan, in its order. The events live in `memory`.
std::optional<ReplayResult> run_replay(Transaction& transaction, const ReplayPlan& plan,
                                       const ReplayLimits& limits, MemoryContext memory);

}  // namespace outbox::postgres
