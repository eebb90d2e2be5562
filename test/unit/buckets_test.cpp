#include "core/buckets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "drain_seed.hpp"

namespace outbox::test {
namespace {

BucketStep able_at(std::int64_t floor) {
    BucketStep input;
    input.able = true;
    input.floor = floor;
    return input;
}

BucketStep busy_at(std::int64_t floor, BucketMask in_hand) {
    BucketStep input = able_at(floor);
    input.idle = ~in_hand;
    return input;
}

int count(BucketMask buckets) {
    return std::popcount(buckets);
}

TEST(Buckets, AFirstWorkerTakesAllFromThePersistedFloor) {
    BucketMap map = new_bucket_map();
    raise_floors(map, 100);
    const BucketShare share = step(map, 0, able_at(100));
    EXPECT_EQ(share.owned, ALL_BUCKETS);
    EXPECT_EQ(share.claimable, ALL_BUCKETS);
    EXPECT_EQ(share.taken.buckets, ALL_BUCKETS);
    EXPECT_EQ(share.taken.floor, 100);
    EXPECT_EQ(lowest_floor(map), 100);
    EXPECT_EQ(step(map, 0, able_at(130)).taken.buckets, 0U);
    EXPECT_EQ(lowest_floor(map), 130);
}

TEST(Buckets, AWorkerWithoutBrokerTakesNothing) {
    BucketMap map = new_bucket_map();
    EXPECT_EQ(step(map, 0, BucketStep{}).owned, 0U);
    EXPECT_EQ(step(map, 0, able_at(0)).owned, ALL_BUCKETS);
}

TEST(Buckets, TheAbleShareEqually) {
    for (int workers = 1; workers <= MOST_WORKERS; workers++) {
        const WorkerMask able = ((WorkerMask{1} << workers) - 1) & 0xffff;
        int sum = 0;
        for (int worker = 0; worker < MOST_WORKERS; worker++) {
            const int share = fair_share(able, worker);
            sum += share;
            if (worker < workers) {
                EXPECT_GE(share, BUCKETS / workers);
                EXPECT_LE(share, BUCKETS / workers + 1);
            } else {
                EXPECT_EQ(share, 0);
            }
        }
        EXPECT_EQ(sum, BUCKETS) << workers;
    }
}

TEST(Buckets, ASecondWorkerGetsHalfOnceItIsIdle) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(0));
    const BucketShare second = step(map, 1, able_at(50));
    EXPECT_EQ(second.owned, 0U);
    EXPECT_TRUE(second.news) << "the first has to hear of it";

    // All in hand: nothing more is claimed of what has to go, and it stays owned.
    BucketShare first = step(map, 0, busy_at(60, ALL_BUCKETS));
    EXPECT_EQ(count(first.claimable), 32);
    EXPECT_EQ(first.owned, ALL_BUCKETS);
    EXPECT_EQ(step(map, 1, able_at(50)).owned, 0U);

    const BucketMask leaving = first.owned & ~first.claimable;
    first = step(map, 0, busy_at(70, leaving & (leaving - 1)));
    EXPECT_EQ(count(first.owned), 63);
    EXPECT_TRUE(first.news);
    first = step(map, 0, able_at(80));
    EXPECT_EQ(first.owned, first.claimable);

    const BucketShare taken = step(map, 1, able_at(90));
    EXPECT_EQ(taken.owned, leaving);
    EXPECT_EQ(taken.taken.floor, 60) << "from where the first stopped to claim of them";
    EXPECT_EQ(lowest_floor(map), 60) << "until the second has walked them";
    step(map, 1, able_at(90));
    EXPECT_EQ(lowest_floor(map), 80);
}

TEST(Buckets, ABucketThatMayStayAfterAllIsWalkedAgain) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(0));
    step(map, 1, able_at(0));
    const BucketShare closed = step(map, 0, busy_at(10, ALL_BUCKETS));
    bury(map, 1);
    const BucketShare again = step(map, 0, busy_at(40, ALL_BUCKETS));
    EXPECT_EQ(again.claimable, ALL_BUCKETS);
    EXPECT_EQ(again.taken.buckets, ALL_BUCKETS & ~closed.claimable);
    EXPECT_EQ(again.taken.floor, 10);
    EXPECT_EQ(lowest_floor(map), 10);
}

