#include "core/retention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace outbox {
namespace {

using namespace std::chrono_literals;

constexpr Duration KEPT = 1h;
constexpr Time NEVER = Time::max();

/// A table, an operator who locks rows and a trigger that refuses some, and a drainer that does
/// what Retention says.
class RetentionWorld {
  public:
    struct Row {
        Time published = NEVER;
        Time dead = NEVER;
        bool locked = false;
        bool refused = false;
    };

    explicit RetentionWorld(Duration kept = KEPT, Duration kept_dead = Duration{0})
        : kept_(kept), kept_dead_(kept_dead) {
        retention.configure(now, kept_, kept_dead_);
    }

    void publish(std::int64_t seq, Time at) { rows[seq].published = at; }
    void publish_late(std::int64_t seq) {
        rows[seq].published = now;
        retention.note_published(now, std::vector{seq});
    }
    void end_dead(std::int64_t seq, Time at) { rows[seq].dead = at; }

    /// As if the drainer had been killed: only the position is left.
    void restart() {
        retention = Retention(persisted);
        retention.configure(now, kept_, kept_dead_);
    }

    /// Does what is to be done until then.
    void run_until(Time end) {
        while (retention.next_look() <= end) {
            now = std::max(now, retention.next_look());
            if (retention.begin(now, floor())) {
                turn();
            }
        }
        now = std::max(now, end);
    }
    void run_for(Duration time) { run_until(now + time); }

    std::int64_t floor() const { return rows.empty() ? 0 : rows.rbegin()->first; }

    /// Published rows that should have been gone by `allowed` ago and nobody keeps from it.
    std::vector<std::int64_t> overdue(Duration allowed) const {
        std::vector<std::int64_t> result;
        for (const auto& [seq, row] : rows) {
            if (row.published != NEVER && row.published + kept_ + allowed < now && !row.locked &&
                !row.refused) {
                result.push_back(seq);
            }
        }
        return result;
    }

    std::map<std::int64_t, Row> rows;
    Retention retention;
    Time now = 24h;
    std::int64_t persisted = 0;
    std::map<std::int64_t, int> read_times;
    std::size_t reads = 0;
    std::size_t turns = 0;
    std::size_t failures = 0;
    std::vector<std::int64_t> removed_early;

  private:
    std::vector<RetainedRow> read_published(const Retention::Turn& turn) {
        std::vector<RetainedRow> result;
        for (auto row = rows.upper_bound(turn.after);
             row != rows.end() && row->first <= turn.last && result.size() < turn.limit; ++row) {
            const Time at = row->second.published;
            result.push_back({row->first, at != NEVER, at != NEVER ? at + kept_ - now : Duration{0},
                              at.count()});
        }
        return result;
    }

    std::vector<RetainedRow> read_dead(const Retention::Turn& turn) {
        const std::vector<std::int64_t> refused = retention.refused(now);
        std::vector<RetainedRow> result;
        for (const auto& [seq, row] : rows) {
            if (row.dead != NEVER && row.dead + kept_dead_ <= now && !row.locked &&
                row.dead.count() >= turn.dead_from &&
                std::find(refused.begin(), refused.end(), seq) == refused.end()) {
                result.push_back({seq, true, Duration{0}, row.dead.count()});
            }
        }
        std::sort(result.begin(), result.end(),
                  [](const auto& a, const auto& b) { return a.end < b.end; });
        result.resize(std::min(result.size(), turn.limit));
        return result;
    }

    void turn() {
        const Retention::Turn turn = retention.turn();
        const bool dead = turn.where == Retention::Where::dead;
        const std::vector<RetainedRow> read = dead ? read_dead(turn) : read_published(turn);
        turns++;
        reads += read.size();
        for (const RetainedRow& row : read) {
            read_times[row.seq]++;
        }
        const auto chosen = retention.choose(now, read);
        ASSERT_LE(chosen.size(), Retention::CHUNK);
        if (std::any_of(chosen.begin(), chosen.end(),
                        [&](std::int64_t seq) { return rows[seq].refused; })) {
            failures++;
            retention.fail(now);
            return;
        }
        std::vector<std::int64_t> removed;
        for (std::int64_t seq : chosen) {
            const Row& row = rows.at(seq);
            const Time over = dead ? row.dead + kept_dead_ : row.published + kept_;
            if (over > now) {
                removed_early.push_back(seq);
            }
            if (!row.locked) {
                removed.push_back(seq);
                rows.erase(seq);
            }
        }
        now += 5ms;
        retention.finish(now, 5ms, removed);
        check_position();
        persisted = retention.position();
    }

    void check_position() {
        for (const auto& [seq, row] : rows) {
            if (seq > retention.position()) {
                break;
            }
            ASSERT_TRUE(row.published == NEVER || unknown.contains(seq))
                << "row " << seq << " waits below the position " << retention.position();
        }
    }

