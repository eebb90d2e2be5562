#include <gtest/gtest-spi.h>
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
    options.ordering = dice.chance(0.5) ? Ordering::per_key : static_cast<Ordering>(dice.below(4));
    return options;
}

TEST(DrainSimulation, KeepsThePromisesWhateverHappens) {
    const std::uint64_t base = test::base_seed();
    std::size_t rows = 0;
    SimLedger sum;
    std::size_t duplicates = 0;
    std::size_t crashes = 0;
    for (int i = 0; i < test::scaled(60); i++) {
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
              << sum.deferred << " rows put behind others, " << sum.swept
              << " called by the sweep, " << sum.order_checks << " pairs in order, " << duplicates
              << " duplicates of at most " << sum.may_be_sent_again << "\n";
    EXPECT_GT(sum.stale_marks, 0U) << "the worlds are too calm to mean anything";
    EXPECT_GT(duplicates, 0U);
}

// Faults of all kinds, but no transaction fails and nobody writes past the rules.
SimWorldOptions world_by_the_rules(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.failed_marks = false;
    options.crowds = false;
    options.requeues = dice.chance(0.5);
    options.pauses = dice.chance(0.3);
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = dice.chance(0.7) ? Ordering::per_key : Ordering::per_source;
    return options;
}

TEST(DrainSimulation, NobodyWaitsForTheSweepWhereAllKeepToTheRules) {
    const std::uint64_t base = test::base_seed();
    std::size_t deferred = 0;
    for (int i = 0; i < test::scaled(30); i++) {
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
    for (int i = 0; i < test::scaled(30); i++) {
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

// One group fails for ever and has ever more followers; each of them is walked about once.
TEST(DrainSimulation, ABlockedGroupCostsTheOthersNothing) {
    const std::uint64_t seed = test::base_seed();
    SCOPED_TRACE(test::rerun_hint(seed));
    for (std::uint64_t i = 0; i < 5; i++) {
        SimWorldOptions options;
        options.faults = false;
        options.drainers = 1;
        options.failing_key = 0;
        SimWorld world(seed + i, options);
        world.run(4000);
        ASSERT_FALSE(HasFailure());
        EXPECT_GT(world.ledger.deferred, 20U);
        EXPECT_LE(world.ledger.walked, 3 * world.database().rows.size())
            << "rows walked for " << world.database().rows.size() << " rows";
    }
}

// ---- What happens to a shell that does not do as it should ----

struct Flaw {
    Deviation deviation;
    const char* what;
};

void PrintTo(const Flaw& flaw, std::ostream* out) {
    *out << flaw.what;
}

class DrainSimulationOf : public ::testing::TestWithParam<Flaw> {};

// Runs one world after the other, of all kinds, until one of them fails.
int worlds_until_found(Deviation deviation, int most) {
    const std::uint64_t base = test::base_seed();
    for (int i = 0; i < most; i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i / 3);
        SimWorldOptions options = i % 3 == 0   ? any_world(seed)
                                  : i % 3 == 1 ? world_by_the_rules(seed)
                                               : world_with_killers(seed);
        options.reorders = deviation == Deviation::sweeps_late_after_reorder && i % 3 == 0;
        options.deviation = deviation;
        ::testing::TestPartResultArray failures;
        {
            const ::testing::ScopedFakeTestPartResultReporter reporter(
                ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD,
                &failures);
            SimWorld world(seed, options);
            world.failures = &failures;
            world.run(2500);
            world.finish();
            if (i % 3 == 1) {
                EXPECT_EQ(world.ledger.swept, 0U);
            }
        }
        if (failures.size() > 0) {
            return i + 1;
        }
    }
    return 0;
}

TEST_P(DrainSimulationOf, IsNotSatisfied) {
    const int worlds = worlds_until_found(GetParam().deviation, 900);
    EXPECT_GT(worlds, 0) << "nobody noticed";
    std::cout << "found in world " << worlds << "\n";
}

constexpr Flaw FLAWS[] = {
    {Deviation::fresh_ignores_holder, "FreshIgnoresHolder"},
    {Deviation::due_ignores_row_below, "DueIgnoresRowBelow"},
    {Deviation::due_beyond_walk, "DueBeyondWalk"},
    {Deviation::gaps_do_not_block, "GapsDoNotBlock"},
    {Deviation::due_before_gaps, "DueBeforeGaps"},
    {Deviation::holder_not_locked, "HolderNotLocked"},
    {Deviation::keeps_rows_behind_locked, "KeepsRowsBehindLocked"},
    {Deviation::never_releases, "NeverReleases"},
    {Deviation::gives_up_rows_in_hand, "GivesUpRowsInHand"},
    {Deviation::keeps_lane_at_handover, "KeepsLaneAtHandover"},
    {Deviation::forgets_given_back, "ForgetsGivenBack"},
    {Deviation::sweeps_late_after_reorder, "SweepsLateAfterReorder"},
    {Deviation::no_search_for_killers, "NoSearchForKillers"},
    {Deviation::charges_neighbours, "ChargesNeighbours"},
};

INSTANTIATE_TEST_SUITE_P(Shell, DrainSimulationOf, ::testing::ValuesIn(FLAWS),
                         [](const auto& flaw) { return std::string(flaw.param.what); });

}  // namespace
}  // namespace outbox
