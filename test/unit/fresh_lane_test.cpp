#include "core/fresh_lane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "drain_seed.hpp"
#include "fresh_lane_model.hpp"

namespace outbox {
namespace {

using Fate = SeenRow::Fate;
using Gaps = std::vector<Interval>;
using Moment = FreshLane::Moment;
using Seen = std::vector<SeenRow>;
using Writers = std::vector<Writer>;
using test::LaneDriver;
using test::LaneDriverOptions;
using test::LaneVerdict;
using test::LaneWorld;
using test::LaneWorldOptions;
using test::PassVariant;

constexpr Writer ANNA{1, 10};
constexpr Writer BERT{2, 20};

// A pass in which nothing was in the gaps and `seen` was above the cursor.
void advance(FreshLane& lane, const Seen& seen, const Writers& writers) {
    lane.begin_pass();
    lane.gaps_scanned({}, true);
    lane.advanced(seen, writers);
}

// Makes a lane that has seen 2 and 5 while Anna held the sequence, and is no newborn any more.
FreshLane lane_with_gaps() {
    FreshLane lane;
    advance(lane, {{2, Fate::claimed}, {5, Fate::claimed}}, {ANNA});
    lane.begin_pass();
    lane.gaps_scanned({}, true);
    return lane;
}

TEST(FreshLane, StartsAboveTheFloor) {
    FreshLane lane(41);
    EXPECT_EQ(lane.cursor(), 41);
    EXPECT_EQ(lane.lowest_open(), 42);
    EXPECT_TRUE(lane.gaps_to_scan().empty());
    EXPECT_FALSE(lane.wants_pass());
    EXPECT_TRUE(lane.may_advance());
}

TEST(FreshLane, RowsWithoutAGapLeaveNothingBehind) {
    FreshLane lane;
    advance(lane, {{1, Fate::claimed}, {2, Fate::elsewhere}, {3, Fate::claimed}}, {ANNA});
    EXPECT_EQ(lane.cursor(), 3);
    EXPECT_EQ(lane.lowest_open(), 4);
    EXPECT_EQ(lane.range_count(), 0U);
    EXPECT_FALSE(lane.wants_pass());
}

TEST(FreshLane, NothingSeenMovesNothing) {
    FreshLane lane(7);
    advance(lane, {}, {ANNA});
    EXPECT_EQ(lane.cursor(), 7);
    EXPECT_EQ(lane.range_count(), 0U);
}

TEST(FreshLane, ANewbornRangeIsScannedOnceEvenWithoutWriters) {
    FreshLane lane;
    advance(lane, {{2, Fate::claimed}, {5, Fate::claimed}}, {});
    EXPECT_TRUE(lane.wants_pass());
    EXPECT_EQ(lane.lowest_open(), 1);
    lane.begin_pass();
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{1, 1}, {3, 4}}));
    lane.gaps_scanned({}, true);
    EXPECT_FALSE(lane.wants_pass());
    EXPECT_EQ(lane.range_count(), 0U);
    EXPECT_EQ(lane.lowest_open(), 6);
}

TEST(FreshLane, ARangeIsScannedWhenItsWriterEnds) {
    FreshLane lane = lane_with_gaps();
    EXPECT_FALSE(lane.wants_pass());
    EXPECT_EQ(lane.writers(), Writers{ANNA});
    EXPECT_EQ(lane.lowest_open(), 1);
    lane.begin_pass();
    EXPECT_TRUE(lane.gaps_to_scan().empty());
    lane.note_ended(ANNA, Moment::before_snapshot);
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{1, 1}, {3, 4}}));
    const Seen seen{{3, Fate::claimed}};
    lane.gaps_scanned(seen, true);
    EXPECT_EQ(lane.range_count(), 0U);
    EXPECT_EQ(lane.lowest_open(), 6);
}

