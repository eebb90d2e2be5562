#include "core/fresh_lane.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace outbox {

namespace {

// Bounds on memory and on the work of a pass. Joining ranges or gaps beyond them is harmless: rows
// already claimed are walked again and found to be elsewhere.
constexpr std::size_t MAX_RANGES = 64;
constexpr std::size_t MAX_GAPS_PER_RANGE = 2048;

bool starts_lower(const Interval& a, const Interval& b) {
    return a.lo < b.lo;
}

// The gaps without the numbers in `seen`, both ascending.
std::vector<Interval> without(const std::vector<Interval>& gaps, std::span<const SeenRow> seen) {
    std::vector<Interval> rest;
    auto row = seen.begin();
    for (Interval gap : gaps) {
        row = std::lower_bound(row, seen.end(), gap.lo,
                               [](const SeenRow& r, std::int64_t lo) { return r.seq < lo; });
        for (; row != seen.end() && row->seq <= gap.hi; ++row) {
            if (row->seq > gap.lo) {
                rest.push_back({gap.lo, row->seq - 1});
            }
            gap.lo = row->seq + 1;
        }
        if (gap.lo <= gap.hi) {
            rest.push_back(gap);
        }
    }
    return rest;
}

std::vector<Interval> merged(std::vector<Interval> intervals) {
    std::sort(intervals.begin(), intervals.end(), starts_lower);
    std::vector<Interval> result;
    for (const Interval& next : intervals) {
        if (!result.empty() && next.lo <= result.back().hi + 1) {
            result.back().hi = std::max(result.back().hi, next.hi);
        } else {
            result.push_back(next);
        }
    }
    return result;
}

}  // namespace

std::vector<Writer> FreshLane::writers() const {
    std::set<Writer> all;
    for (const Range& range : ranges_) {
        all.insert(range.writers.begin(), range.writers.end());
    }
    return {all.begin(), all.end()};
}

void FreshLane::begin_pass() noexcept {
    ended_before_.clear();
    ended_by_now_.clear();
    incomplete_ = false;
}

void FreshLane::note_ended(const Writer& writer, Moment moment) {
    if (moment == Moment::before_snapshot) {
        ended_before_.insert(writer);
    }
    ended_by_now_.insert(writer);
}

bool FreshLane::must_scan(const Range& range) const {
    return range.newborn ||
           std::any_of(range.writers.begin(), range.writers.end(),
                       [this](const Writer& writer) { return ended_by_now_.contains(writer); });
}

std::vector<Interval> FreshLane::gaps_to_scan(std::span<const std::int64_t> also) const {
    std::vector<Interval> all;
    for (const Range& range : ranges_) {
        if (must_scan(range)) {
            all.insert(all.end(), range.gaps.begin(), range.gaps.end());
        }
    }
    for (const auto& [seq, passed_over] : holes_) {
        all.push_back({seq, seq});
    }
    for (std::int64_t seq : also) {
        all.push_back({seq, seq});
    }
    return merged(std::move(all));
}

void FreshLane::gaps_scanned(std::span<const SeenRow> seen, bool complete) {
    incomplete_ = !complete;
    const std::int64_t read_up_to = complete       ? std::numeric_limits<std::int64_t>::max()
                                    : seen.empty() ? std::numeric_limits<std::int64_t>::min()
                                                   : seen.back().seq;
    for (Range& range : ranges_) {
        if (!must_scan(range)) {
            continue;
        }
        range.gaps = without(range.gaps, seen);
        if (complete) {
            range.newborn = false;
            std::erase_if(range.writers,
                          [this](const Writer& writer) { return ended_before_.contains(writer); });
        }
    }
    // A hole is a row that was visible once: if it was read and not seen, somebody deleted it.
    holes_.erase(holes_.begin(), holes_.upper_bound(read_up_to));
    for (const SeenRow& row : seen) {
        if (row.fate == SeenRow::Fate::passed_over) {
            holes_[row.seq] = true;
        }
    }
    close_ranges();
}

