#pragma once

#include <cstdint>

#include "core/time.hpp"

namespace outbox {

/// A small deterministic generator (splitmix64), so that a run can be repeated from its seed.
class Random {
  public:
    explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
    std::uint64_t next() noexcept;
    /// Uniform in [0, 1).
    double unit() noexcept;

  private:
    std::uint64_t state_;
};

/// Exponential backoff: initial * multiplier^(n-1), at most max.
struct Backoff {
    Duration initial{1000};
    double multiplier = 2;
    Duration max{300000};

    bool operator==(const Backoff&) const = default;

    /// The delay before attempt n + 1 when n (>= 1) attempts have failed, with jitter: uniform
    /// between half of the exponential value and all of it, so that rows which failed together
    /// spread out.
    Duration delay(std::int64_t failures, Random& random) const noexcept;
};

}  // namespace outbox
