// outbox.drainer_slots(), which outbox.stat_drainer shows.
#include "postgres/prelude.hpp"
#include "postgres/shared_state.hpp"

extern "C" {
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
}

namespace outbox::postgres {

namespace {

constexpr int COLUMNS = 30;

/// A row under construction. Raises an error where memory ends, so it must be filled without a
/// lock.
struct Row {
    int count = 0;
    Datum values[COLUMNS] = {};
    bool nulls[COLUMNS] = {};

    void add(Datum value, bool known = true) {
        values[count] = value;
        nulls[count] = !known;
        count++;
    }
    void add_text(const char* text, bool known) {
        add(known ? CStringGetTextDatum(text) : Datum{0}, known);
    }
    void add_time(TimestampTz time, bool known) { add(TimestampTzGetDatum(time), known); }
    void add_counter(pg_atomic_uint64& counter) {
        add(Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&counter))));
    }
};

/// What the lock protects of a slot, copied.
struct SlotCopy {
    bool shown;
    Oid database_oid;
    NameData database;
    int worker;
    int pid;
    char broker[sizeof(DrainerSlot::broker)];
    TimestampTz connected_since;
    TimestampTz disconnected_since;
    char last_error[sizeof(DrainerSlot::last_error)];
    TimestampTz last_error_at;
    TimestampTz stats_reset;
};

// A slot of a database that has no extension, or was not looked at yet, is the launcher's note
// only.
void copy_slot(SharedState* state, DrainerSlot& slot, SlotCopy& copy) {
    LWLockAcquire(state->lock, LW_SHARED);
    copy.shown = slot.in_use && OidIsValid(slot.database) && !slot.absent &&
                 (slot.present || slot.last_error[0] != '\0');
    copy.database_oid = slot.database;
    copy.database = slot.database_name;
    copy.worker = slot.worker;
    copy.pid = slot.pid;
    strlcpy(copy.broker, slot.broker, sizeof(copy.broker));
    copy.connected_since = slot.connected_since;
    copy.disconnected_since = slot.disconnected_since;
    strlcpy(copy.last_error, slot.last_error, sizeof(copy.last_error));
    copy.last_error_at = slot.last_error_at;
    copy.stats_reset = slot.stats_reset;
    LWLockRelease(state->lock);
}

void add_state(Row& row, const SlotCopy& copy, DrainerSlot& slot) {
    bool runs = copy.pid != 0;
    auto state = static_cast<DrainerState>(pg_atomic_read_u32(&slot.state));
    auto since = static_cast<TimestampTz>(pg_atomic_read_u64(&slot.state_since));
    row.add(Int32GetDatum(copy.pid), runs);
    row.add_text(to_string(state), runs);
    row.add_time(since, runs && since != 0);
    row.add_text(copy.broker, runs && copy.broker[0] != '\0');
    row.add_time(copy.connected_since, runs && copy.connected_since != 0);
    row.add_time(copy.disconnected_since, copy.disconnected_since != 0);
    row.add_text(copy.last_error, copy.last_error[0] != '\0');
    row.add_time(copy.last_error_at, copy.last_error_at != 0);
}

void add_work(Row& row, const SlotCopy& copy, DrainerSlot& slot) {
    const bool runs = copy.pid != 0;
    const auto halted_on = static_cast<int64>(pg_atomic_read_u64(&slot.halted_on));
    row.add(Int32GetDatum(static_cast<int32>(pg_atomic_read_u32(&slot.in_flight))), runs);
    row.add(Int64GetDatum(halted_on), runs && halted_on != 0);
}

// In the order of the function's columns.
void add_counters(Row& row, DrainerCounters& counters) {
    for (pg_atomic_uint64* counter :
         {&counters.claimed, &counters.published, &counters.failed, &counters.rejected,
          &counters.dead, &counters.deferred, &counters.held, &counters.released,
          &counters.expired_leases, &counters.stale_marks, &counters.reconnects, &counters.batches,
          &counters.bytes, &counters.collected, &counters.replayed, &counters.start_failures}) {
        row.add_counter(*counter);
    }
}

void put_slot(ReturnSetInfo* result, SharedState* state, DrainerSlot& slot) {
    SlotCopy copy;
    copy_slot(state, slot, copy);
    if (!copy.shown) {
        return;
    }
    Row row;
    row.add(ObjectIdGetDatum(copy.database_oid));
    row.add_text(NameStr(copy.database), true);
    row.add(Int32GetDatum(copy.worker));
    add_state(row, copy, slot);
    add_work(row, copy, slot);
    add_counters(row, slot.counters);
    row.add_time(copy.stats_reset, copy.stats_reset != 0);
    Assert(row.count == COLUMNS);
    tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_drainer_slots);

/// outbox.drainer_slots() returns setof record
OBD_EXPORT Datum outbox_drainer_drainer_slots(PG_FUNCTION_ARGS) {
    InitMaterializedSRF(fcinfo, 0);
    auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    outbox::postgres::SharedState* state = outbox::postgres::shared_state();
    int count = state == nullptr ? 0 : state->slot_count;
    for (int i = 0; i < count; i++) {
        outbox::postgres::put_slot(result, state, state->slots[i]);
    }
    PG_RETURN_NULL();
}

}  // extern "C"
