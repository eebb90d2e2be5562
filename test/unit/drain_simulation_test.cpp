#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "drain_seed.hpp"
#include "drain_sim_kinds.hpp"
#include "drain_sim_world.hpp"

namespace outbox {
namespace {

using test::any_world;
using test::Deviation;
using test::Dice;
using test::SimLedger;
using test::SimWorld;
using test::SimWorldOptions;
using test::STEPS;

TEST(DrainSimulation, KeepsThePromisesWhateverHappens) {
    const std::uint64_t base = test::base_seed();
    std::size_t rows = 0;
    SimLedger sum;
    std::size_t duplicates = 0;
    std::size_t crashes = 0;
    for (int i = 0; i < test::scaled(50); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, any_world(seed));
        world.run(STEPS);
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
        sum.events += world.ledger.events;
        sum.closes += world.ledger.closes;
        sum.held += world.ledger.held;
        sum.found += world.ledger.found;
        sum.neighbours += world.ledger.neighbours;
        sum.may_be_sent_again += world.ledger.may_be_sent_again;
    }
    std::cout << rows << " rows, " << sum.faults << " faults, " << crashes << " crashes, "
              << sum.stale_marks << " stale marks, " << sum.taken_back << " claims taken over, "
              << sum.deferred << " rows put behind others, " << sum.swept
              << " called by the sweep, " << sum.order_checks << " pairs in order, " << duplicates
              << " duplicates of at most " << sum.may_be_sent_again << "\n"
              << sum.events << " broker events, " << sum.closes << " closes over a message, "
              << sum.neighbours << " neighbours sent again, " << sum.found << " culprits charged, "
              << sum.held << " rows held\n";
    EXPECT_GT(sum.found, 0U);
    EXPECT_GT(sum.held, 0U);
    EXPECT_GT(sum.stale_marks, 0U) << "the worlds are too calm to mean anything";
    EXPECT_GT(duplicates, 0U);
}

// Worlds in which a mistake of the core or of the simulation was found.
constexpr std::uint64_t PINNED[] = {4, 14, 20, 22, 55, 207, 440, 2861, 5484};

TEST(DrainSimulation, KeepsThePromisesWhereItOnceDidNot) {
    for (const std::uint64_t seed : PINNED) {
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, any_world(seed));
        world.run(STEPS);
        world.finish();
        ASSERT_FALSE(HasFailure());
    }
}

// Faults of all kinds, but no transaction fails and nobody writes past the rules. Left out is what
// may put a row behind one in hand although later ones of its group are in hand as well: that it
// appears late, is revived, or finds no room. When those in hand fail or are given back, they wait
// for it, and it for nobody, until the sweep calls it.
SimWorldOptions world_by_the_rules(std::uint64_t seed) {
    Dice dice(seed ^ 0x5eedU);
    SimWorldOptions options;
    options.failed_marks = false;
    options.crowds = false;
    options.late_commits = false;
    options.discards = dice.chance(0.5);
    options.pauses = dice.chance(0.3);
    options.drainers = static_cast<std::size_t>(dice.between(1, 3));
    options.ordering = dice.chance(0.7) ? Ordering::per_key : Ordering::per_source;
    return options;
}