TEST(Buckets, WhatADeadWorkerHadGoesToTheOthersFromItsFloor) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(5));
    step(map, 1, able_at(5));
    step(map, 0, able_at(20));
    EXPECT_EQ(count(step(map, 1, able_at(30)).owned), 32);
    step(map, 1, busy_at(33, ALL_BUCKETS));
    bury(map, 1);
    const BucketShare all = step(map, 0, able_at(70));
    EXPECT_EQ(all.owned, ALL_BUCKETS);
    EXPECT_EQ(all.taken.floor, 33);
}

TEST(Buckets, AWorkerThatLosesTheBrokerHandsOverToOneThatHasIt) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(0));
    step(map, 1, able_at(0));
    step(map, 0, able_at(0));
    step(map, 1, able_at(0));
    BucketStep cut_off;
    cut_off.floor = 7;
    EXPECT_EQ(step(map, 0, cut_off).owned, 0U);
    EXPECT_EQ(step(map, 1, able_at(9)).owned, ALL_BUCKETS);
}

TEST(Buckets, WithoutAnybodyAbleTheyStayWhereTheyAre) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(0));
    const BucketShare share = step(map, 0, BucketStep{});
    EXPECT_EQ(share.owned, ALL_BUCKETS);
    EXPECT_EQ(share.claimable, ALL_BUCKETS);
}

TEST(Buckets, OneWorkerMoreOrLessMovesNoMoreThanItsShare) {
    BucketMap map = new_bucket_map();
    const auto settle = [&](int workers) {
        for (int round = 0; round < 3; round++) {
            for (int worker = 0; worker < workers; worker++) {
                step(map, worker, able_at(0));
            }
        }
    };
    for (int workers = 2; workers <= MOST_WORKERS; workers++) {
        settle(workers - 1);
        const BucketMap before = map;
        settle(workers);
        int moved = 0;
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            moved += map.owner[bucket] != before.owner[bucket] ? 1 : 0;
        }
        EXPECT_EQ(moved, fair_share(map.able, workers - 1)) << workers;
    }
}

TEST(Buckets, TheOrderingChangesOnlyWhenNobodyOwnsABucket) {
    BucketMap map = new_bucket_map();
    step(map, 0, able_at(0));
    step(map, 1, able_at(0));
    step(map, 0, able_at(0));
    step(map, 1, able_at(0));

    BucketStep changed = busy_at(10, mask_of(0));
    changed.ordering = Ordering::per_source;
    BucketShare first = step(map, 0, changed);
    EXPECT_EQ(first.claimable, 0U);
    EXPECT_EQ(first.owned, mask_of(0)) << "what is in hand stays";
    changed.idle = ALL_BUCKETS;
    EXPECT_EQ(step(map, 0, changed).owned, 0U);
    EXPECT_EQ(map.ordering, Ordering::per_key) << "the second goes by the old one still";

    changed.floor = 25;
    EXPECT_NE(step(map, 1, changed).owned, 0U);
    EXPECT_EQ(map.ordering, Ordering::per_source);
    const BucketShare taken = step(map, 0, changed);
    EXPECT_EQ(count(taken.owned), 32);
    EXPECT_EQ(taken.taken.floor, 10) << "any bucket may have got an event of any other";
}

TEST(Buckets, NoFloorOutlivesASequenceThatBeganAnew) {
    BucketMap map = new_bucket_map();
    raise_floors(map, 500);
    step(map, 0, able_at(500));
    bury(map, 0);
    forget_floors(map);
    EXPECT_EQ(lowest_floor(map), 0);
    EXPECT_EQ(step(map, 1, able_at(500)).taken.floor, 0);
}

// A world of workers that drain one relay by the map, come and go, lose the broker, are changed to
// another ordering, and die with events in hand. A bucket stands for a group: its events have to go
// in order, one at a time.
class World {
  public:
    explicit World(std::uint64_t seed)
        : seed_(seed),
          dice_(seed),
          workers_(static_cast<std::size_t>(dice_.between(1, MOST_WORKERS))) {}