TEST(FreshLane, AWriterThatEndedAfterTheSnapshotStaysListed) {
    FreshLane lane = lane_with_gaps();
    lane.begin_pass();
    lane.note_ended(ANNA, Moment::after_snapshot);
    const Seen seen{{3, Fate::claimed}};
    lane.gaps_scanned(seen, true);
    EXPECT_EQ(lane.writers(), Writers{ANNA});
    EXPECT_TRUE(lane.wants_pass());
    lane.begin_pass();
    lane.note_ended(ANNA, Moment::before_snapshot);
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{1, 1}, {4, 4}}));
    lane.gaps_scanned({}, true);
    EXPECT_EQ(lane.range_count(), 0U);
}

TEST(FreshLane, AnIncompleteScanDropsNobodyAndGoesOnFromTheLowestGap) {
    FreshLane lane = lane_with_gaps();
    lane.begin_pass();
    lane.note_ended(ANNA, Moment::before_snapshot);
    const Seen seen{{1, Fate::claimed}};
    lane.gaps_scanned(seen, false);
    EXPECT_FALSE(lane.may_advance());
    EXPECT_TRUE(lane.wants_pass());
    EXPECT_EQ(lane.writers(), Writers{ANNA});
    lane.begin_pass();
    lane.note_ended(ANNA, Moment::before_snapshot);
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{3, 4}}));
    EXPECT_TRUE(lane.may_advance());
}

TEST(FreshLane, AHoleIsLookedAtInEveryPassUntilItIsTaken) {
    FreshLane lane;
    advance(lane, {{1, Fate::passed_over}, {2, Fate::claimed}}, {});
    EXPECT_EQ(lane.hole_count(), 1U);
    EXPECT_EQ(lane.range_count(), 0U);
    EXPECT_EQ(lane.lowest_open(), 1);
    EXPECT_FALSE(lane.wants_pass());
    lane.begin_pass();
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{1, 1}}));
    Seen seen{{1, Fate::passed_over}};
    lane.gaps_scanned(seen, true);
    EXPECT_EQ(lane.hole_count(), 1U);
    lane.begin_pass();
    seen[0].fate = Fate::claimed;
    lane.gaps_scanned(seen, true);
    EXPECT_EQ(lane.hole_count(), 0U);
    EXPECT_EQ(lane.lowest_open(), 3);
}

TEST(FreshLane, AHoleThatSomebodyDeletedIsClosed) {
    FreshLane lane;
    advance(lane, {{1, Fate::passed_over}, {2, Fate::passed_over}, {3, Fate::claimed}}, {});
    lane.begin_pass();
    const Seen seen{{1, Fate::claimed}};
    lane.gaps_scanned(seen, false);
    EXPECT_EQ(lane.hole_count(), 1U) << "2 was not read";
    EXPECT_TRUE(lane.wants_pass());
    lane.begin_pass();
    lane.gaps_scanned({}, true);
    EXPECT_EQ(lane.hole_count(), 0U);
}

TEST(FreshLane, AGivenBackRowIsAHoleBehindTheCursorOnly) {
    FreshLane lane(10);
    lane.add_hole(8);
    lane.add_hole(10);
    lane.add_hole(11);
    EXPECT_EQ(lane.hole_count(), 2U);
    EXPECT_EQ(lane.lowest_open(), 8);
    lane.begin_pass();
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{8, 8}, {10, 10}}));
}

TEST(FreshLane, RangesThatWaitForTheSameWritersAreOne) {
    FreshLane lane;
    advance(lane, {{2, Fate::claimed}}, {BERT, ANNA});
    advance(lane, {{4, Fate::claimed}}, {ANNA, BERT});
    advance(lane, {{6, Fate::claimed}}, {ANNA});
    lane.begin_pass();
    lane.gaps_scanned({}, true);
    EXPECT_EQ(lane.range_count(), 2U);
    EXPECT_EQ(lane.gap_count(), 3U);
    EXPECT_EQ(lane.writers(), (Writers{ANNA, BERT}));
    lane.begin_pass();
    lane.note_ended(BERT, Moment::before_snapshot);
    EXPECT_EQ(lane.gaps_to_scan(), (Gaps{{1, 1}, {3, 3}}));
    lane.gaps_scanned({}, true);
    EXPECT_EQ(lane.range_count(), 1U) << "now both wait for Anna";
}

