#include "core/backoff.hpp"

#include <algorithm>
#include <cmath>

namespace outbox {

namespace {

/// initial * multiplier^(failures - 1), at most max, in whole milliseconds. Computed as a double,
/// where a power too large is infinity and not an overflow.
std::int64_t exponential_ms(const Backoff& backoff, std::int64_t failures) noexcept {
    const std::int64_t initial = std::max<std::int64_t>(backoff.initial.count(), 0);
    const std::int64_t max = std::max<std::int64_t>(backoff.max.count(), 0);
    if (initial == 0) {
        return 0;
    }
    const auto steps = static_cast<double>(std::max<std::int64_t>(failures, 1) - 1);
    const double value = static_cast<double>(initial) * std::pow(backoff.multiplier, steps);
    // Written so that infinity and NaN take the maximum.
    if (!(value < static_cast<double>(max))) {
        return max;
    }
    return std::max<std::int64_t>(static_cast<std::int64_t>(value), 0);
}

}  // namespace

std::uint64_t Random::next() noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

double Random::unit() noexcept {
    // The upper 53 bits: as many as a double holds, so that the result never rounds up to 1.
    return static_cast<double>(next() >> 11) * 0x1.0p-53;
}

Duration Backoff::delay(std::int64_t failures, Random& random) const noexcept {
    const std::int64_t whole = exponential_ms(*this, failures);
    const std::int64_t half = whole - whole / 2;
    const double jitter = random.unit() * (static_cast<double>(whole - half) + 1);
    return Duration{std::min(whole - half, static_cast<std::int64_t>(jitter)) + half};
}

}  // namespace outbox
