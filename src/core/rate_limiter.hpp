#pragma once

#include <cstdint>
#include <optional>

#include "core/time.hpp"

namespace outbox {

/// A token bucket: so many events a second, in bursts of at most a tenth of a second's worth, or of
/// one event where that is less. Counts in whole numbers, so that it never drifts.
class RateLimiter {
  public:
    /// `sharers`: how many limiters share the rate, each taking the same part of it. Rate 0: no
    /// limit.
    explicit RateLimiter(std::int32_t events_per_second = 0, std::int32_t sharers = 1) noexcept {
        set_rate(events_per_second, sharers);
    }

    /// Keeps what the bucket holds, as far as it still fits: a setting that is written again and
    /// again opens no gate.
    void set_rate(std::int32_t events_per_second, std::int32_t sharers = 1) noexcept;
    std::int32_t rate() const noexcept { return static_cast<std::int32_t>(rate_); }

    /// Whether an event may go now; it is counted if so.
    bool take(Time now) noexcept;
    /// When an event may go next: `now` if at once.
    Time next(Time now) const noexcept;

  private:
    // One event costs 1000 * sharers, and each millisecond brings `rate`.
    std::int64_t cost() const noexcept;
    std::int64_t capacity() const noexcept;
    std::int64_t level(Time now) const noexcept;

    std::int64_t rate_ = 0;
    std::int64_t sharers_ = 1;
    std::int64_t level_ = 0;
    std::optional<Time> filled_at_;  ///< nullopt: never asked, the bucket is full
};

}  // namespace outbox
