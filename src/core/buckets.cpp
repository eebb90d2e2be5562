#include "core/buckets.hpp"

#include <algorithm>
#include <bit>

namespace outbox {

namespace {

WorkerMask worker_bit(int worker) noexcept {
    return WorkerMask{1} << worker;
}

template <class Action>
void for_each_bucket(BucketMask buckets, Action action) {
    for (; buckets != 0; buckets &= buckets - 1) {
        action(std::countr_zero(buckets));
    }
}

BucketMask free_buckets(const BucketMap& map) noexcept {
    return owned_by(map, NO_OWNER);
}

/// The `count` buckets with the highest numbers.
BucketMask highest(BucketMask buckets, int count) noexcept {
    BucketMask result = 0;
    for (; count > 0 && buckets != 0; count--) {
        const BucketMask top = std::bit_floor(buckets);
        result |= top;
        buckets &= ~top;
    }
    return result;
}

/// The `count` buckets with the lowest numbers.
BucketMask lowest(BucketMask buckets, int count) noexcept {
    return buckets & ~highest(buckets, std::popcount(buckets) - count);
}

void set_owner(BucketMap& map, BucketMask buckets, int owner) noexcept {
    for_each_bucket(buckets,
                    [&](int bucket) { map.owner[bucket] = static_cast<std::int8_t>(owner); });
    map.epoch += buckets != 0 ? 1 : 0;
}

void set_closing(BucketMap& map, BucketMask closing) noexcept {
    map.epoch += closing != map.closing ? 1 : 0;
    map.closing = closing;
}

}  // namespace

BucketMap new_bucket_map() noexcept {
    BucketMap map{};
    std::fill(std::begin(map.owner), std::end(map.owner), NO_OWNER);
    map.ordering = Ordering::per_key;
    return map;
}

BucketMask owned_by(const BucketMap& map, int worker) noexcept {
    BucketMask owned = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        owned |= map.owner[bucket] == worker ? mask_of(bucket) : 0;
    }
    return owned;
}

int fair_share(WorkerMask able, int worker) noexcept {
    if ((able & worker_bit(worker)) == 0) {
        return 0;
    }
    const int workers = std::popcount(able);
    const int rank = std::popcount(able & (worker_bit(worker) - 1));
    return BUCKETS / workers + (rank < BUCKETS % workers ? 1 : 0);
}

bool publish(BucketMap& map, int worker, bool able, std::int64_t floor) noexcept {
    map.worker_floor[worker] = floor;
    const WorkerMask before = map.able;
    map.able = able ? before | worker_bit(worker) : before & ~worker_bit(worker);
    map.epoch += map.able != before ? 1 : 0;
    return map.able != before;
}

BucketMask to_give_up(const BucketMap& map, int worker, Ordering ordering) noexcept {
    const BucketMask owned = owned_by(map, worker);
    if (ordering != map.ordering) {
        return owned;
    }
    if (map.able == 0) {
        return 0;
    }
    const int surplus = std::popcount(owned) - fair_share(map.able, worker);
    // What is closing already comes first: it is the nearest to being idle.
    const BucketMask closing = lowest(owned & map.closing, surplus);
    return closing | highest(owned & ~map.closing, surplus - std::popcount(closing));
}

// The floor is frozen here and not where the bucket is given up: in between its owner walks on and
// leaves out the bucket's new events.
void close(BucketMap& map, int worker, BucketMask buckets) noexcept {
    const BucketMask open = buckets & owned_by(map, worker) & ~map.closing;
    for_each_bucket(open, [&](int bucket) { map.floor[bucket] = map.worker_floor[worker]; });
    set_closing(map, map.closing | open);
}

void give_up(BucketMap& map, int worker, BucketMask idle) noexcept {
    const BucketMask given = idle & owned_by(map, worker) & map.closing;
    set_owner(map, given, NO_OWNER);
    set_closing(map, map.closing & ~given);
}

bool adopt_ordering(BucketMap& map, Ordering ordering) noexcept {
    if (map.ordering != ordering && free_buckets(map) == ALL_BUCKETS) {
        map.ordering = ordering;
        map.epoch++;
        // Every bucket has other events now.
        const std::int64_t floor = *std::min_element(std::begin(map.floor), std::end(map.floor));
        std::fill(std::begin(map.floor), std::end(map.floor), floor);
    }
    return map.ordering == ordering;
}

Taken take(BucketMap& map, int worker, Ordering ordering) noexcept {
    Taken taken;
    if (map.ordering != ordering) {
        return taken;
    }
    const BucketMask owned = owned_by(map, worker);
    const BucketMask reopened = owned & map.closing & ~to_give_up(map, worker, ordering);
    const int room = fair_share(map.able, worker) - std::popcount(owned);
    const BucketMask fresh = lowest(free_buckets(map), room);
    set_closing(map, map.closing & ~reopened);
    set_owner(map, fresh, worker);
    taken.buckets = reopened | fresh;
    for_each_bucket(taken.buckets,
                    [&](int bucket) { taken.floor = std::min(taken.floor, map.floor[bucket]); });
    map.worker_floor[worker] = std::min(map.worker_floor[worker], taken.floor);
    return taken;
}

void bury(BucketMap& map, int worker) noexcept {
    publish(map, worker, false, map.worker_floor[worker]);
    close(map, worker, ALL_BUCKETS);
    give_up(map, worker, ALL_BUCKETS);
}

std::int64_t lowest_floor(const BucketMap& map) noexcept {
    std::int64_t result = std::numeric_limits<std::int64_t>::max();
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        const bool own_floor =
            map.owner[bucket] == NO_OWNER || (map.closing & mask_of(bucket)) != 0;
        result =
            std::min(result, own_floor ? map.floor[bucket] : map.worker_floor[map.owner[bucket]]);
    }
    return result;
}

void raise_floors(BucketMap& map, std::int64_t floor) noexcept {
    for (std::int64_t& each : map.floor) {
        each = std::max(each, floor);
    }
}

void forget_floors(BucketMap& map) noexcept {
    std::fill(std::begin(map.floor), std::end(map.floor), 0);
    std::fill(std::begin(map.worker_floor), std::end(map.worker_floor), 0);
    map.epoch++;
}

BucketShare step(BucketMap& map, int worker, const BucketStep& input) noexcept {
    BucketShare share;
    share.news = publish(map, worker, input.able, input.floor);
    close(map, worker, to_give_up(map, worker, input.ordering));
    const BucketMask free_before = free_buckets(map);
    const Ordering ordering_before = map.ordering;
    give_up(map, worker, input.idle & to_give_up(map, worker, input.ordering));
    adopt_ordering(map, input.ordering);
    share.taken = take(map, worker, input.ordering);
    share.owned = owned_by(map, worker);
    share.claimable = share.owned & ~map.closing;
    share.news =
        share.news || map.ordering != ordering_before || (free_buckets(map) & ~free_before) != 0;
    return share;
}

}  // namespace outbox
