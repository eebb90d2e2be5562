#pragma once

#include "postgres/slot.hpp"

namespace outbox::postgres {

/// Makes this process the launcher: exit callback, signals, a connection to the shared catalogs
/// only.
void become_launcher();
/// Whether the launcher was told to stop.
bool shutdown_requested();

/// Makes this process the drainer of the slot that it was started for: signals, a connection to the
/// slot's database, pinned settings, the watchdog. False when the slot has gone to somebody else
/// meanwhile.
bool become_drainer(Slot& slot, Datum slot_index);

/// Ends the process; runs its exit callbacks and no destructors.
[[noreturn]] void leave(int code);

}  // namespace outbox::postgres
