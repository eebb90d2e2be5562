// outbox.batch_size_counts(), which outbox.stat_batch_sizes shows, and outbox.stat_reset().
#include "postgres/prelude.hpp"
#include "postgres/shared_state.hpp"

extern "C" {
#include "funcapi.h"
#include "utils/tuplestore.h"
}

namespace outbox::postgres {

namespace {

/// Calls `action` with each slot of this database's drainers. The caller holds the lock.
template <class Action>
void for_each_own_slot(SharedState* state, Action action) {
    for (int i = 0; i < state->slot_count && state->slots[i].in_use; i++) {
        if (state->slots[i].database == MyDatabaseId) {
            action(state->slots[i]);
        }
    }
}

void put_class(ReturnSetInfo* result, int index, int64 batches) {
    const bool open = index == BATCH_SIZE_CLASSES - 1;
    Datum values[] = {Int32GetDatum(open ? 0 : BATCH_SIZE_LIMITS[index]), Int64GetDatum(batches)};
    bool nulls[] = {open, false};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

void put_batch_sizes(ReturnSetInfo* result) {
    static_assert(lengthof(BATCH_SIZE_LIMITS) == BATCH_SIZE_CLASSES - 1);
    uint64 batches[BATCH_SIZE_CLASSES] = {};
    if (SharedState* state = shared_state()) {
        const SlotLock lock(LW_SHARED);
        for_each_own_slot(state, [&](DrainerSlot& slot) {
            for (int i = 0; i < BATCH_SIZE_CLASSES; i++) {
                batches[i] += pg_atomic_read_u64(&slot.counters.batch_sizes[i]);
            }
        });
    }
    for (int i = 0; i < BATCH_SIZE_CLASSES; i++) {
        put_class(result, i, static_cast<int64>(batches[i]));
    }
}

// Drainers go on counting meanwhile; each event is counted before or after.
void reset_counters() {
    SharedState* state = shared_state();
    if (state == nullptr) {
        return;
    }
    const TimestampTz now = GetCurrentTimestamp();
    const SlotLock lock(LW_EXCLUSIVE);
    for_each_own_slot(state, [now](DrainerSlot& slot) {
        for_each_counter(slot.counters,
                         [](pg_atomic_uint64& counter) { pg_atomic_write_u64(&counter, 0); });
        slot.stats_reset = now;
    });
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_batch_size_counts);
PG_FUNCTION_INFO_V1(outbox_drainer_stat_reset);

/// outbox.batch_size_counts() returns setof record
OBD_EXPORT Datum outbox_drainer_batch_size_counts(PG_FUNCTION_ARGS) {
    InitMaterializedSRF(fcinfo, 0);
    outbox::postgres::put_batch_sizes(reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    PG_RETURN_NULL();
}

/// outbox.stat_reset() returns void
OBD_EXPORT Datum outbox_drainer_stat_reset(PG_FUNCTION_ARGS) {
    (void)fcinfo;
    outbox::postgres::reset_counters();
    PG_RETURN_VOID();
}

}  // extern "C"
