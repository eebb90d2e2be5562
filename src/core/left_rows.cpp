#include "core/left_rows.hpp"

#include <algorithm>

namespace outbox {

LeftRows::Chosen LeftRows::choose(const Drain& hand, std::size_t rows_per_group) const {
    Chosen chosen;
    for (const auto& [group, rows] : groups_) {
        const std::size_t carried = hand.carried(group);
        std::size_t count = 0;
        if (carried < wanted_in_hand(rows_per_group) && carried < rows_per_group) {
            count = std::min(rows_per_group - carried, rows.size());
        }
        const auto end = rows.begin() + static_cast<std::ptrdiff_t>(count);
        chosen.seqs.insert(chosen.seqs.end(), rows.begin(), end);
        if (end != rows.end()) {
            chosen.rest[group] = *end;
        }
    }
    std::sort(chosen.seqs.begin(), chosen.seqs.end());
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

void LeftRows::clear() noexcept {
    groups_.clear();
    size_ = 0;
}

}  // namespace outbox