TEST(FreshLane, TooManyRangesAreJoinedAndWaitForTheWritersOfAll) {
    FreshLane lane;
    for (std::int32_t i = 1; i <= 100; i++) {
        advance(lane, {{2 * i, Fate::claimed}}, {{i, 1}});
    }
    EXPECT_LE(lane.range_count(), 64U);
    EXPECT_EQ(lane.writers().size(), 100U);
    EXPECT_EQ(lane.gap_count(), 100U);
    lane.begin_pass();
    lane.gaps_scanned({}, true);
    lane.begin_pass();
    lane.note_ended({1, 1}, Moment::before_snapshot);
    EXPECT_EQ(lane.gaps_to_scan().front(), (Interval{1, 1}));
    lane.gaps_scanned({}, true);
    EXPECT_EQ(lane.lowest_open(), 1) << "its range now waits for others too";
    EXPECT_EQ(lane.writers().size(), 99U);
}

TEST(FreshLane, TooManyGapsAreJoinedWhereTheyAreNearest) {
    FreshLane lane;
    Seen seen;
    std::int64_t seq = 0;
    for (int i = 0; i < 3000; i++) {
        // Gaps of one number, every tenth of them far from the next.
        for (int taken = i % 10 == 0 ? 20 : 1; taken > 0; taken--) {
            seen.push_back({++seq, Fate::claimed});
        }
        ++seq;
    }
    seen.push_back({++seq, Fate::claimed});
    advance(lane, seen, {ANNA});
    EXPECT_LE(lane.gap_count(), 2048U);
    EXPECT_GE(lane.gap_count(), 300U) << "the far ones are not joined";
    lane.begin_pass();
    Gaps gaps = lane.gaps_to_scan();
    std::size_t covered = 0;
    std::int64_t next = 1;
    for (const SeenRow& row : seen) {
        for (; next < row.seq; next++) {
            covered += std::any_of(gaps.begin(), gaps.end(), [next](const Interval& gap) {
                return gap.lo <= next && next <= gap.hi;
            });
        }
        next = row.seq + 1;
    }
    EXPECT_EQ(covered, 3000U) << "no unseen number is forgotten";
    lane.gaps_scanned(seen, true);
    EXPECT_EQ(lane.gap_count(), 3000U) << "what was walked again is taken out again";
}

// ---- Against a model ----

LaneVerdict run_world(std::uint64_t seed, LaneDriverOptions options, LaneWorldOptions world_options,
                      int passes = 60) {
    LaneWorld world(seed, world_options);
    LaneDriver driver(world, options);
    driver.run(passes);
    return driver.finish();
}

void expect_clean(const LaneVerdict& verdict, std::uint64_t seed) {
    EXPECT_EQ(verdict.lost, 0U) << test::rerun_hint(seed);
    EXPECT_EQ(verdict.out_of_order, 0U) << test::rerun_hint(seed);
    EXPECT_EQ(verdict.floor_too_high, 0U) << test::rerun_hint(seed);
    EXPECT_EQ(verdict.walked_again, 0U) << test::rerun_hint(seed);
    EXPECT_EQ(verdict.left_open, 0U) << test::rerun_hint(seed);
}

TEST(FreshLaneModel, LosesNothingAndKeepsTheOrder) {
    const std::uint64_t base = test::base_seed();
    for (int i = 0; i < test::scaled(1000); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        test::Dice dice(~seed);
        LaneWorldOptions world;
        world.max_open_writers = 1 + dice.below(14);
        world.operators = dice.chance(0.7);
        LaneDriverOptions options;
        options.max_limit = dice.between(1, 30);
        options.churn = 1 + dice.below(10);
        options.restart = dice.chance(0.5) ? 0.03 : 0;
        expect_clean(run_world(seed, options, world), seed);
        if (::testing::Test::HasFailure()) {
            return;
        }
    }
}

