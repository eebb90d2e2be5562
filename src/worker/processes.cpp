// The entry points of the background processes.
#include "postgres/guard.hpp"
#include "postgres/process.hpp"
#include "worker/drainer.hpp"
#include "worker/launcher.hpp"

extern "C" {
OBD_EXPORT void outbox_drainer_launcher_main(Datum);
OBD_EXPORT void outbox_drainer_drainer_main(Datum slot_index);
}

namespace {

using namespace outbox;

// How long after a SIGTERM a drainer is started again, when the server goes on.
constexpr Duration RESTART_AFTER_STOP{1000};

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

int launch() {
    worker::Launcher launcher;
    launcher.run();
    // Not 0, which would tell the postmaster never to start the launcher again.
    return 1;
}

}  // namespace

void outbox_drainer_launcher_main(Datum) {
    postgres::become_launcher();
    postgres::leave(postgres::entry_point(launch));
}

void outbox_drainer_drainer_main(Datum slot_index) {
    static postgres::Slot slot;
    if (!postgres::become_drainer(slot, slot_index)) {
        postgres::leave(0);
    }
    postgres::leave(postgres::entry_point([] { return drain(slot); }));
}
