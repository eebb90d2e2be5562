#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "drain_seed.hpp"
#include "drain_sim_world.hpp"

namespace outbox {
namespace {

using test::Deviation;
using test::Dice;
using test::SimLedger;
using test::SimWorld;
using test::SimWorldOptions;

SimWorldOptions any_world(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.faults = !dice.chance(0.1);
    options.failed_marks = dice.chance(0.7);
    options.locks = dice.chance(0.4);
    options.hands = dice.chance(0.3);
    options.requeues = dice.chance(0.5);
    options.pauses = dice.chance(0.3);
    options.scheduled = dice.chance(0.3);
    options.reorders = dice.chance(0.2);
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = dice.chance(0.5) ? Ordering::per_key
                                        : static_cast<Ordering>(dice.below(4));
    return options;
}

TEST(DrainSimulation, KeepsThePromisesWhateverHappens) {
    const std::uint64_t base = test::base_seed();
    std::size_t rows = 0;
    SimLedger sum;
    std::size_t duplicates = 0;
    std::size_t crashes = 0;
    for (int i = 0; i < test::scaled(100); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, any_world(seed));
        world.run(2500);
        world.finish();
        ASSERT_FALSE(HasFailure());
        rows += world.database().rows.size();
        crashes += world.crashes;
        duplicates += world.ledger.duplicates();
        sum.faults += world.ledger.faults;
        sum.stale_marks += world.ledger.stale_marks;
        sum.taken_back += world.ledger.taken_back;
        sum.swept += world.ledger.swept;
        sum.deferred += world.ledger.deferred;
        sum.order_checks += world.ledger.order_checks;
        sum.may_be_sent_again += world.ledger.may_be_sent_again;
    }
    std::cout << rows << " rows, " << sum.faults << " faults, " << crashes << " crashes, "
              << sum.stale_marks << " stale marks, " << sum.taken_back << " claims taken over, "
              << sum.deferred << " rows put behind others, " << sum.swept << " called by the sweep, "
              << sum.order_checks << " pairs in order, " << duplicates << " duplicates of at most "
              << sum.may_be_sent_again << "\n";
    EXPECT_GT(sum.stale_marks, 0U) << "the worlds are too calm to mean anything";
    EXPECT_GT(duplicates, 0U);
}

// Faults of all kinds, but no transaction fails and nobody writes past the rules.
SimWorldOptions world_by_the_rules(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.failed_marks = false;
    options.requeues = dice.chance(0.5);
    options.pauses = dice.chance(0.3);
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = dice.chance(0.7) ? Ordering::per_key : Ordering::per_source;
    return options;
}

TEST(DrainSimulation, NobodyWaitsForTheSweepWhereAllKeepToTheRules) {
    const std::uint64_t base = test::base_seed();
    std::size_t deferred = 0;
    for (int i = 0; i < test::scaled(40); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, world_by_the_rules(seed));
        world.run(2500);
        world.finish();
        deferred += world.ledger.deferred;
        EXPECT_EQ(world.ledger.swept, 0U) << "rows waited for nobody";
        ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(deferred, 0U);
}

SimWorldOptions world_with_killers(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.killers = true;
    options.crashes = false;
    options.failed_marks = false;
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = static_cast<Ordering>(dice.below(4));
    return options;
}

TEST(DrainSimulation, RowsThatKillDrainersAreFoundAndNoNeighbourIsCharged) {
    const std::uint64_t base = test::base_seed();
    std::size_t killed = 0;
    for (int i = 0; i < test::scaled(40); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, world_with_killers(seed));
        world.run(2500);
        world.finish();
        killed += world.killed;
        ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(killed, 0U);
}

}  // namespace
}  // namespace outbox
