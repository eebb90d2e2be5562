// Waking drainers at commit: process-local flags, one transaction callback, and a latch. No NOTIFY,
// which would serialise commits.
#include "postgres/wake.hpp"

#include "postgres/prelude.hpp"
#include "postgres/shared_state.hpp"

extern "C" {
#include "access/xact.h"
}

namespace outbox::postgres {

namespace {

struct Notes {
    bool event_written;
    bool wake;
    bool extension_dropped;
    bool relay_changed;
    Oid database_command;  ///< InvalidOid: none
};

Notes notes;

void end_database_command() {
    if (OidIsValid(notes.database_command)) {
        wake_launcher(notes.database_command);
    }
}

// Runs after the transaction has left the procarray, so whoever it wakes sees its rows; a
// PostgreSQL error in here would be escalated, so only atomics and SetLatch are used.
void on_transaction_end(XactEvent event, void*) {
    if (!notes.event_written && !notes.wake && !notes.extension_dropped && !notes.relay_changed &&
        !OidIsValid(notes.database_command)) {
        return;
    }
    switch (event) {
        case XACT_EVENT_COMMIT:
        case XACT_EVENT_PARALLEL_COMMIT:
            if (notes.extension_dropped) {
                wake_drainers(MyDatabaseId, WakeFor::extension);
            } else if (notes.relay_changed) {
                wake_drainers(MyDatabaseId, WakeFor::relay);
            } else if (notes.event_written || notes.wake) {
                wake_drainers(MyDatabaseId, WakeFor::rows);
            }
            if (notes.wake) {
                wake_launcher(MyDatabaseId);
            }
            end_database_command();
            notes = {};
            break;
        case XACT_EVENT_ABORT:
        case XACT_EVENT_PARALLEL_ABORT:
            if (notes.event_written) {
                wake_drainers(MyDatabaseId, WakeFor::rows);
            }
            end_database_command();
            notes = {};
            break;
        case XACT_EVENT_PREPARE:
            // COMMIT PREPARED runs no callback here; poll_interval finds those rows.
            notes = {};
            break;
        case XACT_EVENT_PRE_COMMIT:
        case XACT_EVENT_PARALLEL_PRE_COMMIT:
        case XACT_EVENT_PRE_PREPARE:
            break;
    }
}

}  // namespace

void install_wake_callback() {
    RegisterXactCallback(on_transaction_end, nullptr);
}

void note_event_written() {
    notes.event_written = true;
}

void note_wake() {
    notes.wake = true;
}

void note_relay_changed() {
    notes.relay_changed = true;
}

void note_extension_created() {
    notes.wake = true;
}

void note_database_command(unsigned int database) {
    notes.database_command = database;
}

void note_extension_dropped() {
    notes.extension_dropped = true;
}

}  // namespace outbox::postgres
