#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/buckets.hpp"
#include "core/drain.hpp"

namespace outbox {

/// What of one group may be in hand at once, so that a hot key leaves room for others.
struct GroupLimits {
    std::size_t rows = std::numeric_limits<std::size_t>::max();
    std::size_t bytes = std::numeric_limits<std::size_t>::max();  ///< of payload; one row may have
                                                                  ///< more
};

/// A row that the cursor has gone past and that is still free in the fresh lane.
struct LeftRow {
    std::uint64_t group = 0;
    std::int64_t seq = 0;
};

/// The rows of crowded groups that the cursor has gone past. Nothing is written to them: they stay
/// in the table as they are and are taken a few at a time, as the rows of their group in hand come
/// to their ends. They are known here by number alone, and only in memory, so the floor stays below
/// them.
class LeftRows {
  public:
    /// How many may be left: that bounds memory (8 bytes each) and what a restart walks again.
    static constexpr std::size_t MOST = 262144;

    /// What one pass is to look at.
    struct Chosen {
        std::vector<std::int64_t> seqs;              ///< ascending
        std::map<std::uint64_t, std::int64_t> rest;  ///< by group: the lowest that is not chosen
        bool more = false;                           ///< others were left out for lack of room
    };
    /// Of each group of which half of what is allowed or less is in hand, as many as are missing;
    /// of all of them the lowest, at most `room`.
    Chosen choose(const Drain& hand, const GroupLimits& per_group, std::size_t room) const;

    /// What became of them: of those chosen, all up to `read_up_to` were shown to the pass; `left`
    /// is what it left, ascending, some of them perhaps again.
    void passed(const Chosen& chosen, std::int64_t read_up_to, std::span<const LeftRow> left);

    std::size_t room() const noexcept { return size_ < MOST ? MOST - size_ : 0; }
    std::size_t size() const noexcept { return size_; }
    std::optional<std::int64_t> lowest() const;
    bool contains(std::uint64_t group, std::int64_t seq) const;
    std::vector<std::uint64_t> groups() const;
    /// Forgets those of all other buckets, which are somebody else's business now.
    void keep(BucketMask buckets);
    void clear() noexcept;

  private:
    using Rows = std::deque<std::int64_t>;  ///< ascending

    void add(const LeftRow& row);

    std::map<std::uint64_t, Rows> groups_;  ///< none is empty
    std::size_t size_ = 0;
};

}  // namespace outbox
