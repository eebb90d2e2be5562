#pragma once

#include <optional>

#include "core/buckets.hpp"
#include "postgres/slot.hpp"

namespace outbox::postgres {

/// A drainer's view of how the drainers of its database share the relay. One per process.
///
/// Nobody has to look for dead peers: a process that ends gives up what it has on its way out
/// (bury_buckets), and one that cannot takes the whole shared memory with it.
class Buckets {
  public:
    explicit Buckets(const Slot& slot) : shared_(slot.buckets()), slot_(slot) {}

    /// Tells the persisted floor, which counts for all buckets. To be called before the first step.
    void learn_floor(std::int64_t persisted);

    /// Publishes how far this drainer is, gives up what it should and can, takes what it may, and
    /// wakes the others if that is news for them. To be called before a claim takes its snapshot:
    /// what a former owner has settled is visible in a snapshot that is taken later. Cheap while
    /// nothing changes.
    BucketShare step(const BucketStep& input);

    /// Up to here every event of the relay has ended or is deferred: what may be persisted.
    std::int64_t lowest_floor() const;

    /// The sequence began anew: no floor counts any more.
    void forget_floors();

    /// At the end, with nothing in hand or not: others take everything from `floor` on. It is in
    /// lowest_floor() afterwards.
    void leave(std::int64_t floor);

  private:
    BucketShare look(const BucketStep& input);

    SharedBuckets& shared_;
    const Slot& slot_;
    std::uint64_t seen_epoch_ = 0;
    std::optional<BucketStep> last_input_;
    BucketShare last_share_;
};

/// Frees the buckets of a drainer that ends and wakes the others. The caller holds the lock.
void bury_buckets(DrainerSlot& slot);

}  // namespace outbox::postgres
