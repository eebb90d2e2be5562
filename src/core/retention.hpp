#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/time.hpp"

namespace outbox {

/// A row as retention sees it.
struct RetainedRow {
    std::int64_t seq = 0;
    bool counts = false;   ///< it ended in the way whose retention is looked at
    Duration left{0};      ///< if it counts: until its retention is over
    std::int64_t end = 0;  ///< if it counts: when it ended, on the database's clock
};

/// Which rows are removed after their retention, and where to look for them.
///
/// Published rows have no index by time: that would make each mark an index write. They were
/// published roughly in the order of seq, so a cursor walks ahead through the table, chunk by
/// chunk, up to the floor. What it meets that is over is removed. What will be over later (it was
/// published late, or somebody has it locked) stays behind in a *stretch*, the part of a chunk that
/// holds all such rows, with the time of the first of them; a stretch whose time has come is looked
/// at again. So rows that ended otherwise and are kept are passed once, and a late row holds up
/// nobody. A chunk in which nothing is over may be the edge or the begin of a hill of late rows:
/// some such chunks become stretches, then the cursor waits for them, unless peeks at growing
/// distances find rows that are over.
///
/// A row that was deferred when the cursor passed is noted when it is published. What is missed all
/// the same (published by another drainer, or by hand) is found by a slow round through what lies
/// behind.
///
/// Rows that ended otherwise have their index, and are removed in the order in which they ended.
///
/// The caller runs one small transaction for each turn: begin(), read, choose(), remove, and then
/// finish() or fail().
class Retention {
  public:
    /// Most rows that a turn reads.
    static constexpr std::size_t CHUNK = 1000;

    enum class Where : std::uint8_t {
        ahead,   ///< rows above the cursor
        peek,    ///< a few rows far above it, which are not removed now
        again,   ///< a stretch
        behind,  ///< the slow round
        dead,    ///< rows that ended without being published, by `dead_from`
    };

    struct Turn {
        Where where = Where::ahead;
        std::int64_t after = 0;              ///< read rows above this,
        std::int64_t last = 0;               ///< up to this, ascending,
        std::size_t limit = 0;               ///< so many at most
        std::int64_t dead_from = INT64_MIN;  ///< for `dead`: rows that ended then or later
    };

    /// `position`: what position() gave, perhaps in an earlier process.
    explicit Retention(std::int64_t position = 0) noexcept;

    /// How long published rows and rows that ended otherwise are kept; 0: for ever.
    void configure(Time now, Duration published, Duration dead);

    /// When begin() has something to say next; Time::max() when never.
    Time next_look() const noexcept { return next_look_; }
    /// Whether there is a turn to be done now, which there is not before next_look(). `floor`:
    /// every row up to it is visible, and has ended or is deferred.
    bool begin(Time now, std::int64_t floor);
    const Turn& turn() const noexcept { return turn_; }
    /// Rows that ended without being published and are not to be read now, because removing them
    /// failed.
    std::vector<std::int64_t> refused(Time now) const;
    /// Takes what was read for the turn; gives the rows to be removed.
    std::span<const std::int64_t> choose(Time now, std::span<const RetainedRow> rows);
    /// The turn is committed; `removed`: the chosen rows that nobody else had locked.
    void finish(Time now, Duration took, std::span<const std::int64_t> removed);
    /// The turn failed, nothing has changed. True when one row alone was to be removed, which is
    /// left alone for a while.
    bool fail(Time now);

    /// No row up to it waits for the end of its retention, unless it is still deferred.
    std::int64_t position() const;
    /// Rows were published just now, perhaps ones that the cursor has passed while they were
    /// deferred.
    void note_published(Time now, std::span<const std::int64_t> seqs);

    std::int64_t cursor() const noexcept { return cursor_; }
    std::size_t stretch_count() const noexcept { return stretches_.size(); }

  private:
    struct Stretch {
        std::int64_t hi = 0;
        Time due{};
    };
    struct Refusal {
        bool dead = false;  ///< it ended without being published
        Time retry_at{};
        Duration pause{};
    };
    /// The rows of the turn that stay, as one stretch.
    struct Later {
        bool any = false;
        std::int64_t lo = 0;
        std::int64_t hi = 0;
        Time due{};
        void add(std::int64_t seq, Time when);
    };

    bool prepare_turn(Time now);
    void plan();
    bool may_go_ahead() const;
    void take_peek(std::span<const RetainedRow> rows);
    bool is_in_stretch(std::int64_t seq) const;
    void keep_later(Time now);
    void keep_stretch(std::int64_t lo, std::int64_t hi, Time due);
    void join_neighbours();
    void leave_missed(Time now, std::span<const std::int64_t> removed);
    void finish_ahead(Time now, bool removed_some);
    void finish_again(Time now);
    void finish_behind(Time now, bool removed_some);
    void finish_dead(Time now, bool removed_some);
    void refuse(Time now, std::int64_t seq);
    bool was_full() const noexcept { return read_ == turn_.limit; }

    Duration published_{0};
    Duration dead_{0};

    std::int64_t cursor_;
    std::int64_t removed_up_to_;  ///< the highest row removed
    std::int64_t floor_ = 0;
    std::map<std::int64_t, Stretch> stretches_;  ///< by their first row; disjoint
    std::int64_t over_at_ = 0;                   ///< where a peek found rows that are over
    std::int64_t peek_distance_ = CHUNK;
    std::int64_t behind_ = 0;
    std::int64_t dead_from_ = INT64_MIN;
    std::map<std::int64_t, Refusal> refused_;

    Time ahead_at_{};
    Time peek_at_{};
    Time behind_at_{};
    Time dead_at_{};
    Time rest_until_{};
    Time next_look_ = Time::max();
    Turn next_;
    std::size_t limit_ = CHUNK;  ///< halved by each failure, so that the row at fault is found
    int failures_alone_ = 0;

    // The turn on its way.
    Turn turn_;
    std::vector<std::int64_t> chosen_;
    std::size_t read_ = 0;
    std::int64_t last_read_ = 0;
    std::int64_t last_end_ = 0;
    Later later_;
};

}  // namespace outbox
