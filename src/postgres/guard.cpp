#include "postgres/guard.hpp"

namespace outbox::postgres {

void take_error(PgError& error, MemoryContext context) noexcept {
    MemoryContextSwitchTo(context);
    ErrorData* data = CopyErrorData();
    FlushErrorState();
    error.sqlstate = data->sqlerrcode;
    strlcpy(error.message, data->message != nullptr ? data->message : "", sizeof(error.message));
    strlcpy(error.detail, data->detail != nullptr ? data->detail : "", sizeof(error.detail));
    strlcpy(error.hint, data->hint != nullptr ? data->hint : "", sizeof(error.hint));
    FreeErrorData(data);
}

void raise_exception(const char* what) {
    ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                    errmsg("outbox_drainer: unexpected C++ exception: %s", what)));
    pg_unreachable();
}

}  // namespace outbox::postgres
