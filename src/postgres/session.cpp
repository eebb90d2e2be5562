#include "postgres/session.hpp"

#include "postgres/guard.hpp"

extern "C" {
#include "access/xact.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
}

namespace outbox::postgres {

namespace {

struct Pin {
    const char* name;
    const char* value;
};

// The plans of a drainer's statements have one right shape, an index walk, whatever the statistics
// say: they may have been taken when the table was empty.
constexpr Pin PINS[] = {
    {"default_transaction_isolation", "read committed"},
    {"default_transaction_read_only", "off"},
    {"default_transaction_deferrable", "off"},
    {"search_path", "pg_catalog, pg_temp"},
    {"session_replication_role", "origin"},
    {"row_security", "off"},
    {"statement_timeout", "0"},
    {"idle_in_transaction_session_timeout", "0"},
    {"idle_session_timeout", "0"},
    {"lock_timeout", "2s"},
    {"jit", "off"},
    {"plan_cache_mode", "force_generic_plan"},
    {"enable_seqscan", "off"},
    {"enable_bitmapscan", "off"},
    {"enable_hashjoin", "off"},
    {"enable_mergejoin", "off"},
    {"enable_indexscan", "on"},
    {"enable_nestloop", "on"},
    {"max_parallel_workers_per_gather", "0"},
};

void pin(const char* name, const char* value) {
    SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

}  // namespace

void connect_to_database(Oid database) {
    BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
    pgstat_report_appname("outbox_drainer");
    pgstat_report_activity(STATE_IDLE, nullptr);
}

void pin_session_settings() {
    for (const Pin& setting : PINS) {
        pin(setting.name, setting.value);
    }
    if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF) {
        pin("synchronous_commit", "on");
    }
}

bool reload_if_asked() noexcept {
    if (!ConfigReloadPending) {
        return false;
    }
    ConfigReloadPending = false;
    PgError ignored;
    pg_try(ignored, [] {
        ProcessConfigFile(PGC_SIGHUP);
        pin_session_settings();
    });
    return true;
}

void report_activity(const char* what) noexcept {
    PgError ignored;
    pg_try(ignored, [what] { pgstat_report_activity(STATE_IDLE, what); });
}

}  // namespace outbox::postgres