TEST(DrainSimulation, NobodyWaitsForTheSweepWhereAllKeepToTheRules) {
    const std::uint64_t base = test::base_seed();
    std::size_t deferred = 0;
    for (int i = 0; i < test::scaled(20); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, world_by_the_rules(seed));
        world.run(STEPS);
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
    for (int i = 0; i < test::scaled(20); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        SimWorld world(seed, world_with_killers(seed));
        world.run(STEPS);
        world.finish();
        killed += world.killed;
        ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(killed, 0U);
}

// One group fails for ever and has ever more followers; each of them is walked about once, and once
// more when it was given back: a broker that goes on refusing is left for another connection.
TEST(DrainSimulation, ABlockedGroupCostsTheOthersNothing) {
    const std::uint64_t seed = test::base_seed();
    SCOPED_TRACE(test::rerun_hint(seed));
    for (std::uint64_t i = 0; i < 2; i++) {
        SimWorldOptions options;
        options.faults = false;
        options.drainers = 1;
        options.failing_key = 0;
        // Each claim walks the rows of a whole batch, and would take few of them.
        options.small_batches = false;
        SimWorld world(seed + i, options);
        world.run(8000);
        ASSERT_FALSE(HasFailure());
        EXPECT_GT(world.ledger.deferred, 0U);
        EXPECT_LE(world.ledger.walked,
                  3 * world.database().rows.size() + 2 * world.ledger.given_back)
            << "rows walked for " << world.database().rows.size() << " rows, of which "
            << world.ledger.given_back << " were given back";
    }
}

// ---- What happens to a shell that does not do as it should ----

SimWorldOptions busy_world_by_the_rules(std::uint64_t seed) {
    SimWorldOptions options = world_by_the_rules(seed);
    options.discards = true;
    options.drainers = 3;
    return options;
}

SimWorldOptions locking_world(std::uint64_t seed) {
    SimWorldOptions options = any_world(seed);
    options.faults = options.locks = options.hands = true;
    options.reorders = options.scheduled = false;
    options.drainers = 2;
    options.ordering = Ordering::per_key;
    return options;
}

SimWorldOptions single_file_world(std::uint64_t seed) {
    SimWorldOptions options = locking_world(seed);
    options.single = true;
    return options;
}

SimWorldOptions refusing_world(std::uint64_t seed) {
    SimWorldOptions options = any_world(seed);
    options.faults = options.poison = options.exchanges = true;
    options.fail_missing = false;
    return options;
}

SimWorldOptions reordering_world(std::uint64_t seed) {
    SimWorldOptions options = any_world(seed);
    options.faults = options.reorders = true;
    options.poison = options.exchanges = options.limits = false;
    options.brokers = 1;
    return options;
}

/// What the shell does wrong, and where that shows.
struct Flaw {
    Deviation deviation;
    SimWorldOptions (*world)(std::uint64_t seed);
    const char* what;
    /// Where its worlds start: few seeds before one in which it shows.
    std::uint64_t seed = 1;
};

void PrintTo(const Flaw& flaw, std::ostream* out) {
    *out << flaw.what;
}

class DrainSimulationOf : public ::testing::TestWithParam<Flaw> {};

// Runs one world after the other until one of them fails.
int worlds_until_found(const Flaw& flaw, int most) {
    for (int i = 0; i < most; i++) {
        const std::uint64_t seed = flaw.seed + static_cast<std::uint64_t>(i);
        SimWorldOptions options = flaw.world(seed);
        options.deviation = flaw.deviation;
        ::testing::TestPartResultArray failures;
        {
            const ::testing::ScopedFakeTestPartResultReporter reporter(
                ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD,
                &failures);
            SimWorld world(seed, options);
            world.failures = &failures;
            world.run(STEPS);
            world.finish();
            EXPECT_TRUE(flaw.world != busy_world_by_the_rules || world.ledger.swept == 0);
        }
        if (failures.size() > 0) {
            std::cout << failures.GetTestPartResult(0).message() << "\n";
            return i + 1;
        }
    }
    return 0;
}

TEST_P(DrainSimulationOf, IsNotSatisfied) {
    const int worlds = worlds_until_found(GetParam(), 500);
    EXPECT_GT(worlds, 0) << "nobody noticed";
    std::cout << "found in world " << worlds << "\n";
}

constexpr Flaw FLAWS[] = {
    {Deviation::fresh_ignores_holder, any_world, "FreshIgnoresHolder"},
    {Deviation::due_ignores_row_below, any_world, "DueIgnoresRowBelow"},
    {Deviation::due_beyond_walk, locking_world, "DueBeyondWalk"},
    {Deviation::gaps_do_not_block, locking_world, "GapsDoNotBlock", 10},
    {Deviation::due_before_gaps, locking_world, "DueBeforeGaps"},
    {Deviation::keeps_room_for_waiting, single_file_world, "KeepsRoomForWaiting", 70},
    {Deviation::holder_not_locked, busy_world_by_the_rules, "HolderNotLocked"},
    {Deviation::keeps_rows_behind_locked, locking_world, "KeepsRowsBehindLocked"},
    {Deviation::never_releases, busy_world_by_the_rules, "NeverReleases"},
    {Deviation::forgets_left, any_world, "ForgetsLeft"},
    {Deviation::passes_left_by, any_world, "PassesLeftBy"},
    {Deviation::gives_up_rows_in_hand, busy_world_by_the_rules, "GivesUpRowsInHand"},
    {Deviation::keeps_lane_at_handover, any_world, "KeepsLaneAtHandover"},
    {Deviation::forgets_given_back, any_world, "ForgetsGivenBack"},
    {Deviation::sweeps_late_after_reorder, reordering_world, "SweepsLateAfterReorder", 940},
    {Deviation::no_search_for_killers, world_with_killers, "NoSearchForKillers"},
    {Deviation::charges_neighbours, world_with_killers, "ChargesNeighbours"},
    {Deviation::commits_not_flushed, any_world, "CommitsNotFlushed"},
    {Deviation::guards_by_worker, locking_world, "GuardsByWorker"},
    {Deviation::marks_what_is_taken_back, locking_world, "MarksWhatIsTakenBack"},
    {Deviation::forgets_writers, any_world, "ForgetsWriters"},
    {Deviation::reads_gaps_last, any_world, "ReadsGapsLast"},
    {Deviation::never_wakes_held, refusing_world, "NeverWakesHeld"},
    {Deviation::believes_without_asking, refusing_world, "BelievesWithoutAsking"},
    {Deviation::tries_beside_others, refusing_world, "TriesBesideOthers"},
    {Deviation::confirms_by_high_water, any_world, "ConfirmsByHighWater"},
    {Deviation::charges_on_loss, any_world, "ChargesOnLoss"},
    {Deviation::charges_the_window, refusing_world, "ChargesTheWindow"},
};

INSTANTIATE_TEST_SUITE_P(Shell, DrainSimulationOf, ::testing::ValuesIn(FLAWS),
                         [](const auto& flaw) { return std::string(flaw.param.what); });

}  // namespace
}  // namespace outbox
