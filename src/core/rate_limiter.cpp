#include "core/rate_limiter.hpp"

#include <algorithm>

namespace outbox {

namespace {

constexpr std::int64_t MS_PER_SECOND = 1000;
constexpr std::int64_t BURST_MS = 100;

}  // namespace

void RateLimiter::set_rate(std::int32_t events_per_second, std::int32_t sharers) noexcept {
    rate_ = std::max<std::int64_t>(events_per_second, 0);
    sharers_ = std::max<std::int64_t>(sharers, 1);
    level_ = std::min(level_, capacity());
}

std::int64_t RateLimiter::cost() const noexcept {
    return MS_PER_SECOND * sharers_;
}

std::int64_t RateLimiter::capacity() const noexcept {
    return std::max(rate_ * BURST_MS, cost());
}

std::int64_t RateLimiter::level(Time now) const noexcept {
    if (!filled_at_.has_value()) {
        return capacity();
    }
    // One event's worth of time at the lowest rate fills any bucket; more could overflow.
    const std::int64_t elapsed =
        std::clamp<std::int64_t>((now - *filled_at_).count(), 0, MS_PER_SECOND * sharers_);
    return std::min(level_ + rate_ * elapsed, capacity());
}

bool RateLimiter::take(Time now) noexcept {
    if (rate_ == 0) {
        return true;
    }
    level_ = level(now);
    // A clock that goes back brings nothing a second time.
    filled_at_ = std::max(now, filled_at_.value_or(now));
    if (level_ < cost()) {
        return false;
    }
    level_ -= cost();
    return true;
}

Time RateLimiter::next(Time now) const noexcept {
    if (rate_ == 0) {
        return now;
    }
    const std::int64_t missing = cost() - level(now);
    if (missing <= 0) {
        return now;
    }
    const Time from = std::max(now, *filled_at_);
    return from + Duration{(missing + rate_ - 1) / rate_};
}

}  // namespace outbox