    void run(int turns) {
        for (int i = 0; i < turns && !::testing::Test::HasFailure(); i++) {
            turn();
            check();
        }
    }

    // The disturbances end: all must be drained, by equal shares.
    void settle() {
        for (std::size_t i = 0; i < workers_.size(); i++) {
            if (!workers_[i].running && (i == 0 || dice_.chance(0.7))) {
                start(i);
            }
            workers_[i].ordering = ordering_;
            workers_[i].connected = i == 0 || dice_.chance(0.7);
        }
        for (int round = 0; round < 400 && !::testing::Test::HasFailure(); round++) {
            for (std::size_t i = 0; i < workers_.size(); i++) {
                confirm(i, 1.0);
                look(i);
            }
            check();
        }
        EXPECT_TRUE(std::all_of(events_.begin(), events_.end(), [](const Happening& event) {
            return event.ended;
        })) << rerun_hint(seed_);
        for (std::size_t i = 0; i < workers_.size(); i++) {
            EXPECT_EQ(count(owned_by(map_, static_cast<int>(i))),
                      fair_share(map_.able, static_cast<int>(i)))
                << rerun_hint(seed_);
        }
        EXPECT_EQ(lowest_floor(map_), last()) << rerun_hint(seed_);
    }

  private:
    static constexpr int NOBODY = -1;

    struct Happening {
        std::uint64_t hash = 0;
        bool ended = false;
        int holder = NOBODY;
    };

    struct Worker {
        bool running = false;
        bool connected = false;
        Ordering ordering = Ordering::per_key;
        std::int64_t cursor = 0;
        std::vector<std::int64_t> in_hand;
    };

    std::int64_t last() const { return static_cast<std::int64_t>(events_.size()); }
    Happening& event(std::int64_t seq) { return events_[static_cast<std::size_t>(seq - 1)]; }

    // Each ordering puts events into other buckets.
    static int bucket(const Happening& event, Ordering ordering) {
        return bucket_of(ordering == Ordering::per_key ? event.hash : event.hash >> 8);
    }

    std::int64_t floor(const Worker& worker) const {
        std::int64_t floor = worker.cursor;
        for (const std::int64_t seq : worker.in_hand) {
            floor = std::min(floor, seq - 1);
        }
        return floor;
    }

    void turn() {
        const auto i = static_cast<std::size_t>(dice_.below(workers_.size()));
        Worker& worker = workers_[i];
        switch (dice_.below(12)) {
            case 0:
                worker.running ? end(i) : start(i);
                break;
            case 1:
                worker.connected = dice_.chance(0.8);
                break;
            case 2:
                ordering_ = dice_.chance(0.1)
                                ? (dice_.chance(0.5) ? Ordering::per_key : Ordering::per_source)
                                : ordering_;
                worker.ordering = ordering_;
                break;
            case 3:
            case 4:
                events_.push_back({dice_.below(1 << 20)});
                break;
            case 5:
            case 6:
            case 7:
                confirm(i, 0.5);
                break;
            default:
                look(i);
                break;
        }
    }

    void start(std::size_t i) {
        Worker& worker = workers_[i];
        worker = Worker{};
        worker.running = true;
        worker.connected = dice_.chance(0.8);
        worker.ordering = ordering_;
        worker.cursor = persisted_;
        raise_floors(map_, persisted_);
    }

    // In good order or not, what it has in hand is free again.
    void end(std::size_t i) {
        Worker& worker = workers_[i];
        if (dice_.chance(0.5)) {
            publish(map_, static_cast<int>(i), false, floor(worker));
        }
        bury(map_, static_cast<int>(i));
        give_back(worker);
        worker = Worker{};
    }

    // A worker without a broker lets others have what it had claimed.
    void give_back(Worker& worker) {
        for (const std::int64_t seq : worker.in_hand) {
            event(seq).holder = NOBODY;
            worker.cursor = std::min(worker.cursor, seq - 1);
        }
        worker.in_hand.clear();
    }

