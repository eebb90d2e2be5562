#include "core/claim_order.hpp"

#include <algorithm>

namespace outbox {

ClaimOrder::ClaimOrder(const Drain& hand, const Limits& limits)
    : hand_(hand),
      limits_(limits),
      whole_line_(hand.settings().ordering == Ordering::stop_the_line) {}

void ClaimOrder::close(std::uint64_t group, std::int64_t from) {
    const auto [entry, is_new] = closed_.try_emplace(group, from);
    if (!is_new) {
        entry->second = std::min(entry->second, from);
    }
}

void ClaimOrder::block(const Candidate& row) {
    if (!row.group.has_value()) {
        return;
    }
    close(*row.group, row.seq);
    const auto [entry, is_new] = blocked_.try_emplace(*row.group, row.seq);
    if (!is_new) {
        entry->second = std::min(entry->second, row.seq);
    }
}

// What is given back by this very transaction is no row that the walk can see as free: it comes
// before later ones all the same.
bool ClaimOrder::is_closed(const Candidate& row) const {
    if (hand_.is_held(*row.group, row.seq)) {
        return true;
    }
    const auto found = closed_.find(*row.group);
    return found != closed_.end() && row.seq > found->second;
}

bool ClaimOrder::is_crowded(const Candidate& row) const {
    const auto found = taken_.find(*row.group);
    const Taken taken = found == taken_.end() ? Taken{} : found->second;
    const std::size_t rows = hand_.carried(*row.group) + taken.rows;
    const std::size_t bytes =
        hand_.carried_bytes(*row.group) + taken.bytes + static_cast<std::size_t>(row.payload_bytes);
    return rows >= limits_.per_group.rows || (rows > 0 && bytes > limits_.per_group.bytes);
}

ClaimOrder::Verdict ClaimOrder::take(const Candidate& row) {
    if (is_full() || (!wanted_.empty() && bytes_ + row.payload_bytes > limits_.bytes)) {
        return Verdict::full;
    }
    bytes_ += row.payload_bytes;
    wanted_.push_back(row.seq);
    wanted_groups_[row.seq] = row.group;
    if (row.group.has_value()) {
        Taken& taken = taken_[*row.group];
        taken.rows++;
        taken.bytes += static_cast<std::size_t>(row.payload_bytes);
    }
    return Verdict::take;
}

void ClaimOrder::take_alone(const Candidate& row) {
    take(row);
    if (row.group.has_value()) {
        leaders_.insert(row.seq);
    }
    limits_.rows = 0;
}

ClaimOrder::Verdict ClaimOrder::defer(const Candidate& row, std::int64_t behind) {
    close(*row.group, row.seq);
    if (whole_line_) {
        return Verdict::stop;
    }
    if (has_changed_enough()) {
        return Verdict::full;
    }
    if (behind == 0) {
        followed_.insert(*row.group);
    }
    deferrals_.push_back({row.seq, behind});
    return Verdict::defer;
}

// Too many are left already: to the deferred lane with it, from which it comes when nothing of its
// group is in hand.
ClaimOrder::Verdict ClaimOrder::leave(const Candidate& row) {
    if (whole_line_ || left_.size() >= limits_.rows_to_leave) {
        return defer(row, 0);
    }
    const auto [entry, is_new] = left_from_.try_emplace(*row.group, row.seq);
    entry->second = std::min(entry->second, row.seq);
    left_.push_back({*row.group, row.seq});
    return Verdict::leave;
}

bool ClaimOrder::leaves(std::int64_t seq) const {
    const auto found =
        std::lower_bound(left_.begin(), left_.end(), seq,
                         [](const LeftRow& row, std::int64_t wanted) { return row.seq < wanted; });
    return found != left_.end() && found->seq == seq;
}

bool ClaimOrder::is_behind_left(const Candidate& row) const {
    const auto found = left_from_.find(*row.group);
    return found != left_from_.end() && row.seq > found->second;
}

ClaimOrder::Verdict ClaimOrder::judge_fresh(const Candidate& row) {
    if (!row.group.has_value()) {
        return take(row);
    }
    // Whatever else it waits for is looked at when its turn has come.
    if (is_behind_left(row)) {
        return leave(row);
    }
    if (row.holder != 0 && row.holder < row.seq) {
        return defer(row, row.holder);
    }
    if (is_closed(row)) {
        return defer(row, 0);
    }
    if (is_crowded(row)) {
        return leave(row);
    }
    // Those that hold the group from behind it were put there to wait for it, or for one like it.
    if (row.holder != 0) {
        leaders_.insert(row.seq);
    }
    return take(row);
}

ClaimOrder::Verdict ClaimOrder::judge_due(const Candidate& row) {
    if (!row.group.has_value()) {
        return take(row);
    }
    if (row.seq > walked_to_ && row.seq <= last_drawn_ && !whole_line_) {
        return Verdict::wait;
    }
    const bool free_to_go =
        row.holder == 0 || hand_.carries(row.holder) || wanted_groups_.contains(row.holder);
    if (!free_to_go) {
        return defer(row, row.holder);
    }
    if (is_closed(row) || is_behind_left(row) || is_crowded(row)) {
        return defer(row, 0);
    }
    leaders_.insert(row.seq);
    return take(row);
}

std::vector<std::int64_t> ClaimOrder::behind_locked(std::span<const std::int64_t> claimed) {
    std::vector<std::int64_t> behind;
    if (claimed.size() == wanted_.size()) {
        return behind;
    }
    for (std::int64_t seq : wanted_) {
        if (!std::binary_search(claimed.begin(), claimed.end(), seq)) {
            block({seq, wanted_groups_[seq], 0, 0});
        }
    }
    for (std::int64_t seq : claimed) {
        const std::optional<std::uint64_t> group = wanted_groups_[seq];
        const auto lock = group.has_value() ? blocked_.find(*group) : blocked_.end();
        if (lock != blocked_.end() && seq > lock->second) {
            behind.push_back(seq);
        }
    }
    return behind;
}

std::vector<std::uint64_t> ClaimOrder::followed() const {
    return {followed_.begin(), followed_.end()};
}

std::optional<std::uint64_t> ClaimOrder::group_of(std::int64_t seq) const {
    const auto found = wanted_groups_.find(seq);
    return found == wanted_groups_.end() ? std::nullopt : found->second;
}

}  // namespace outbox