  public:
    std::set<std::int64_t> unknown;  ///< published behind our back

  private:
    Duration kept_;
    Duration kept_dead_;
};

TEST(Retention, KeptForEverReadsNothing) {
    RetentionWorld world(0h, 0h);
    world.publish(1, 0h);
    EXPECT_EQ(world.retention.next_look(), NEVER);
    world.run_for(100h);
    EXPECT_EQ(world.turns, 0U);
    EXPECT_EQ(world.rows.size(), 1U);
}

TEST(Retention, RemovesWhatIsOverAndNothingElse) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 10000; seq++) {
        world.publish(seq, world.now - 2 * KEPT + Duration{seq * 720});
    }
    world.run_for(1min);
    EXPECT_TRUE(world.overdue(1min).empty());
    EXPECT_GE(world.rows.size(), 4900U);
    world.run_for(KEPT + 12min);
    EXPECT_TRUE(world.rows.empty());
    EXPECT_TRUE(world.removed_early.empty());
}

TEST(Retention, KeepsUpWithMoreRowsThanADrainerPublishes) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 200000; seq++) {
        world.publish(seq, 0h);
    }
    world.run_for(10s);
    EXPECT_TRUE(world.rows.empty()) << world.rows.size() << " rows are left";
}

TEST(Retention, AnIdleTableIsHardlyLookedAt) {
    RetentionWorld world(7 * 24h);
    world.publish(1, world.now);
    world.run_for(1min);
    world.turns = 0;
    world.run_for(10h);
    EXPECT_LE(world.turns, 100U);
}

TEST(Retention, PassesKeptRowsOnce) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 50000; seq++) {
        world.end_dead(seq, 0h);
    }
    world.publish(50001, 0h);
    world.run_for(5min);
    EXPECT_EQ(world.rows.size(), 50000U);
    world.reads = 0;
    for (std::int64_t seq = 50002; seq <= 50100; seq++) {
        world.publish(seq, world.now - KEPT);
        world.run_for(1min);
    }
    EXPECT_TRUE(world.overdue(2min).empty());
    // The slow round takes a chunk of them a minute at most.
    EXPECT_LE(world.reads, 101 * Retention::CHUNK);
    EXPECT_EQ(world.persisted, 50100);
}

TEST(Retention, ALockedRowHoldsUpNobody) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 5000; seq++) {
        world.publish(seq, 0h);
    }
    world.rows[1].locked = true;
    world.rows[2500].locked = true;
    world.run_for(10s);
    EXPECT_EQ(world.rows.size(), 2U);
    EXPECT_EQ(world.retention.position(), 0);
    world.rows[1].locked = world.rows[2500].locked = false;
    world.run_for(2min);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, RowsThatAreRefusedHoldUpNobody) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 20000; seq++) {
        world.publish(seq, 0h);
        world.rows[seq].refused = seq % 997 == 0;
    }
    world.run_for(10min);
    EXPECT_EQ(world.rows.size(), 20U);
    const std::size_t failures = world.failures;
    EXPECT_LE(failures, 20U * 20);
    // They are tried again alone, less and less often.
    world.run_for(10h);
    EXPECT_LE(world.failures - failures, 20U * 17);
    for (auto& [seq, row] : world.rows) {
        row.refused = false;
    }
    world.run_for(2h);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, WhereEveryRowIsRefusedFewAreTried) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 20000; seq++) {
        world.publish(seq, 0h);
        world.rows[seq].refused = true;
    }
    world.run_for(1h);
    EXPECT_LE(world.failures, 60U * 12);
}

TEST(Retention, ARefusedDeadRowHoldsUpNoOther) {
    RetentionWorld world(0h, KEPT);
    for (std::int64_t seq = 1; seq <= 3000; seq++) {
        world.end_dead(seq, Duration{seq / 100});
    }
    world.rows[1].refused = true;
    world.rows[1500].locked = true;
    world.run_for(5min);
    EXPECT_EQ(world.rows.size(), 2U);
    world.rows[1].refused = world.rows[1500].locked = false;
    world.run_for(2h);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, DeadRowsGoAfterTheirOwnTime) {
    RetentionWorld world(1h, 10h);
    for (std::int64_t seq = 1; seq <= 3000; seq++) {
        world.end_dead(seq, world.now);
        world.publish(3000 + seq, world.now);
    }
    world.run_for(90min);
    EXPECT_EQ(world.rows.size(), 3000U);
    world.run_for(9h);
    EXPECT_TRUE(world.rows.empty());
    EXPECT_TRUE(world.removed_early.empty());
}