    void confirm(std::size_t i, double probability) {
        Worker& worker = workers_[i];
        if (!worker.running || !worker.connected) {
            return;
        }
        std::erase_if(worker.in_hand, [&](std::int64_t seq) {
            if (!dice_.chance(probability)) {
                return false;
            }
            event(seq).ended = true;
            return true;
        });
    }

    void look(std::size_t i) {
        Worker& worker = workers_[i];
        if (!worker.running) {
            return;
        }
        if (!worker.connected) {
            give_back(worker);
        }
        BucketStep input;
        input.ordering = worker.ordering;
        input.able = worker.connected;
        input.floor = floor(worker);
        for (const std::int64_t seq : worker.in_hand) {
            input.idle &= ~mask_of(bucket(event(seq), map_.ordering));
        }
        const BucketShare share = step(map_, static_cast<int>(i), input);
        if (dice_.chance(0.2)) {
            persisted_ = std::max(persisted_, lowest_floor(map_));
        }
        worker.cursor = std::min(worker.cursor, share.taken.floor);
        if (worker.connected) {
            claim(i, share);
        }
    }

    // One event of a bucket at a time; the cursor stops where one has to wait.
    void claim(std::size_t i, const BucketShare& share) {
        Worker& worker = workers_[i];
        BucketMask busy = 0;
        for (const std::int64_t seq : worker.in_hand) {
            busy |= mask_of(bucket(event(seq), worker.ordering));
        }
        for (std::int64_t seq = worker.cursor + 1; seq <= last(); seq++) {
            Happening& each = event(seq);
            const BucketMask mask = mask_of(bucket(each, worker.ordering));
            const bool mine = !each.ended && (share.claimable & mask) != 0;
            if (mine && each.holder != static_cast<int>(i)) {
                if ((busy & mask) != 0 || dice_.chance(0.1)) {
                    return;
                }
                ASSERT_EQ(each.holder, NOBODY) << rerun_hint(seed_);
                ASSERT_TRUE(is_first(seq, worker.ordering)) << rerun_hint(seed_);
                each.holder = static_cast<int>(i);
                worker.in_hand.push_back(seq);
                busy |= mask;
            }
            worker.cursor = seq;
        }
    }

    bool is_first(std::int64_t seq, Ordering ordering) {
        const int mine = bucket(event(seq), ordering);
        for (std::int64_t before = 1; before < seq; before++) {
            if (!event(before).ended && bucket(event(before), ordering) == mine) {
                return false;
            }
        }
        return true;
    }

    void check() {
        std::int64_t lowest_open = last() + 1;
        for (std::int64_t seq = last(); seq > 0; seq--) {
            lowest_open = event(seq).ended ? lowest_open : seq;
        }
        ASSERT_LT(lowest_floor(map_), lowest_open) << rerun_hint(seed_);
        ASSERT_LT(persisted_, lowest_open) << rerun_hint(seed_);
        for (std::size_t i = 0; i < workers_.size(); i++) {
            const BucketMask owned = owned_by(map_, static_cast<int>(i));
            ASSERT_TRUE(workers_[i].running || owned == 0) << rerun_hint(seed_);
            for (const std::int64_t seq : workers_[i].in_hand) {
                ASSERT_TRUE(owned & mask_of(bucket(event(seq), map_.ordering)))
                    << rerun_hint(seed_);
            }
        }
        ASSERT_EQ(map_.closing & owned_by(map_, NO_OWNER), 0U) << rerun_hint(seed_);
    }

    std::uint64_t seed_;
    Dice dice_;
    std::vector<Worker> workers_;
    std::vector<Happening> events_;
    BucketMap map_ = new_bucket_map();
    Ordering ordering_ = Ordering::per_key;
    std::int64_t persisted_ = 0;
};

TEST(Buckets, WhateverHappensToTheWorkersNothingIsLostAndOrderIsKept) {
    for (int i = 0; i < scaled(100) && !::testing::Test::HasFailure(); i++) {
        World world(base_seed() + static_cast<std::uint64_t>(i));
        world.run(1500);
        world.settle();
    }
}

}  // namespace
}  // namespace outbox::test
