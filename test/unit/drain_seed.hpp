#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "core/backoff.hpp"

namespace outbox::test {

/// Where the worlds of a randomized test start: OUTBOX_SEED if it is set, so that a failure can be
/// repeated, otherwise another one in every run. World i of a run uses seed + i, so the seed that a
/// failing world prints makes it the first of the next run.
inline std::uint64_t base_seed() {
    static const std::uint64_t seed = [] {
        const char* text = std::getenv("OUTBOX_SEED");
        const std::uint64_t value = text != nullptr && *text != '\0'
                                        ? std::strtoull(text, nullptr, 10)
                                        : std::random_device{}();
        std::cout << "OUTBOX_SEED=" << value << std::endl;
        return value;
    }();
    return seed;
}

/// `rounds`, or many more of them in the long variant of the tests.
inline int scaled(int rounds) {
    const char* is_long = std::getenv("OUTBOX_TEST_LONG");
    return is_long != nullptr && *is_long != '\0' ? rounds * 20 : rounds;
}

/// What to say with a failed assertion.
inline std::string rerun_hint(std::uint64_t seed) {
    return "rerun this world first: OUTBOX_SEED=" + std::to_string(seed);
}

/// The random choices of a test.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : random_(seed) {}

    /// Uniform from 0 to n - 1.
    std::uint64_t below(std::uint64_t n) { return random_.next() % n; }
    /// Uniform from lo to hi, both included.
    std::int64_t between(std::int64_t lo, std::int64_t hi) {
        return lo + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(hi - lo) + 1));
    }
    bool chance(double probability) { return random_.unit() < probability; }

  private:
    Random random_;
};

}  // namespace outbox::test
