#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/fresh_lane.hpp"
#include "postgres/transaction.hpp"

namespace outbox::test {

/// How a pass over the fresh lane is made: as core/fresh_lane.hpp says, or wrong in one step.
enum class Variant : std::uint8_t {
    correct,
    fresh_before_gaps,           ///< claims above the cursor before it looks into the gaps
    check_before_snapshot_only,  ///< does not ask again after the snapshot who has ended
    table_lock,                  ///< takes who holds the table for who holds the sequence
    no_ranges,                   ///< forgets what lies behind the cursor
    drop_all_ended,              ///< drops writers that may have ended after the snapshot
    ended_means_lock_gone,       ///< asks the lock manager, not the process array, who has ended
    no_scan_of_newborn,          ///< does not scan a range once more after its birth
};

/// Longest pauses in microseconds, to widen the windows in which a wrong variant goes wrong.
struct Pauses {
    int before_snapshot = 0;  ///< between asking who has ended and the snapshot
    int after_snapshot = 0;   ///< between the snapshot and asking again
    int before_writers = 0;   ///< between the claim and asking who holds the sequence
};

/// What a run of a drainer amounted to.
struct RunCounts {
    std::int64_t passes = 0;
    std::int64_t in_gaps = 0;    ///< rows claimed behind it
    std::int64_t cut_short = 0;  ///< scans of gaps that met the limit
    std::int64_t most_ranges = 0;
};

/// Claims the rows of late_commits.event: the product's lane, writers, statements and transactions,
/// with the steps of worker/claim.cpp.
class StressDrainer {
  public:
    StressDrainer(Variant variant, const Pauses& pauses) : variant_(variant), pauses_(pauses) {}

    /// Drains until SIGTERM asks for the end and then until nothing comes any more. False when the
    /// server raised an error, which is in the log.
    bool run();

  private:
    /// What a walk saw, ascending; nullopt: the transaction has failed.
    using Walk = std::optional<std::vector<SeenRow>>;

    bool find_table();
    bool pass();
    bool steps(postgres::Transaction& transaction, FreshLane& lane);
    bool note_ended(postgres::Transaction& transaction, FreshLane& lane, FreshLane::Moment moment);
    bool is_running(const Writer& writer) const;
    Walk claim_gaps(postgres::Transaction& transaction, std::span<const Interval> gaps);
    Walk claim_fresh(postgres::Transaction& transaction, std::int64_t cursor);
    bool advance(postgres::Transaction& transaction, FreshLane& lane,
                 std::span<const SeenRow> fresh);
    bool record_run();
    bool is(Variant variant) const { return variant_ == variant; }

    Variant variant_;
    Pauses pauses_;
    FreshLane lane_;
    Oid table_ = InvalidOid;
    Oid sequence_ = InvalidOid;
    std::int64_t batch_ = 0;
    bool progress_ = false;
    RunCounts counts_;
};

}  // namespace outbox::test
