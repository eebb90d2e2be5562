// What the operator's functions need of the server: the trigger on outbox.relay, the rights of the
// outbox table's owner, the server's settings, and who wrote a row.
#include "postgres/outbox_table.hpp"
#include "postgres/prelude.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "access/xact.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
}

namespace outbox::postgres {

namespace {

void require_statement_trigger(FunctionCallInfo fcinfo) {
    if (CALLED_AS_TRIGGER(fcinfo)) {
        const auto* trigger = reinterpret_cast<const TriggerData*>(fcinfo->context);
        if (TRIGGER_FIRED_AFTER(trigger->tg_event) &&
            TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event)) {
            return;
        }
    }
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                    errmsg("outbox.relay_changed() can only be a trigger AFTER ... FOR EACH "
                           "STATEMENT")));
}

// Only the end of a SECURITY DEFINER function takes the role off again. Anywhere else the session
// would keep it.
void require_security_definer() {
    if (!InLocalUserIdChange()) {
        ereport(ERROR, (errcode(ERRCODE_E_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
                        errmsg("outbox.act_as_owner() can only be called by a SECURITY DEFINER "
                               "function")));
    }
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_relay_changed);
PG_FUNCTION_INFO_V1(outbox_drainer_act_as_owner);
PG_FUNCTION_INFO_V1(outbox_drainer_server_setting);
PG_FUNCTION_INFO_V1(outbox_drainer_written_here);

/// outbox.relay_changed() returns trigger: at commit drainers read the relay's settings again, and
/// so does every session that has a copy of them, which it keeps until the outbox table changes.
OBD_EXPORT Datum outbox_drainer_relay_changed(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    require_statement_trigger(fcinfo);
    CacheInvalidateRelcacheByRelid(event_table());
    note_relay_changed();
    PG_RETURN_POINTER(nullptr);
}

/// outbox.act_as_owner() returns void: the calling SECURITY DEFINER function goes on as the owner
/// of outbox.event, in a security-restricted context, to its end. What the owner attached to the
/// tables then runs with the owner's rights and not with those of the function's owner.
OBD_EXPORT Datum outbox_drainer_act_as_owner(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    (void)fcinfo;
    require_security_definer();
    take_role_of_owner(event_table());
    PG_RETURN_VOID();
}

/// outbox.server_setting(name text) returns text: the value of outbox_drainer.<name>. In C, because
/// a session has these settings from the moment at which it loads the library.
OBD_EXPORT Datum outbox_drainer_server_setting(PG_FUNCTION_ARGS) {
    const char* name = psprintf("outbox_drainer.%s", text_to_cstring(PG_GETARG_TEXT_PP(0)));
    PG_RETURN_TEXT_P(cstring_to_text(GetConfigOptionByName(name, nullptr, false)));
}

/// outbox.written_here(xmin xid) returns boolean: whether the version of a row with this xmin was
/// written by the current transaction or one of its subtransactions.
OBD_EXPORT Datum outbox_drainer_written_here(PG_FUNCTION_ARGS) {
    PG_RETURN_BOOL(TransactionIdIsCurrentTransactionId(PG_GETARG_TRANSACTIONID(0)));
}

}  // extern "C"
