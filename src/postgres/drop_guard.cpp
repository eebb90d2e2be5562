// The event trigger that keeps DROP EXTENSION from throwing unsent events away.
#include "postgres/outbox_table.hpp"
#include "postgres/prelude.hpp"
#include "postgres/settings.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
}

namespace outbox::postgres {

namespace {

constexpr const char* NAME = "outbox_drainer";
constexpr const char* REQUIRED_EXTENSION = "plpgsql";

bool owns_extension(const char* name) {
    Oid extension = get_extension_oid(name, true);
#if PG_VERSION_NUM >= 160000
    return OidIsValid(extension) && object_ownercheck(ExtensionRelationId, extension, GetUserId());
#else
    return OidIsValid(extension) && pg_extension_ownercheck(extension, GetUserId());
#endif
}

// DROP EXTENSION that names us, or CASCADEs from what we require. Who may not do it is left to the
// server to refuse, before anything was locked.
bool drops_us(const DropStmt* statement) {
    if (statement->removeType != OBJECT_EXTENSION) {
        return false;
    }
    ListCell* cell = nullptr;
    foreach (cell, statement->objects) {
        const char* name = strVal(lfirst(cell));
        bool reaches_us = strcmp(name, NAME) == 0 || (statement->behavior == DROP_CASCADE &&
                                                      strcmp(name, REQUIRED_EXTENSION) == 0);
        if (reaches_us && owns_extension(name)) {
            return true;
        }
    }
    return false;
}

Oid extension_owner() {
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
                CStringGetDatum(NAME));
    Relation catalog = table_open(ExtensionRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(catalog, ExtensionNameIndexId, true, nullptr, 1, &key);
    HeapTuple tuple = systable_getnext(scan);
    Oid owner = InvalidOid;
    if (HeapTupleIsValid(tuple)) {
        owner = reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple))->extowner;
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return owner;
}

bool drops_us(const DropOwnedStmt* statement) {
    Oid owner = extension_owner();
    if (!OidIsValid(owner) || !has_privs_of_role(GetUserId(), owner)) {
        return false;
    }
    ListCell* cell = nullptr;
    foreach (cell, statement->roles) {
        if (get_rolespec_oid(static_cast<RoleSpec*>(lfirst(cell)), true) == owner) {
            return true;
        }
    }
    return false;
}

bool drops_us(const Node* statement) {
    if (IsA(statement, DropStmt)) {
        return drops_us(reinterpret_cast<const DropStmt*>(statement));
    }
    if (IsA(statement, DropOwnedStmt)) {
        return drops_us(reinterpret_cast<const DropOwnedStmt*>(statement));
    }
    return false;
}

int64 count_unsent() {
    constexpr const char* QUERY =
        "SELECT pg_catalog.count(*) FROM outbox.event AS e "
        "WHERE e.published_at IS NULL AND e.dead_at IS NULL";
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    int code = SPI_execute(QUERY, true, 0);
    if (code != SPI_OK_SELECT || SPI_processed != 1) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not count unsent events: %s", SPI_result_code_string(code))));
    }
    bool null = true;
    Datum count = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
    int64 unsent = DatumGetInt64(count);
    SPI_finish();
    return unsent;
}

// With the newest snapshot: what the producers that were waited for have committed is counted, also
// in REPEATABLE READ.
int64 count_unsent_for_good(Oid table) {
    SavedUser saved = act_as_owner(table);
    PushActiveSnapshot(GetLatestSnapshot());
    int64 unsent = count_unsent();
    PopActiveSnapshot();
    restore_user(saved);
    return unsent;
}

void refuse_while_unsent() {
    // The lock that the drop takes anyway, but before any other: the drainer locks this table first
    // of all, so neither waits for the other while it holds what the other wants.
    Oid table = event_table();
    LockRelationOid(table, AccessExclusiveLock);
    if (allow_drop()) {
        return;
    }
    int64 unsent = count_unsent_for_good(table);
    if (unsent > 0) {
        ereport(
            ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg_plural("cannot drop extension %s because %lld event has not been sent",
                           "cannot drop extension %s because %lld events have not been sent",
                           static_cast<unsigned long>(unsent), NAME,
                           static_cast<long long>(unsent)),
             errhint("Wait until outbox.backlog() shows none, or set outbox_drainer.allow_drop to "
                     "on to lose them.")));
    }
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_guard_drop);

/// outbox.guard_drop() returns event_trigger
OBD_EXPORT Datum outbox_drainer_guard_drop(PG_FUNCTION_ARGS) {
    if (!CALLED_AS_EVENT_TRIGGER(fcinfo)) {
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.guard_drop() can only be an event trigger")));
    }
    auto* trigger = reinterpret_cast<EventTriggerData*>(fcinfo->context);
    if (outbox::postgres::drops_us(trigger->parsetree)) {
        outbox::postgres::refuse_while_unsent();
        outbox::postgres::note_extension_dropped();
    }
    PG_RETURN_NULL();
}

}  // extern "C"
