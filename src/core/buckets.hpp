#pragma once

#include <cstdint>
#include <limits>

#include "core/ordering.hpp"

namespace outbox {

/// The groups of a relay fall into so many buckets, and each bucket belongs to one drainer at most.
inline constexpr int BUCKETS = 64;
/// The drainers of a database have the numbers 0 to MOST_WORKERS - 1.
inline constexpr int MOST_WORKERS = 16;
inline constexpr std::int8_t NO_OWNER = -1;

/// Bit b: bucket b.
using BucketMask = std::uint64_t;
/// Bit w: worker w.
using WorkerMask = std::uint32_t;

inline constexpr BucketMask ALL_BUCKETS = ~BucketMask{0};

/// The bucket of a group, by the group's hash.
constexpr int bucket_of(std::uint64_t hash) noexcept {
    return static_cast<int>(hash & (BUCKETS - 1));
}

constexpr BucketMask mask_of(int bucket) noexcept {
    return BucketMask{1} << bucket;
}

/// Who works on which bucket of a relay, and from which number on. Plain data without initialisers,
/// so that it can live in shared memory; new_bucket_map() makes one.
///
/// A *floor* is a number up to which every event has ended or is deferred. A bucket's own floor
/// counts while nobody claims of it, a worker's floor counts for the buckets it claims of. Floors
/// may be too low, which costs a walk; they must never be too high.
///
/// A bucket changes hands in three steps, each of them under the caller's lock: its owner closes it
/// (claims nothing more of it), gives it up when nothing of it is in hand any more, and whoever has
/// room takes it.
struct BucketMap {
    std::int8_t owner[BUCKETS];
    BucketMask closing;           ///< owned buckets of which nothing is claimed any more
    std::int64_t floor[BUCKETS];  ///< of free and closing buckets
    WorkerMask able;              ///< workers that can publish
    std::int64_t worker_floor[MOST_WORKERS];
    Ordering ordering;    ///< by which events fall into groups, and so into buckets
    std::uint64_t epoch;  ///< moves with all of the above but the workers' floors
};

/// All buckets free, nothing known of them.
BucketMap new_bucket_map() noexcept;

BucketMask owned_by(const BucketMap& map, int worker) noexcept;

/// How many buckets a worker should have: the able ones share them equally.
int fair_share(WorkerMask able, int worker) noexcept;

/// Says how far the worker is, and whether it can publish. True when the latter is news.
bool publish(BucketMap& map, int worker, bool able, std::int64_t floor) noexcept;

/// The buckets that the worker owns and should not: those beyond its fair share, and all of them
/// when it works by another ordering than the map. While nobody is able everybody keeps what he
/// has.
BucketMask to_give_up(const BucketMap& map, int worker, Ordering ordering) noexcept;

/// Closes those of the worker's buckets; each keeps the floor that the worker has now.
void close(BucketMap& map, int worker, BucketMask buckets) noexcept;

/// Frees those of the worker's closed buckets. The caller knows that nothing of them is in hand:
/// neither unconfirmed nor confirmed and not yet written.
void give_up(BucketMap& map, int worker, BucketMask idle) noexcept;

/// Makes the ordering the map's, which is possible while no bucket is owned. Gives whether it is
/// the map's now.
bool adopt_ordering(BucketMap& map, Ordering ordering) noexcept;

struct Taken {
    BucketMask buckets = 0;
    std::int64_t floor = std::numeric_limits<std::int64_t>::max();  ///< the lowest of theirs
};
/// Gives the worker free buckets up to its fair share, and opens again what it had closed and may
/// keep after all. Its floor goes down to theirs.
Taken take(BucketMap& map, int worker, Ordering ordering) noexcept;

/// Frees all buckets of a worker that is gone; they are as far as it said last.
void bury(BucketMap& map, int worker) noexcept;

/// Up to here every event of the relay has ended or is deferred.
std::int64_t lowest_floor(const BucketMap& map) noexcept;

/// Says that this floor counts for every bucket; a persisted one does.
void raise_floors(BucketMap& map, std::int64_t floor) noexcept;

/// Says that no floor counts any more, as the numbers began anew.
void forget_floors(BucketMap& map) noexcept;

/// What a worker tells when it looks at the map.
struct BucketStep {
    Ordering ordering = Ordering::per_key;  ///< the one it works by
    bool able = false;                      ///< it can publish
    BucketMask idle = ALL_BUCKETS;          ///< nothing of these is in hand
    std::int64_t floor = 0;                 ///< for the buckets that it claims of

    bool operator==(const BucketStep&) const = default;
};

/// What a worker may work on from then on.
struct BucketShare {
    BucketMask owned = 0;
    BucketMask claimable = 0;  ///< owned and not closing
    Taken taken;               ///< of those the ones that are new, to be walked from their floor
    bool news = false;         ///< others should look at the map
};

/// All that a worker has to do before it claims. The caller holds the lock.
BucketShare step(BucketMap& map, int worker, const BucketStep& input) noexcept;

}  // namespace outbox
