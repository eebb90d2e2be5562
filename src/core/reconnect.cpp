#include "core/reconnect.hpp"

#include <algorithm>

namespace outbox {

namespace {

constexpr Duration PACE{1000};
constexpr Backoff ROUND_BACKOFF{Duration{500}, 2, Duration{30000}};
constexpr Duration CONFIGURATION_DELAY{10000};
// Many servers that lose one broker must not all come to the next one in the same instant; and what
// a cluster has lost with a node, a queue's leader, takes it a moment to replace.
constexpr double TURN_JITTER_MS = 250;

}  // namespace

void Reconnect::set_brokers(Time now, std::size_t count) {
    count_ = std::max<std::size_t>(count, 1);
    broker_ = 0;
    failures_ = misconfigured_ = 0;
    hurry(now);
}

// A connection that was made and is closed in peace does not shorten the pace either.
void Reconnect::attempted(Time now) noexcept {
    attempted_ = now;
    at_ = now + PACE;
}

void Reconnect::failed(Time now, bool configuration, bool was_healthy, Random& random) {
    if (was_healthy) {
        failures_ = misconfigured_ = 0;
    }
    broker_ = (broker_ + 1) % count_;
    failures_++;
    misconfigured_ += configuration ? 1 : 0;
    Duration delay = PACE + Duration{static_cast<Duration::rep>(random.unit() * TURN_JITTER_MS)};
    if (failures_ % count_ == 0) {
        delay = ROUND_BACKOFF.delay(static_cast<std::int64_t>(failures_ / count_), random);
        if (misconfigured_ == count_) {
            delay = std::max(delay, CONFIGURATION_DELAY);
        }
        misconfigured_ = 0;
    }
    at_ = std::max(now + delay, attempted_ + PACE);
}

void Reconnect::hurry(Time now) noexcept {
    at_ = std::min(at_, std::max(now, attempted_ + PACE));
}

}  // namespace outbox
