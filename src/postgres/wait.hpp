#pragma once

#include "core/time.hpp"
#include "postgres/guard.hpp"

namespace outbox::postgres {

/// Waits for the process's latch, for `fd` (unless it is -1) as `read` and `write` say, or for
/// `timeout`, whichever comes first, and lets the server's interrupts in. The one way in which a
/// worker waits. False when the server raised an error.
bool wait_for(int fd, bool read, bool write, Duration timeout, PgError& error) noexcept;

/// Time on the system's monotonic clock.
Duration monotonic_now() noexcept;

}  // namespace outbox::postgres
