#include "core/group_queues.hpp"

#include <algorithm>

namespace outbox {

const GroupQueues::Group* GroupQueues::find(std::uint64_t group) const {
    const auto found = groups_.find(group);
    return found == groups_.end() ? nullptr : &found->second;
}

bool GroupQueues::is_held(const Group& group, std::int64_t seq) {
    return !group.holders.empty() && *group.holders.begin() < seq;
}

std::size_t GroupQueues::unsettled(const Group& group) {
    return group.waiting.size() + (group.out ? 1 : 0);
}

std::optional<std::size_t> GroupQueues::let_out(Group& group) {
    if (group.out || group.waiting.empty() || is_held(group, group.waiting.begin()->first)) {
        return std::nullopt;
    }
    const auto first = group.waiting.begin();
    const std::size_t row = first->second;
    group.waiting.erase(first);
    group.out = true;
    return row;
}

std::optional<std::size_t> GroupQueues::add(std::uint64_t group, std::int64_t seq,
                                            std::size_t row) {
    Group& queue = groups_[group];
    queue.in_hand++;
    queue.waiting[seq] = row;
    return let_out(queue);
}

std::optional<std::size_t> GroupQueues::advance(std::uint64_t group) {
    Group& queue = groups_[group];
    queue.out = false;
    return let_out(queue);
}

void GroupQueues::take_back(std::uint64_t group) {
    groups_[group].out = false;
}

std::vector<std::size_t> GroupQueues::remove_waiting(std::uint64_t group) {
    std::vector<std::size_t> rows;
    for (const auto& [seq, row] : groups_[group].waiting) {
        rows.push_back(row);
    }
    groups_[group].waiting.clear();
    return rows;
}

std::vector<std::size_t> GroupQueues::remove_held(std::uint64_t group) {
    Group& queue = groups_[group];
    std::vector<std::size_t> rows;
    if (queue.holders.empty()) {
        return rows;
    }
    const auto first = queue.waiting.upper_bound(*queue.holders.begin());
    for (auto row = first; row != queue.waiting.end(); ++row) {
        rows.push_back(row->second);
    }
    queue.waiting.erase(first, queue.waiting.end());
    return rows;
}

std::vector<std::size_t> GroupQueues::remove_all_waiting() {
    std::vector<std::size_t> rows;
    for (auto& [id, group] : groups_) {
        for (const auto& [seq, row] : group.waiting) {
            rows.push_back(row);
        }
        group.waiting.clear();
    }
    return rows;
}

void GroupQueues::hold(std::uint64_t group, std::int64_t seq) {
    groups_[group].holders.insert(seq);
}

void GroupQueues::release(std::uint64_t group, std::int64_t seq) {
    std::multiset<std::int64_t>& holders = groups_[group].holders;
    holders.erase(holders.find(seq));
}

bool GroupQueues::is_held(std::uint64_t group, std::int64_t seq) const {
    const Group* queue = find(group);
    return queue != nullptr && is_held(*queue, seq);
}

void GroupQueues::set_followed(std::uint64_t group) {
    const auto found = groups_.find(group);
    if (found != groups_.end()) {
        found->second.followed = true;
    }
}

bool GroupQueues::is_followed(std::uint64_t group) const {
    const Group* queue = find(group);
    return queue != nullptr && queue->followed;
}

void GroupQueues::set_more(std::uint64_t group, std::size_t wanted) {
    const auto found = groups_.find(group);
    if (found != groups_.end()) {
        found->second.wanted = wanted;
    }
}

bool GroupQueues::asks_for_more(std::uint64_t group) {
    const auto found = groups_.find(group);
    if (found == groups_.end() || unsettled(found->second) >= found->second.wanted) {
        return false;
    }
    found->second.wanted = 0;
    return true;
}

void GroupQueues::forget(std::uint64_t group) {
    const auto found = groups_.find(group);
    found->second.in_hand--;
    if (found->second.in_hand == 0) {
        groups_.erase(found);
    }
}

std::size_t GroupQueues::in_hand(std::uint64_t group) const {
    const Group* queue = find(group);
    return queue == nullptr ? 0 : queue->in_hand;
}

std::size_t GroupQueues::unsettled(std::uint64_t group) const {
    const Group* queue = find(group);
    return queue == nullptr ? 0 : unsettled(*queue);
}

}  // namespace outbox
