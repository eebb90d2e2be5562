#include "postgres/outbox_table.hpp"

extern "C" {
#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace outbox::postgres {

namespace {

Oid owner_of(Oid table) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
    if (!HeapTupleIsValid(tuple)) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", table)));
    }
    Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relowner;
    ReleaseSysCache(tuple);
    return owner;
}

void take_role(Oid user, int security_context) {
    SetUserIdAndSecContext(
        user, security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
}

}  // namespace

Oid event_table() {
    Oid schema = get_namespace_oid("outbox", false);
    Oid table = get_relname_relid("event", schema);
    if (!OidIsValid(table)) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation \"outbox.event\" does not exist")));
    }
    return table;
}

SavedUser act_as(Oid user) {
    SavedUser saved{};
    GetUserIdAndSecContext(&saved.user, &saved.security_context);
    saved.guc_nest_level = NewGUCNestLevel();
    take_role(user, saved.security_context);
    return saved;
}

void take_role_of_owner(Oid table) {
    Oid user = InvalidOid;
    int security_context = 0;
    GetUserIdAndSecContext(&user, &security_context);
    take_role(owner_of(table), security_context);
}

SavedUser act_as_owner(Oid table) {
    return act_as(owner_of(table));
}

void restore_user(const SavedUser& saved) {
    AtEOXact_GUC(false, saved.guc_nest_level);
    SetUserIdAndSecContext(saved.user, saved.security_context);
}

}  // namespace outbox::postgres
