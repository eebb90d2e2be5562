// The entry points of the background processes.
#include "postgres/drainer_handle.hpp"
#include "postgres/guard.hpp"
#include "postgres/session.hpp"
#include "postgres/signals.hpp"
#include "postgres/slot.hpp"
#include "worker/drainer.hpp"
#include "worker/launcher.hpp"

extern "C" {
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/memutils.h"

OBD_EXPORT void outbox_drainer_launcher_main(Datum);
OBD_EXPORT void outbox_drainer_drainer_main(Datum slot_index);
}

namespace {

using namespace outbox;

// How long after a SIGTERM a drainer is started again, when the server goes on.
constexpr Duration RESTART_AFTER_STOP{1000};

void forget_launcher(int, Datum) {
    pg_atomic_write_u32(&postgres::shared_state()->launcher_procno, postgres::NO_PROC);
}

void enter_memory_context() {
    MemoryContextSwitchTo(
        AllocSetContextCreate(TopMemoryContext, "outbox_drainer", ALLOCSET_DEFAULT_SIZES));
}

int drain(postgres::Slot& slot) {
    worker::Drainer drainer(slot);
    switch (drainer.run()) {
        case worker::ExitReason::no_extension:
            slot.set_absent();
            break;
        case worker::ExitReason::settings_changed:
            slot.ask_restart(Duration{0});
            break;
        case worker::ExitReason::stopped:
            slot.ask_restart(RESTART_AFTER_STOP);
            break;
    }
    return 0;
}

}  // namespace

void outbox_drainer_launcher_main(Datum) {
    before_shmem_exit(forget_launcher, 0);
    pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    pg_atomic_write_u32(&postgres::shared_state()->launcher_procno, postgres::own_procno());
    enter_memory_context();
    postgres::entry_point([] {
        worker::Launcher launcher;
        launcher.run();
        return 0;
    });
    // Not 0, which would tell the postmaster never to start the launcher again.
    proc_exit(1);
}

void outbox_drainer_drainer_main(Datum slot_index) {
    static postgres::Slot slot;
    if (!slot.attach(DatumGetInt32(slot_index), postgres::own_generation())) {
        proc_exit(0);
    }
    postgres::install_drainer_signals();
    postgres::connect_to_database(slot.database());
    postgres::register_watchdog();
    postgres::pin_session_settings();
    enter_memory_context();
    proc_exit(postgres::entry_point([] { return drain(slot); }));
}
