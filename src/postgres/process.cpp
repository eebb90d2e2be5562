// How the background processes begin.
#include "postgres/process.hpp"

#include "postgres/drainer_handle.hpp"
#include "postgres/session.hpp"
#include "postgres/signals.hpp"

extern "C" {
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
}

namespace outbox::postgres {

namespace {

void forget_launcher(int, Datum) {
    pg_atomic_write_u32(&shared_state()->launcher_procno, NO_PROC);
}

// Everything that lives between transactions is allocated in here.
void enter_memory_context() {
    MemoryContextSwitchTo(
        AllocSetContextCreate(TopMemoryContext, "outbox_drainer", ALLOCSET_DEFAULT_SIZES));
}

}  // namespace

void become_launcher() {
    before_shmem_exit(forget_launcher, 0);
    pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    pg_atomic_write_u32(&shared_state()->launcher_procno, own_procno());
    enter_memory_context();
}

bool shutdown_requested() {
    return ShutdownRequestPending;
}

bool become_drainer(Slot& slot, Datum slot_index) {
    if (!slot.attach(DatumGetInt32(slot_index), own_generation())) {
        return false;
    }
    // Connecting may wait for a lock on the database; until the watchdog is there, SIGTERM ends
    // that at once.
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
    connect_to_database(slot.database());
    register_watchdog();
    install_drainer_signals();
    pin_session_settings();
    enter_memory_context();
    return true;
}

void leave(int code) {
    proc_exit(code);
}

}  // namespace outbox::postgres
