#pragma once

#include "postgres/prelude.hpp"

extern "C" {
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"
}

#include "core/buckets.hpp"
#include "core/drainer_state.hpp"
#include "postgres/broker_requests.hpp"

namespace outbox::postgres {

/// Upper ends of the histogram of batch sizes; the last class has none.
inline constexpr int BATCH_SIZE_LIMITS[] = {1, 10, 50, 100, 500, 1000};
inline constexpr int BATCH_SIZE_CLASSES = 7;

/// Counters of one drainer. Written by the drainer alone (start_failures: by the launcher), read by
/// anybody without a lock; they go on over restarts of the drainer.
struct DrainerCounters {
    pg_atomic_uint64 claimed;
    pg_atomic_uint64 published;
    pg_atomic_uint64 failed;    ///< attempts charged, the last ones of dead events included
    pg_atomic_uint64 rejected;  ///< events
    pg_atomic_uint64 dead;      ///< events
    pg_atomic_uint64 deferred;  ///< events put behind another one of their group
    pg_atomic_uint64 held;      ///< events put off uncharged for what is missing at the broker
    pg_atomic_uint64 released;
    pg_atomic_uint64 expired_leases;
    pg_atomic_uint64 stale_marks;
    pg_atomic_uint64 reconnects;
    pg_atomic_uint64 batches;
    pg_atomic_uint64 bytes;
    pg_atomic_uint64 start_failures;
    pg_atomic_uint64 collected;                        ///< events removed after their retention
    pg_atomic_uint64 replayed;                         ///< messages sent again by outbox.replay
    pg_atomic_uint64 batch_sizes[BATCH_SIZE_CLASSES];  ///< batches by size, see BATCH_SIZE_LIMITS
};

template <class Action>
void for_each_counter(DrainerCounters& counters, Action action) {
    for (pg_atomic_uint64* counter :
         {&counters.claimed, &counters.published, &counters.failed, &counters.rejected,
          &counters.dead, &counters.deferred, &counters.held, &counters.released,
          &counters.expired_leases, &counters.stale_marks, &counters.reconnects, &counters.batches,
          &counters.bytes, &counters.start_failures, &counters.collected, &counters.replayed}) {
        action(*counter);
    }
    for (pg_atomic_uint64& counter : counters.batch_sizes) {
        action(counter);
    }
}

/// How the drainers of a database share its relay. Protected by SharedState::lock.
struct SharedBuckets {
    BucketMap map;
    pg_atomic_uint64 epoch;  ///< the map's, for a look without the lock
};

/// What the launcher knows of a database and one of its drainers. Plain data, no pointers: it lives
/// in shared memory. Fields that are not atomic are protected by SharedState::lock.
struct DrainerSlot {
    bool in_use;   ///< never cleared, so that a scan can end at the first slot that is not
    Oid database;  ///< InvalidOid: free to be taken by another database
    NameData database_name;
    int worker;         ///< which of the database's drainers; 0 is there as long as any other
    uint64 generation;  ///< counts the starts of drainers in this slot; part of the claim token

    // The launcher's view of the process.
    pg_atomic_uint32 start_requested;  ///< a wake came: look at this database again at once
    bool present;                      ///< the database was looked at and has the extension
    bool absent;                       ///< the database was looked at and has no extension
    bool restart_now;          ///< the drainer left of its own will and wants to be started again
    int failures;              ///< consecutive failed starts or early deaths
    TimestampTz next_start;    ///< not to be started before
    TimestampTz last_started;  ///< 0: never
    bool running;              ///< registered and not yet known to have ended

    // The drainer's view of itself.
    int pid;                          ///< 0 when it is not running
    pg_atomic_uint32 procno;          ///< whose latch to set; NO_PROC when it is not running
    pg_atomic_uint32 wake;            ///< it will look for rows, no need to set its latch for them
    pg_atomic_uint32 shares_changed;  ///< another drainer took or gave a part of the relay
    pg_atomic_uint32 recheck;         ///< look whether the extension is still there
    pg_atomic_uint32 relay_changed;   ///< read the relay's settings again
    pg_atomic_uint32 asked;           ///< a session has a question to the broker
    pg_atomic_uint32 state;           ///< DrainerState
    pg_atomic_uint64 state_since;     ///< TimestampTz
    pg_atomic_uint32 in_flight;       ///< messages sent and not confirmed
    pg_atomic_uint64 halted_on;       ///< seq of the event that stop_the_line waits for; 0: none
    char broker[320];                 ///< host:port/vhost; empty: none
    TimestampTz connected_since;      ///< 0: not connected
    TimestampTz disconnected_since;   ///< 0: connected, or never tried; goes on over restarts
    char last_error[512];
    TimestampTz last_error_at;  ///< 0: never

    DrainerCounters counters;
    TimestampTz stats_reset;

    SharedBuckets buckets;  ///< of all the database's drainers; used in the slot of worker 0
};

inline constexpr uint32 NO_PROC = PG_UINT32_MAX;

struct SharedState {
    LWLock* lock;  ///< from the named tranche; the same address in every process
    pg_atomic_uint32 launcher_procno;
    pg_atomic_uint32 launcher_wake;
    uint64 server_start;  ///< microseconds; part of the claim token
    BrokerRequests broker_requests;
    int slot_count;
    DrainerSlot slots[FLEXIBLE_ARRAY_MEMBER];
};

/// Holds SharedState::lock. What is done meanwhile must not raise a PostgreSQL error.
class SlotLock {
  public:
    explicit SlotLock(LWLockMode mode);
    ~SlotLock();
    SlotLock(const SlotLock&) = delete;
    SlotLock& operator=(const SlotLock&) = delete;
};

/// Gives a slot to a drainer of a database, with everything in it as new but the count of
/// generations. The caller holds the lock.
void take_slot(DrainerSlot& slot, Oid database, const char* database_name, int worker);

/// Takes a slot back from its database. What a drainer beside the first has counted goes on in the
/// first one's counters, so that a database's sums never go back. The caller holds the lock.
void free_slot(DrainerSlot& slot);

/// Follows a database that was renamed. The caller holds the lock.
void rename_slot(DrainerSlot& slot, const char* database_name);

/// The slot of the database's worker 0; NULL when it has none. The caller holds the lock, or is the
/// launcher, which alone gives slots away.
DrainerSlot* first_slot(Oid database);

/// No more drainers than this can run at once: max_worker_processes.
int most_drainers();

/// The shared memory, or NULL in a server that has not preloaded the library.
SharedState* shared_state();

/// Asks for shared memory and sets it up; called from _PG_init of a preloading server only.
void install_shared_state();

/// What else drainers are to do when they are woken to look for rows.
enum class WakeFor : std::uint8_t {
    rows,       ///< nothing else
    relay,      ///< read the relay's settings again
    extension,  ///< look whether the extension is still there
};
/// Wakes the drainers of a database. Atomic stores and SetLatch only, so it is safe in a
/// transaction callback. Does nothing when not preloaded.
void wake_drainers(Oid database, WakeFor what);
/// Wakes the process that has put its number there, if there is one.
void set_latch_of(pg_atomic_uint32& procno);
/// Makes the launcher look at everything again. Safe in a transaction callback.
void wake_launcher_process();
/// Asks the launcher to look at a database at once, also at one that had no extension so far. Safe
/// in a transaction callback. Does nothing when not preloaded.
void wake_launcher(Oid database);

}  // namespace outbox::postgres
