#include "postgres/slot.hpp"

#include <algorithm>

#include "postgres/bucket_map.hpp"

extern "C" {
#include "access/xlog.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

template <std::size_t N>
void copy_text(char (&target)[N], std::string_view text) {
    const std::size_t length = std::min(text.size(), N - 1);
    memcpy(target, text.data(), length);
    target[length] = '\0';
}

// The caller holds the lock.
void set_connected(DrainerSlot& slot, bool connected, TimestampTz now) {
    slot.connected_since = connected ? now : 0;
    if (connected) {
        slot.disconnected_since = 0;
    } else if (slot.disconnected_since == 0) {
        slot.disconnected_since = now;
    }
}

// Runs at any exit, also one by FATAL: the launcher learns that the process is gone.
void detach(int, Datum index) {
    SharedState* state = shared_state();
    DrainerSlot& slot = state->slots[DatumGetInt32(index)];
    LWLockAcquire(state->lock, LW_EXCLUSIVE);
    if (slot.pid == MyProcPid) {
        bury_buckets(slot);
        end_broker_requests(DatumGetInt32(index));
        slot.pid = 0;
        set_connected(slot, false, GetCurrentTimestamp());
        slot.broker[0] = '\0';
        pg_atomic_write_u32(&slot.procno, NO_PROC);
        pg_atomic_write_u32(&slot.in_flight, 0);
        pg_atomic_write_u32(&slot.state, static_cast<uint32>(DrainerState::starting));
        pg_atomic_write_u64(&slot.state_since, static_cast<uint64>(GetCurrentTimestamp()));
    }
    LWLockRelease(state->lock);
    set_latch_of(state->launcher_procno);
}

}  // namespace

uint32 own_procno() {
#if PG_VERSION_NUM >= 170000
    return static_cast<uint32>(MyProcNumber);
#else
    return static_cast<uint32>(MyProc->pgprocno);
#endif
}

bool Slot::attach(int index, uint64 generation) {
    SharedState* state = shared_state();
    // Before anything that can fail, so that it runs last of all exit callbacks.
    before_shmem_exit(detach, Int32GetDatum(index));
    const SlotLock lock(LW_EXCLUSIVE);
    DrainerSlot& slot = state->slots[index];
    DrainerSlot* first = OidIsValid(slot.database) ? first_slot(slot.database) : nullptr;
    if (first == nullptr || slot.generation != generation || slot.pid != 0) {
        return false;
    }
    slot.pid = MyProcPid;
    pg_atomic_write_u32(&slot.procno, own_procno());
    slot_ = &slot;
    buckets_ = &first->buckets;
    index_ = index;
    set_state(DrainerState::starting);
    return true;
}

Incarnation Slot::incarnation() const {
    Incarnation self;
    self.system_identifier = GetSystemIdentifier();
    self.timeline = GetWALInsertionTimeLine();
    self.server_start = shared_state()->server_start;
    self.slot = index_;
    self.generation = slot_->generation;
    return self;
}

std::string_view Slot::database_name() const {
    return NameStr(slot_->database_name);
}

void Slot::set_state(DrainerState state) {
    if (state != state_ || pg_atomic_read_u64(&slot_->state_since) == 0) {
        state_ = state;
        pg_atomic_write_u32(&slot_->state, static_cast<uint32>(state));
        pg_atomic_write_u64(&slot_->state_since, static_cast<uint64>(GetCurrentTimestamp()));
    }
}

void Slot::set_in_flight(std::size_t count) {
    pg_atomic_write_u32(&slot_->in_flight, static_cast<uint32>(count));
}

void Slot::set_broker(std::string_view broker, bool connected) {
    const TimestampTz now = GetCurrentTimestamp();
    const SlotLock lock(LW_EXCLUSIVE);
    copy_text(slot_->broker, broker);
    set_connected(*slot_, connected, now);
}

void Slot::set_error(std::string_view error) {
    const TimestampTz now = GetCurrentTimestamp();
    const SlotLock lock(LW_EXCLUSIVE);
    copy_text(slot_->last_error, error);
    slot_->last_error_at = now;
}

void Slot::count_batch_size(std::size_t rows) {
    const auto* const limit = std::lower_bound(std::begin(BATCH_SIZE_LIMITS),
                                               std::end(BATCH_SIZE_LIMITS), static_cast<int>(rows));
    const auto size_class = limit - std::begin(BATCH_SIZE_LIMITS);
    pg_atomic_fetch_add_u64(&counters().batch_sizes[size_class], 1);
}

bool Slot::take_wake() {
    return pg_atomic_exchange_u32(&slot_->wake, 0) != 0;
}

bool Slot::take_shares_changed() {
    return pg_atomic_exchange_u32(&slot_->shares_changed, 0) != 0;
}

bool Slot::take_recheck() {
    return pg_atomic_exchange_u32(&slot_->recheck, 0) != 0;
}

bool Slot::take_relay_changed() {
    return pg_atomic_exchange_u32(&slot_->relay_changed, 0) != 0;
}

bool Slot::take_asked() {
    return pg_atomic_exchange_u32(&slot_->asked, 0) != 0;
}

void Slot::set_halted_on(std::int64_t seq) {
    pg_atomic_write_u64(&slot_->halted_on, static_cast<uint64>(seq));
}

// The launcher starts the other drainers of a database once the first has found the extension.
void Slot::set_present() {
    bool is_news = false;
    {
        const SlotLock lock(LW_EXCLUSIVE);
        is_news = !slot_->present;
        slot_->present = true;
        slot_->absent = false;
    }
    if (is_news) {
        wake_launcher_process();
    }
}

void Slot::set_absent() {
    const SlotLock lock(LW_EXCLUSIVE);
    slot_->present = false;
    slot_->absent = true;
}

void Slot::ask_restart(Duration delay) {
    const TimestampTz now = GetCurrentTimestamp();
    const SlotLock lock(LW_EXCLUSIVE);
    slot_->restart_now = true;
    slot_->next_start =
        std::max(slot_->next_start, TimestampTzPlusMilliseconds(now, delay.count()));
}

bool Slot::is_alive(const Incarnation& other) const {
    SharedState* state = shared_state();
    if (other.slot < 0 || other.slot >= state->slot_count) {
        return false;
    }
    const SlotLock lock(LW_SHARED);
    const DrainerSlot& slot = state->slots[other.slot];
    return slot.pid != 0 && slot.database == MyDatabaseId && slot.generation == other.generation;
}

}  // namespace outbox::postgres
