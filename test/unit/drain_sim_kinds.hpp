#pragma once

#include <cstdint>

#include "drain_seed.hpp"
#include "drain_sim_world.hpp"

namespace outbox::test {

/// How many steps of a world go by before it comes to rest.
inline constexpr int STEPS = 2000;

/// Whatever may happen, in one mixture or another.
inline SimWorldOptions any_world(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.faults = !dice.chance(0.1);
    options.failed_marks = dice.chance(0.7);
    options.locks = dice.chance(0.4);
    options.hands = dice.chance(0.3);
    options.requeues = options.discards = dice.chance(0.5);
    options.pauses = dice.chance(0.3);
    options.scheduled = dice.chance(0.3);
    options.reorders = dice.chance(0.2);
    options.poison = dice.chance(0.5);
    options.exchanges = dice.chance(0.5);
    options.limits = dice.chance(0.4);
    options.fail_missing = dice.chance(0.3);
    options.brokers = static_cast<std::size_t>(dice.between(1, 3));
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = dice.chance(0.5) ? Ordering::per_key : static_cast<Ordering>(dice.below(4));
    return options;
}

}  // namespace outbox::test