TEST(Retention, AHillOfLateRowsIsGoneRound) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 40000; seq++) {
        const bool late = seq > 10000 && seq <= 30000;
        world.publish(seq, late ? world.now : 0h);
    }
    world.run_for(10s);
    EXPECT_EQ(world.rows.size(), 20000U);
    EXPECT_EQ(world.retention.position(), 10000);
    world.run_for(KEPT + 2min);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, AVeryLongHillOfLateRowsIsGoneRound) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 400000; seq++) {
        const bool late = seq > 10000 && seq <= 300000;
        world.publish(seq, late ? world.now : 0h);
    }
    world.run_for(15min);
    EXPECT_EQ(world.rows.size(), 290000U);
    EXPECT_LE(world.reads, 2 * 400000U);
    world.run_for(KEPT + 2min);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, ARowThatWasDeferredBeyondTheRetentionOfItsNeighboursGoesInItsTurn) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 3000; seq++) {
        world.publish(seq, 0h);
    }
    world.rows[1234] = {};
    world.run_for(1min);
    ASSERT_EQ(world.rows.size(), 1U);
    EXPECT_EQ(world.persisted, 3000);
    world.publish_late(1234);
    EXPECT_EQ(world.retention.position(), 1233);
    world.run_for(KEPT + 2min);
    EXPECT_TRUE(world.rows.empty());
}

TEST(Retention, ARowThatWasPublishedBehindOurBackIsFoundByTheSlowRound) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 5000; seq++) {
        world.rows[seq] = {};
    }
    world.publish(5001, 0h);
    world.run_for(1min);
    world.unknown = {777};
    world.publish(777, world.now);
    world.run_for(KEPT + 30min);
    EXPECT_EQ(world.rows.size(), 4999U);
}

TEST(Retention, AShorterRetentionCountsAtOnce) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 5000; seq++) {
        world.publish(seq, world.now);
    }
    world.run_for(30min);
    EXPECT_EQ(world.rows.size(), 5000U);
    world.retention.configure(world.now, 30min, 0h);
    // The world goes by the old time.
    EXPECT_LE(world.retention.next_look(), world.now + 1s);
}

TEST(Retention, ManyLateRowsNeedLittleMemory) {
    RetentionWorld world;
    for (std::int64_t seq = 1; seq <= 30000; seq++) {
        if (seq % 3 == 0) {
            world.rows[seq] = {};
        } else {
            world.publish(seq, 0h);
        }
    }
    world.run_for(1min);
    ASSERT_EQ(world.rows.size(), 10000U);
    for (std::int64_t seq = 3; seq <= 30000; seq += 3) {
        world.publish_late(seq);
        world.now += 100ms;
    }
    EXPECT_LE(world.retention.stretch_count(), 1024U);
    world.run_for(KEPT + 2min);
    EXPECT_TRUE(world.rows.empty());
    EXPECT_TRUE(world.removed_early.empty());
}

// Whatever the order in which rows are published, locked, refused and given free, and however often
// the drainer dies: each goes soon after its time, and none before.
class RetentionSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(RetentionSimulation, EveryRowGoesSoonAfterItsTime) {
    std::mt19937 random(GetParam());
    const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
    RetentionWorld world(KEPT, chance(50) ? 30min : Duration{0});
    std::int64_t last = 0;
    std::vector<std::int64_t> deferred;
    for (int step = 0; step < 200; step++) {
        const unsigned late = random() % 20;
        for (unsigned burst = random() % (chance(5) ? 5000 : 100); burst > 0; burst--) {
            last += 1 + (chance(5) ? random() % 50 : 0);
            if (chance(late)) {
                world.rows[last] = {};
                deferred.push_back(last);
            } else if (chance(2)) {
                world.end_dead(last, world.now);
            } else {
                world.publish(last, world.now);
                world.rows[last].locked = chance(1);
                world.rows[last].refused = random() % 1000 == 0;
            }
        }
        for (unsigned ends = random() % 200; ends > 0 && !deferred.empty(); ends--) {
            std::swap(deferred[random() % deferred.size()], deferred.back());
            world.publish_late(deferred.back());
            deferred.pop_back();
        }
        for (auto& [seq, row] : world.rows) {
            row.locked = row.locked && !chance(10);
        }
        if (chance(3)) {
            // What was noted since the last turn is lost; the slow round finds it.
            for (const auto& [seq, row] : world.rows) {
                if (row.published != NEVER && seq <= world.persisted) {
                    world.unknown.insert(seq);
                }
            }
            world.restart();
        }
        world.run_for(Duration{random() % 240000});
    }
    for (auto& [seq, row] : world.rows) {
        row.locked = row.refused = false;
    }
    for (std::int64_t seq : deferred) {
        world.publish_late(seq);
    }
    world.run_for(KEPT + 3h);
    EXPECT_TRUE(world.overdue(0h).empty()) << "the first is " << world.overdue(0h).front();
    EXPECT_TRUE(world.removed_early.empty());
    EXPECT_LE(world.retention.stretch_count(), 1024U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RetentionSimulation, testing::Range(1U, 13U));

}  // namespace
}  // namespace outbox
