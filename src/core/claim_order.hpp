#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/drain.hpp"
#include "core/left_rows.hpp"

namespace outbox {

/// A row that a pass has met and may claim.
struct Candidate {
    std::int64_t seq = 0;
    std::optional<std::uint64_t> group;
    /// A row of its group in the deferred lane that holds the group, 0 for none: for a fresh row
    /// the lowest one, for a deferred row the highest one below it.
    std::int64_t holder = 0;
    std::int64_t payload_bytes = 0;
};

/// Decides, row by row, what one claim takes and what it puts behind others of its group.
///
/// The rule: a row may be taken when each earlier row of its group that is seen has had its end, is
/// carried by this drainer, or is taken by the same claim; the machine then sends them one after
/// the other. All others go to the deferred lane ('infinity'), from which the end of the group's
/// last row in hand calls them: so the fresh lane walks each row once, however many wait. Only what
/// is fresh and waits for no more than room is left where it is (core/left_rows.hpp), as long as
/// there are not too many of it.
///
/// Rows must be shown in this order: first block() for what was seen behind the cursor and cannot
/// be taken, then what is free there, ascending; what of it found no room is to be blocked as well.
/// Then the deferred lane in the order of its walk, then fresh rows, ascending.
class ClaimOrder {
  public:
    struct Limits {
        std::size_t rows = 0;           ///< to take
        std::size_t changes = 0;        ///< to take or to defer
        std::int64_t bytes = 0;         ///< of payload; a first row may be larger
        GroupLimits per_group;          ///< in hand
        std::size_t rows_to_leave = 0;  ///< most fresh rows of crowded groups left where they are
    };
    enum class Verdict : std::uint8_t {
        take,
        defer,  ///< to be put behind others of its group
        leave,  ///< fresh, and left where it is until less of its group is in hand
        full,   ///< no room: the claim is complete without it
        stop,   ///< the whole line waits for a row before it
        wait,   ///< left where it is until the walk has come there
    };

    ClaimOrder(const Drain& hand, const Limits& limits);

    /// From now on at most so many rows are taken, those taken before included.
    void limit_rows(std::size_t rows) noexcept { limits_.rows = rows; }

    /// Behind the cursor all has been seen up to this row; the default is that all has been seen.
    /// Deferred rows of groups beyond it, up to `last`, wait: after a restart, or in buckets that
    /// another drainer had, earlier rows of their group may be fresh again and not have been shown
    /// yet. Beyond `last`, the last number drawn, the cursor never comes.
    void set_walked_to(std::int64_t seq,
                       std::int64_t last = std::numeric_limits<std::int64_t>::max()) noexcept {
        walked_to_ = seq;
        last_drawn_ = last;
    }

    /// By group, the lowest row behind the cursor that was left there and is not shown in this
    /// pass: from it on the group waits.
    void set_left(std::map<std::uint64_t, std::int64_t> rest) { left_from_ = std::move(rest); }

    /// The row is visible and cannot be taken now (locked, in somebody else's hand, refused by a
    /// trigger): later ones of its group wait for it.
    void block(const Candidate& row);
    Verdict judge_fresh(const Candidate& row);
    Verdict judge_due(const Candidate& row);

    /// Takes a row whatever it waits for, and nothing after it.
    void take_alone(const Candidate& row);

    /// Rows to claim, in the order in which they were shown.
    const std::vector<std::int64_t>& wanted() const noexcept { return wanted_; }
    bool is_full() const noexcept { return wanted_.size() >= limits_.rows || has_changed_enough(); }
    /// Whether it changes nothing so far.
    bool is_empty() const noexcept { return wanted_.empty() && deferrals_.empty(); }

    /// A row to be deferred, and the row of the deferred lane that it waits for; 0: for one in hand
    /// or blocked, which needs no lock.
    struct Deferral {
        std::int64_t seq = 0;
        std::int64_t behind = 0;
    };
    const std::vector<Deferral>& deferrals() const noexcept { return deferrals_; }

    /// What is left where it is, ascending.
    const std::vector<LeftRow>& left() const noexcept { return left_; }
    bool leaves(std::int64_t seq) const;

    /// After the claim: `claimed`, ascending, is what it really got. What it wanted and did not get
    /// was locked; gives the rows that it got although an earlier one of their group was locked.
    /// They are to be given up again in the same transaction.
    std::vector<std::int64_t> behind_locked(std::span<const std::int64_t> claimed);

    /// Groups in hand behind which rows were deferred.
    std::vector<std::uint64_t> followed() const;
    /// Whether others of its group may wait behind the row in the deferred lane.
    bool leads(std::int64_t seq) const { return leaders_.contains(seq); }
    std::optional<std::uint64_t> group_of(std::int64_t seq) const;
    /// Groups that wait for a row which is visible and could not be taken.
    const std::map<std::uint64_t, std::int64_t>& blocked() const noexcept { return blocked_; }

  private:
    Verdict take(const Candidate& row);
    Verdict defer(const Candidate& row, std::int64_t behind);
    Verdict leave(const Candidate& row);
    bool is_behind_left(const Candidate& row) const;
    bool is_closed(const Candidate& row) const;
    bool is_crowded(const Candidate& row) const;
    bool has_changed_enough() const noexcept {
        return wanted_.size() + deferrals_.size() >= limits_.changes;
    }
    void close(std::uint64_t group, std::int64_t from);

    const Drain& hand_;
    Limits limits_;
    bool whole_line_;  ///< stop_the_line: nothing is deferred, the claim ends instead
    std::int64_t bytes_ = 0;
    std::int64_t walked_to_ = std::numeric_limits<std::int64_t>::max();
    std::int64_t last_drawn_ = std::numeric_limits<std::int64_t>::max();
    std::vector<std::int64_t> wanted_;
    std::unordered_map<std::int64_t, std::optional<std::uint64_t>> wanted_groups_;
    struct Taken {
        std::size_t rows = 0;
        std::size_t bytes = 0;
    };
    std::unordered_map<std::uint64_t, Taken> taken_;          ///< by group
    std::unordered_map<std::uint64_t, std::int64_t> closed_;  ///< from which seq on
    std::map<std::uint64_t, std::int64_t> blocked_;
    std::set<std::uint64_t> followed_;
    std::set<std::int64_t> leaders_;
    std::vector<Deferral> deferrals_;
    std::map<std::uint64_t, std::int64_t> left_from_;
    std::vector<LeftRow> left_;
};

}  // namespace outbox
