#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace outbox {

/// A transaction that holds the sequence and may therefore still bring rows with numbers already
/// drawn. The two numbers are the shell's business (a virtual transaction id); core only compares
/// them.
struct Writer {
    std::int32_t backend = 0;
    std::uint32_t local_id = 0;

    auto operator<=>(const Writer&) const = default;
};

/// Sequence numbers from lo to hi, both included.
struct Interval {
    std::int64_t lo = 0;
    std::int64_t hi = 0;

    bool operator==(const Interval&) const = default;
};

/// What a pass found out about one row it could see.
struct SeenRow {
    enum class Fate : std::uint8_t {
        claimed,      ///< ours from now on
        elsewhere,    ///< terminal, or in the deferred lane: not this lane's matter any more
        passed_over,  ///< fresh, but locked or claimed by somebody else: a hole, to be tried again
    };
    std::int64_t seq = 0;
    Fate fate = Fate::elsewhere;
};

/// Where the fresh lane stands: a cursor at the visible edge, gaps of unseen numbers behind it, and
/// holes, rows seen but not taken.
///
/// Sequence numbers commit out of order. A number below the cursor that was not visible can still
/// appear, but only from a transaction that held the sequence's lock when the cursor passed. Each
/// range of gaps therefore lists those writers, and a pass follows these steps under ONE snapshot
/// S, in this order (settled by experiment: every variation lost rows or their order):
///
///   1. note_ended(before_snapshot) for each writer that has ended
///   2. take S
///   3. note_ended(after_snapshot) for each writer that has ended by now
///   4. claim, under S, what appeared in gaps_to_scan(); report by gaps_scanned()
///   5. (inside gaps_scanned) drop the writers of step 1 only, close what has no writer left
///   6. if may_advance(): claim, under S, rows above cursor() in order
///   7. list the writers that hold the sequence now; report by advanced()
///
/// A writer that ended between 1 and 3 may have ended after S: its rows need not be visible in S,
/// so it stays listed and its gaps are scanned again. A range is scanned once more after its birth,
/// since a writer that ended between S and step 7 is in neither.
///
/// The lane is a value: copy it before a pass and keep the copy if the transaction fails.
class FreshLane {
  public:
    enum class Moment : std::uint8_t { before_snapshot, after_snapshot };

    /// Starts above `floor`: every row at or below it is terminal or deferred.
    explicit FreshLane(std::int64_t floor = 0) noexcept : cursor_(floor) {}

    /// Every writer listed by a range, once.
    std::vector<Writer> writers() const;
    /// Starts a pass: forgets what earlier passes noted of ended writers.
    void begin_pass() noexcept;
    void note_ended(const Writer& writer, Moment moment);

    /// What must be looked at in this pass, ascending and disjoint: the gaps of ranges that are
    /// newborn or list an ended writer, all holes, and the rows of `also`, which lie behind the
    /// cursor.
    std::vector<Interval> gaps_to_scan(std::span<const std::int64_t> also = {}) const;
    /// Reports what was visible in those gaps, ascending. `complete`: nothing was left unread for a
    /// limit; if something was, no writer is dropped and no fresh row may be claimed in this pass,
    /// so that the next one goes on from the lowest gap.
    void gaps_scanned(std::span<const SeenRow> seen, bool complete);

    bool may_advance() const noexcept { return !incomplete_; }
    /// Reports the rows seen above the cursor, ascending and without leaving one out, and who held
    /// the sequence after that. The cursor moves to the last of them.
    void advanced(std::span<const SeenRow> seen, std::span<const Writer> writers_now);

    /// A row that was given back, or lost to somebody else: it is looked at again in the next pass.
    void add_hole(std::int64_t seq);

    std::int64_t cursor() const noexcept { return cursor_; }
    /// The lowest number that is not closed: a gap, a hole, or what lies above the cursor.
    std::int64_t lowest_open() const noexcept;
    /// Whether another pass should follow at once, without waiting for a wake.
    bool wants_pass() const noexcept;
    std::size_t hole_count() const noexcept { return holes_.size(); }
    /// Whether somebody else held the row when the last pass looked.
    bool was_passed_over(std::int64_t seq) const;

    std::size_t range_count() const noexcept { return ranges_.size(); }
    std::size_t gap_count() const noexcept;

  private:
    struct Range {
        std::vector<Interval> gaps;   ///< ascending, disjoint
        std::vector<Writer> writers;  ///< ascending
        bool newborn = true;
    };

    bool must_scan(const Range& range) const;
    void close_ranges();
    void merge_equal_ranges();
    void bound_ranges();
    void bound_gaps();

    std::int64_t cursor_ = 0;
    std::vector<Range> ranges_;
    std::map<std::int64_t, bool> holes_;  ///< and whether the last pass passed it over
    std::set<Writer> ended_before_;
    std::set<Writer> ended_by_now_;
    bool incomplete_ = false;
};

}  // namespace outbox
