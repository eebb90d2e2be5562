#pragma once

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// Connects this process to the database of the drainer. FATAL when the database is gone.
void connect_to_database(Oid database);

/// Fixes what ALTER ROLE or ALTER DATABASE ... SET could bend in a drainer: isolation, search path,
/// timeouts, plans, and synchronous_commit where it is off, since the claim's commit is what makes
/// an event durable before it leaves the server. To be called again after a reload.
void pin_session_settings();

/// Reads the configuration files again if a reload was asked for. True when it was.
bool reload_if_asked() noexcept;

/// What pg_stat_activity shows while the drainer is in no transaction.
void report_activity(const char* what) noexcept;

}  // namespace outbox::postgres
