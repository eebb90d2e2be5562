// What the server calls: the library's initialisation and the entry points of its processes.
#include "postgres/database_ddl.hpp"
#include "postgres/drainer_handle.hpp"
#include "postgres/guard.hpp"
#include "postgres/settings.hpp"
#include "postgres/shared_state.hpp"
#include "postgres/wake.hpp"

extern "C" {
PG_MODULE_MAGIC;

OBD_EXPORT void _PG_init(void);
}

void _PG_init(void) {
    const bool preloading = process_shared_preload_libraries_in_progress;
    outbox::postgres::define_settings(preloading);
    outbox::postgres::install_wake_callback();
    // pg_upgrade must not find anybody at work in its databases.
    if (!preloading || IsBinaryUpgrade) {
        return;
    }
    outbox::postgres::install_shared_state();
    outbox::postgres::install_database_ddl_hook();
    outbox::postgres::register_launcher();
}
