#include "postgres/bucket_map.hpp"

namespace outbox::postgres {

namespace {

void wake_others(Oid database, int worker) {
    SharedState* state = shared_state();
    for (int i = 0; i < state->slot_count && state->slots[i].in_use; i++) {
        DrainerSlot& slot = state->slots[i];
        if (slot.database == database && slot.worker != worker) {
            pg_atomic_write_u32(&slot.shares_changed, 1);
            set_latch_of(slot.procno);
        }
    }
}

void show_epoch(SharedBuckets& buckets) {
    pg_atomic_write_u64(&buckets.epoch, buckets.map.epoch);
}

}  // namespace

void Buckets::learn_floor(std::int64_t persisted) {
    const SlotLock lock(LW_EXCLUSIVE);
    raise_floors(shared_.map, persisted);
}

// The epoch is read before the lock is taken: a change in between is seen by the next step.
BucketShare Buckets::step(const BucketStep& input) {
    const std::uint64_t epoch = pg_atomic_read_u64(&shared_.epoch);
    BucketStep unchanged = input;
    if (last_input_.has_value()) {
        unchanged.idle = last_input_->idle;
    }
    const BucketMask closing = last_share_.owned & ~last_share_.claimable;
    if (epoch != seen_epoch_ || last_input_ != unchanged || (closing & input.idle) != 0) {
        last_share_ = look(input);
        last_input_ = input;
        seen_epoch_ = epoch;
    } else {
        last_share_.taken = {};
        last_share_.news = false;
    }
    return last_share_;
}

BucketShare Buckets::look(const BucketStep& input) {
    BucketShare share;
    {
        const SlotLock lock(LW_EXCLUSIVE);
        share = outbox::step(shared_.map, slot_.worker(), input);
        show_epoch(shared_);
    }
    if (share.news) {
        wake_others(slot_.database(), slot_.worker());
    }
    return share;
}

std::int64_t Buckets::lowest_floor() const {
    const SlotLock lock(LW_SHARED);
    return outbox::lowest_floor(shared_.map);
}

void Buckets::forget_floors() {
    const SlotLock lock(LW_EXCLUSIVE);
    outbox::forget_floors(shared_.map);
    show_epoch(shared_);
}

void Buckets::leave(std::int64_t floor) {
    {
        const SlotLock lock(LW_EXCLUSIVE);
        publish(shared_.map, slot_.worker(), false, floor);
        bury(shared_.map, slot_.worker());
        show_epoch(shared_);
    }
    last_input_.reset();
    wake_others(slot_.database(), slot_.worker());
}

void bury_buckets(DrainerSlot& slot) {
    DrainerSlot* first = first_slot(slot.database);
    if (first == nullptr) {
        return;
    }
    const std::uint64_t before = first->buckets.map.epoch;
    bury(first->buckets.map, slot.worker);
    show_epoch(first->buckets);
    if (first->buckets.map.epoch != before) {
        wake_others(slot.database, slot.worker);
    }
}

}  // namespace outbox::postgres
