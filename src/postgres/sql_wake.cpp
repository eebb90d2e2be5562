// outbox.wake(), which the install script ends with.
#include "postgres/prelude.hpp"
#include "postgres/shared_state.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "commands/extension.h"
}

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_wake);

/// outbox.wake() returns void
OBD_EXPORT Datum outbox_drainer_wake(PG_FUNCTION_ARGS) {
    (void)fcinfo;
    if (outbox::postgres::shared_state() == nullptr) {
        ereport(
            WARNING,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("outbox_drainer is not loaded"),
             errdetail("Events are stored, but nothing publishes them."),
             errhint(
                 "Add outbox_drainer to \"shared_preload_libraries\" and restart the server.")));
    } else if (creating_extension) {
        outbox::postgres::note_extension_created();
    } else {
        outbox::postgres::note_wake();
    }
    PG_RETURN_VOID();
}

}  // extern "C"
