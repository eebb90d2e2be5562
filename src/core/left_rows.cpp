#include "core/left_rows.hpp"

#include <algorithm>

namespace outbox {

namespace {

// How many rows of a group a pass may look at.
std::size_t missing(const Drain& hand, std::uint64_t group, const GroupLimits& limits) {
    const std::size_t carried = hand.carried(group);
    const bool wanted = carried < wanted_in_hand(limits.rows) && carried < limits.rows &&
                        hand.carried_bytes(group) <= limits.bytes / 2;
    return wanted ? limits.rows - carried : 0;
}

}  // namespace

LeftRows::Chosen LeftRows::choose(const Drain& hand, const GroupLimits& per_group,
                                  std::size_t room) const {
    Chosen chosen;
    std::vector<Rows::const_iterator> ends;
    ends.reserve(groups_.size());
    for (const auto& [group, rows] : groups_) {
        const std::size_t count = std::min(missing(hand, group, per_group), rows.size());
        ends.push_back(rows.begin() + static_cast<std::ptrdiff_t>(count));
        chosen.seqs.insert(chosen.seqs.end(), rows.begin(), ends.back());
    }
    std::sort(chosen.seqs.begin(), chosen.seqs.end());
    if (chosen.seqs.size() > room) {
        chosen.seqs.resize(room);
        chosen.more = true;
    }
    auto end = ends.begin();
    for (const auto& [group, rows] : groups_) {
        const auto rest =
            chosen.more
                ? std::upper_bound(rows.begin(), *end, chosen.seqs.empty() ? 0 : chosen.seqs.back())
                : *end;
        if (rest != rows.end()) {
            chosen.rest[group] = *rest;
        }
        ++end;
    }
    return chosen;
}

void LeftRows::passed(const Chosen& chosen, std::int64_t read_up_to,
                      std::span<const LeftRow> left) {
    const auto was_shown = [&](std::int64_t seq) {
        return seq <= read_up_to && std::binary_search(chosen.seqs.begin(), chosen.seqs.end(), seq);
    };
    for (auto entry = groups_.begin(); !chosen.seqs.empty() && entry != groups_.end();) {
        Rows& rows = entry->second;
        // The chosen ones of a group are its lowest.
        while (!rows.empty() && was_shown(rows.front())) {
            rows.pop_front();
            size_--;
        }
        entry = rows.empty() ? groups_.erase(entry) : std::next(entry);
    }
    for (const LeftRow& row : left) {
        add(row);
    }
}

void LeftRows::add(const LeftRow& row) {
    Rows& rows = groups_[row.group];
    if (rows.empty() || rows.back() < row.seq) {
        rows.push_back(row.seq);
        size_++;
        return;
    }
    // It became visible late, or was shown and left again.
    const auto place = std::lower_bound(rows.begin(), rows.end(), row.seq);
    if (*place != row.seq) {
        rows.insert(place, row.seq);
        size_++;
    }
}

std::optional<std::int64_t> LeftRows::lowest() const {
    std::optional<std::int64_t> lowest;
    for (const auto& [group, rows] : groups_) {
        lowest = std::min(lowest.value_or(rows.front()), rows.front());
    }
    return lowest;
}

bool LeftRows::contains(std::uint64_t group, std::int64_t seq) const {
    const auto found = groups_.find(group);
    return found != groups_.end() &&
           std::binary_search(found->second.begin(), found->second.end(), seq);
}

std::vector<std::uint64_t> LeftRows::groups() const {
    std::vector<std::uint64_t> groups;
    groups.reserve(groups_.size());
    for (const auto& [group, rows] : groups_) {
        groups.push_back(group);
    }
    return groups;
}

void LeftRows::keep(BucketMask buckets) {
    for (auto entry = groups_.begin(); entry != groups_.end();) {
        if ((buckets & mask_of(bucket_of(entry->first))) != 0) {
            ++entry;
            continue;
        }
        size_ -= entry->second.size();
        entry = groups_.erase(entry);
    }
}

void LeftRows::clear() noexcept {
    groups_.clear();
    size_ = 0;
}

}  // namespace outbox
