#include "postgres/shared_state.hpp"

extern "C" {
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

constexpr const char* NAME = "outbox_drainer";

SharedState* state = nullptr;
shmem_request_hook_type previous_request_hook = nullptr;
shmem_startup_hook_type previous_startup_hook = nullptr;

// A drainer is a background worker, so there can never be more of them than max_worker_processes.
// Twice: of databases and of further drainers beside the first, neither of which are to take the
// other's slots. Databases that were looked at and have no extension keep a slot too, hence the
// room beside.
int wanted_slots() {
    return 2 * max_worker_processes + 256;
}

Size wanted_size() {
    return add_size(offsetof(SharedState, slots),
                    mul_size(sizeof(DrainerSlot), static_cast<Size>(wanted_slots())));
}

void request_shared_memory() {
    if (previous_request_hook != nullptr) {
        previous_request_hook();
    }
    RequestAddinShmemSpace(wanted_size());
    RequestNamedLWLockTranche(NAME, 1);
}

void add_counters(DrainerCounters& sum, DrainerCounters& counters) {
    // Both are of one type, so the counters come in one order.
    uint64 values[sizeof(DrainerCounters) / sizeof(pg_atomic_uint64)];
    int count = 0;
    for_each_counter(counters, [&](pg_atomic_uint64& counter) {
        values[count++] = pg_atomic_read_u64(&counter);
    });
    count = 0;
    for_each_counter(sum, [&](pg_atomic_uint64& counter) {
        pg_atomic_fetch_add_u64(&counter, static_cast<int64>(values[count++]));
    });
}

void init_counters(DrainerCounters& counters) {
    for_each_counter(counters, [](pg_atomic_uint64& counter) { pg_atomic_init_u64(&counter, 0); });
}

void init_buckets(SharedBuckets& buckets) {
    buckets.map = new_bucket_map();
    pg_atomic_init_u64(&buckets.epoch, buckets.map.epoch);
}

void init_slot(DrainerSlot& slot) {
    pg_atomic_init_u32(&slot.start_requested, 0);
    pg_atomic_init_u32(&slot.procno, NO_PROC);
    pg_atomic_init_u32(&slot.wake, 0);
    pg_atomic_init_u32(&slot.shares_changed, 0);
    pg_atomic_init_u32(&slot.recheck, 0);
    pg_atomic_init_u32(&slot.state, static_cast<uint32>(DrainerState::starting));
    pg_atomic_init_u64(&slot.state_since, 0);
    pg_atomic_init_u32(&slot.in_flight, 0);
    pg_atomic_init_u32(&slot.relay_changed, 0);
    pg_atomic_init_u32(&slot.asked, 0);
    pg_atomic_init_u64(&slot.halted_on, 0);
    init_counters(slot.counters);
    init_buckets(slot.buckets);
}

void startup_shared_memory() {
    if (previous_startup_hook != nullptr) {
        previous_startup_hook();
    }
    bool found = false;
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    state = static_cast<SharedState*>(ShmemInitStruct(NAME, wanted_size(), &found));
    if (!found) {
        memset(state, 0, wanted_size());
        state->lock = &GetNamedLWLockTranche(NAME)->lock;
        state->server_start = static_cast<uint64>(GetCurrentTimestamp());
        state->slot_count = wanted_slots();
        pg_atomic_init_u32(&state->launcher_procno, NO_PROC);
        pg_atomic_init_u32(&state->launcher_wake, 0);
        for (int i = 0; i < state->slot_count; i++) {
            init_slot(state->slots[i]);
        }
    }
    LWLockRelease(AddinShmemInitLock);
}

void ask_launcher(DrainerSlot& slot) {
    pg_atomic_write_u32(&slot.start_requested, 1);
    wake_launcher_process();
}

}  // namespace

SlotLock::SlotLock(LWLockMode mode) {
    LWLockAcquire(state->lock, mode);
}

