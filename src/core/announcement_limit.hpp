#pragma once

#include <cstdint>
#include <optional>

#include "core/time.hpp"

namespace outbox {

/// Keeps a flood of announcements out of the log: a few in each interval are said, the others are
/// counted and told in sum with the next one that is said.
class AnnouncementLimit {
  public:
    /// nullopt: leave it unsaid. Else how many have been left unsaid since the last one that was
    /// said.
    std::optional<std::uint64_t> may_say(Time now) noexcept {
        if (!interval_start_.has_value() || now >= *interval_start_ + INTERVAL) {
            interval_start_ = now;
            said_ = 0;
        }
        if (said_ == AT_ONCE) {
            unsaid_++;
            return std::nullopt;
        }
        said_++;
        const std::uint64_t before = unsaid_;
        unsaid_ = 0;
        return before;
    }

    static constexpr Duration INTERVAL{10000};
    static constexpr int AT_ONCE = 10;

  private:
    std::optional<Time> interval_start_;
    int said_ = 0;
    std::uint64_t unsaid_ = 0;
};

}  // namespace outbox
