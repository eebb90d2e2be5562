#include "core/tag_tracker.hpp"

namespace outbox {

bool TagTracker::open(std::uint64_t tag, std::size_t row) {
    if (tag != first_tag_ + entries_.size()) {
        return false;
    }
    entries_.push_back({row, true});
    open_count_++;
    return true;
}

bool TagTracker::settle(std::uint64_t tag, bool multiple, std::vector<std::size_t>& rows) {
    const std::uint64_t end = first_tag_ + entries_.size();
    if (multiple && tag == 0) {
        tag = end - 1;
    }
    if (tag == 0 || tag >= end) {
        return false;
    }
    if (!multiple) {
        if (tag < first_tag_ || !entries_[tag - first_tag_].open) {
            return false;
        }
        Entry& entry = entries_[tag - first_tag_];
        rows.push_back(entry.row);
        entry.open = false;
        open_count_--;
        drop_settled_front();
        return true;
    }
    while (first_tag_ <= tag) {
        if (entries_.front().open) {
            rows.push_back(entries_.front().row);
            open_count_--;
        }
        entries_.pop_front();
        first_tag_++;
    }
    drop_settled_front();
    return true;
}

std::optional<std::size_t> TagTracker::row_of(std::uint64_t tag) const {
    if (tag < first_tag_ || tag >= first_tag_ + entries_.size()) {
        return std::nullopt;
    }
    const Entry& entry = entries_[tag - first_tag_];
    return entry.open ? std::optional(entry.row) : std::nullopt;
}

std::vector<std::size_t> TagTracker::reset() {
    std::vector<std::size_t> rows;
    for (const Entry& entry : entries_) {
        if (entry.open) {
            rows.push_back(entry.row);
        }
    }
    entries_.clear();
    first_tag_ = 1;
    open_count_ = 0;
    return rows;
}

void TagTracker::drop_settled_front() noexcept {
    while (!entries_.empty() && !entries_.front().open) {
        entries_.pop_front();
        first_tag_++;
    }
}

}  // namespace outbox