// Many writers that stay open while little is claimed in each pass: more ranges than are kept.
TEST(FreshLaneModel, ManyRangesAreJoined) {
    const std::uint64_t base = test::base_seed();
    std::size_t most_ranges = 0;
    for (int i = 0; i < test::scaled(3); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        LaneWorldOptions world_options;
        world_options.max_open_writers = 250;
        world_options.prepare = 0.5;
        LaneDriverOptions options;
        options.churn = 8;
        options.max_limit = 3;
        options.restart = 0;
        LaneWorld world(seed, world_options);
        LaneDriver driver(world, options);
        driver.run(500);
        most_ranges = std::max(most_ranges, driver.most_ranges);
        expect_clean(driver.finish(), seed);
    }
    EXPECT_GT(most_ranges, 40U) << "too few to mean anything";
}

// Many aborted numbers while one writer stays open: more gaps than are kept.
TEST(FreshLaneModel, ManyGapsAreJoined) {
    const std::uint64_t base = test::base_seed();
    std::size_t most_gaps = 0;
    for (int i = 0; i < test::scaled(2); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        LaneWorldOptions world_options;
        world_options.burn = 0.5;
        world_options.prepare = 0.3;
        world_options.max_open_writers = 12;
        LaneDriverOptions options;
        options.churn = 4000;
        options.max_limit = 20000;
        options.restart = 0;
        options.release = 0.01;
        options.may_walk_again = true;
        LaneWorld world(seed, world_options);
        LaneDriver driver(world, options);
        driver.run(4);
        most_gaps = std::max(most_gaps, driver.most_gaps);
        expect_clean(driver.finish(), seed);
    }
    EXPECT_GT(most_gaps, 500U) << "too few to mean anything";
    RecordProperty("most_gaps", static_cast<int>(most_gaps));
}

// ---- The model finds what is wrong ----

struct WrongPass {
    PassVariant variant;
    const char* name;
};

class WrongPasses : public ::testing::TestWithParam<WrongPass> {};

TEST_P(WrongPasses, AreDetected) {
    const std::uint64_t base = test::base_seed();
    LaneVerdict sum;
    int worlds = 0;
    for (; worlds < 2000 && sum.total() == 0; worlds++) {
        LaneDriverOptions options;
        options.variant = GetParam().variant;
        options.fail = 0;
        options.restart = 0;
        options.release = 0;
        LaneWorldOptions world;
        world.operators = GetParam().variant == PassVariant::forget_passed_over;
        world.late_unlock = GetParam().variant == PassVariant::ended_means_lock_gone ? 0.5 : 0.3;
        const LaneVerdict verdict =
            run_world(base + static_cast<std::uint64_t>(worlds), options, world, 200);
        sum.lost += verdict.lost;
        sum.out_of_order += verdict.out_of_order;
    }
    RecordProperty("worlds", worlds);
    std::cout << GetParam().name << ": found in world " << worlds << ", lost " << sum.lost
              << ", out of order " << sum.out_of_order << "\n";
    EXPECT_GT(sum.total(), 0U) << "the model is blind for it";
}

INSTANTIATE_TEST_SUITE_P(
    FreshLaneModel, WrongPasses,
    ::testing::Values(
        WrongPass{PassVariant::check_before_snapshot_only, "check_before_snapshot_only"},
        WrongPass{PassVariant::ended_means_lock_gone, "ended_means_lock_gone"},
        WrongPass{PassVariant::no_scan_of_newborn, "no_scan_of_newborn"},
        WrongPass{PassVariant::fresh_before_gaps, "fresh_before_gaps"},
        WrongPass{PassVariant::drop_all_ended, "drop_all_ended"},
        WrongPass{PassVariant::no_ranges, "no_ranges"},
        WrongPass{PassVariant::newer_snapshot_for_gaps, "newer_snapshot_for_gaps"},
        WrongPass{PassVariant::writers_before_snapshot, "writers_before_snapshot"},
        WrongPass{PassVariant::advance_when_incomplete, "advance_when_incomplete"},
        WrongPass{PassVariant::incomplete_called_complete, "incomplete_called_complete"},
        WrongPass{PassVariant::forget_passed_over, "forget_passed_over"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace outbox
