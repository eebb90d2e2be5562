#pragma once

#include "core/time.hpp"
#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// Signals of a drainer. SIGTERM asks for a stop that still settles what is known; it becomes
/// `die`, which every wait of the server answers, when a transaction has not ended by the shutdown
/// timeout. SIGINT cancels the statement in hand, SIGHUP reloads.
void install_drainer_signals();

bool stop_requested();
/// How long a transaction may go on after a stop request.
void set_shutdown_timeout(Duration timeout);

/// Marks where a transaction begins and ends, for the watchdog below.
void enter_transaction();
void leave_transaction();

/// Whether a cancel came since forget_cancel().
bool cancel_seen();
void forget_cancel();

/// The watchdog: a timer that begins with a stop request and turns it into `die` when a transaction
/// hangs. It takes SIGUSR2, which a background worker has no use for; until it is registered, and
/// while nothing is to stop, it costs nothing.
void register_watchdog();

}  // namespace outbox::postgres