void FreshLane::advanced(std::span<const SeenRow> seen, std::span<const Writer> writers_now) {
    if (seen.empty()) {
        return;
    }
    Range born;
    born.gaps = without({{cursor_ + 1, seen.back().seq}}, seen);
    for (const SeenRow& row : seen) {
        if (row.fate == SeenRow::Fate::passed_over) {
            holes_[row.seq] = true;
        }
    }
    cursor_ = seen.back().seq;
    if (born.gaps.empty()) {
        return;
    }
    born.writers.assign(writers_now.begin(), writers_now.end());
    std::sort(born.writers.begin(), born.writers.end());
    ranges_.push_back(std::move(born));
    merge_equal_ranges();
    bound_ranges();
    bound_gaps();
}

void FreshLane::add_hole(std::int64_t seq) {
    if (seq <= cursor_) {
        holes_[seq] = false;
    }
}

bool FreshLane::was_passed_over(std::int64_t seq) const {
    const auto hole = holes_.find(seq);
    return hole != holes_.end() && hole->second;
}

std::int64_t FreshLane::lowest_open() const noexcept {
    std::int64_t lowest = cursor_ + 1;
    for (const Range& range : ranges_) {
        if (!range.gaps.empty()) {
            lowest = std::min(lowest, range.gaps.front().lo);
        }
    }
    if (!holes_.empty()) {
        lowest = std::min(lowest, holes_.begin()->first);
    }
    return lowest;
}

bool FreshLane::wants_pass() const noexcept {
    return incomplete_ || std::any_of(ranges_.begin(), ranges_.end(),
                                      [this](const Range& range) { return must_scan(range); });
}

std::size_t FreshLane::gap_count() const noexcept {
    std::size_t count = 0;
    for (const Range& range : ranges_) {
        count += range.gaps.size();
    }
    return count;
}

void FreshLane::close_ranges() {
    std::erase_if(ranges_, [](const Range& range) {
        return range.gaps.empty() || (range.writers.empty() && !range.newborn);
    });
    merge_equal_ranges();
}

// Ranges that wait for the same writers are one range, wherever their gaps lie.
void FreshLane::merge_equal_ranges() {
    for (std::size_t i = 0; i < ranges_.size(); i++) {
        for (std::size_t j = ranges_.size() - 1; j > i; j--) {
            if (ranges_[i].newborn || ranges_[j].newborn ||
                ranges_[i].writers != ranges_[j].writers) {
                continue;
            }
            std::vector<Interval> gaps = std::move(ranges_[i].gaps);
            gaps.insert(gaps.end(), ranges_[j].gaps.begin(), ranges_[j].gaps.end());
            ranges_[i].gaps = merged(std::move(gaps));
            ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(j));
        }
    }
}

// Too many ranges: the two oldest wait for the writers of both.
void FreshLane::bound_ranges() {
    while (ranges_.size() > MAX_RANGES) {
        Range& first = ranges_[0];
        Range& second = ranges_[1];
        std::vector<Writer> writers;
        std::set_union(first.writers.begin(), first.writers.end(), second.writers.begin(),
                       second.writers.end(), std::back_inserter(writers));
        first.writers = std::move(writers);
        first.gaps.insert(first.gaps.end(), second.gaps.begin(), second.gaps.end());
        first.gaps = merged(std::move(first.gaps));
        first.newborn = first.newborn || second.newborn;
        ranges_.erase(ranges_.begin() + 1);
    }
}

// Too many gaps in a range: join those that lie nearest to each other.
void FreshLane::bound_gaps() {
    for (Range& range : ranges_) {
        if (range.gaps.size() <= MAX_GAPS_PER_RANGE) {
            continue;
        }
        std::vector<std::int64_t> distances;
        for (std::size_t i = 1; i < range.gaps.size(); i++) {
            distances.push_back(range.gaps[i].lo - range.gaps[i - 1].hi);
        }
        const std::size_t surplus = range.gaps.size() - MAX_GAPS_PER_RANGE / 2;
        std::nth_element(distances.begin(),
                         distances.begin() + static_cast<std::ptrdiff_t>(surplus - 1),
                         distances.end());
        const std::int64_t join_within = distances[surplus - 1];
        std::vector<Interval> joined;
        for (const Interval& gap : range.gaps) {
            if (!joined.empty() && gap.lo - joined.back().hi <= join_within) {
                joined.back().hi = gap.hi;
            } else {
                joined.push_back(gap);
            }
        }
        range.gaps = std::move(joined);
    }
}

}  // namespace outbox