SlotLock::~SlotLock() {
    LWLockRelease(state->lock);
}

void rename_slot(DrainerSlot& slot, const char* database_name) {
    namestrcpy(&slot.database_name, database_name);
}

// Others scan the slots without the lock: in_use never goes down and procno never becomes a wrong
// number.
void take_slot(DrainerSlot& slot, Oid database, const char* database_name, int worker) {
    slot.database = InvalidOid;
    init_slot(slot);
    slot.worker = worker;
    slot.present = false;
    slot.absent = false;
    slot.restart_now = false;
    slot.failures = 0;
    slot.next_start = 0;
    slot.last_started = 0;
    slot.running = false;
    slot.pid = 0;
    slot.broker[0] = '\0';
    slot.connected_since = 0;
    slot.disconnected_since = 0;
    slot.last_error[0] = '\0';
    slot.last_error_at = 0;
    slot.stats_reset = GetCurrentTimestamp();
    rename_slot(slot, database_name);
    pg_write_barrier();
    slot.database = database;
    slot.in_use = true;
}

void free_slot(DrainerSlot& slot) {
    DrainerSlot* first = slot.worker > 0 ? first_slot(slot.database) : nullptr;
    if (first != nullptr) {
        add_counters(first->counters, slot.counters);
    }
    slot.database = InvalidOid;
    slot.running = false;
}

DrainerSlot* first_slot(Oid database) {
    for (int i = 0; i < state->slot_count && state->slots[i].in_use; i++) {
        DrainerSlot& slot = state->slots[i];
        if (slot.database == database && slot.worker == 0) {
            return &slot;
        }
    }
    return nullptr;
}

int most_drainers() {
    return max_worker_processes;
}

SharedState* shared_state() {
    return state;
}

void install_shared_state() {
    previous_request_hook = shmem_request_hook;
    shmem_request_hook = request_shared_memory;
    previous_startup_hook = shmem_startup_hook;
    shmem_startup_hook = startup_shared_memory;
}

void wake_drainers(Oid database, WakeFor what) {
    if (state == nullptr) {
        return;
    }
    for (int i = 0; i < state->slot_count; i++) {
        DrainerSlot& slot = state->slots[i];
        if (!slot.in_use) {
            break;
        }
        if (slot.database != database) {
            continue;
        }
        // An event was written in a database that is said to have no extension: that was an old
        // answer.
        if (slot.absent && what != WakeFor::extension) {
            ask_launcher(slot);
        }
        if (what == WakeFor::extension) {
            pg_atomic_write_u32(&slot.recheck, 1);
        }
        if (what == WakeFor::relay) {
            pg_atomic_write_u32(&slot.relay_changed, 1);
        }
        // The drainer clears the flag before it looks, so a flag that is up means that it will
        // look. It leaves the flag up while it cannot look, and costs producers no signal then.
        if (pg_atomic_exchange_u32(&slot.wake, 1) == 0 || what != WakeFor::rows) {
            set_latch_of(slot.procno);
        }
    }
}

// A process number may be stale by the time its latch is set: that wakes somebody for nothing, and
// latches are made for spurious wakes.
void set_latch_of(pg_atomic_uint32& procno) {
    uint32 number = pg_atomic_read_u32(&procno);
    if (number != NO_PROC) {
        SetLatch(&GetPGProcByNumber(number)->procLatch);
    }
}

void wake_launcher_process() {
    pg_atomic_write_u32(&state->launcher_wake, 1);
    set_latch_of(state->launcher_procno);
}

void wake_launcher(Oid database) {
    if (state == nullptr) {
        return;
    }
    for (int i = 0; i < state->slot_count; i++) {
        DrainerSlot& slot = state->slots[i];
        if (!slot.in_use) {
            break;
        }
        if (slot.database == database) {
            pg_atomic_write_u32(&slot.start_requested, 1);
        }
    }
    wake_launcher_process();
}

}  // namespace outbox::postgres
