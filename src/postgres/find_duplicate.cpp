// The event that was there before, for producers that write an event again.
#include "postgres/find_duplicate.hpp"

#include "postgres/outbox_table.hpp"
#include "postgres/statement.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
}

namespace outbox::postgres {

namespace {

// Operators are qualified: the search_path is the caller's. The id comes first, as it was asked for
// by name.
Statement by_id = {"SELECT e.id FROM outbox.event AS e WHERE e.id OPERATOR(pg_catalog.=) $1",
                   1,
                   {UUIDOID},
                   nullptr};
Statement by_message_id = {
    "SELECT e.id FROM outbox.event AS e WHERE e.source OPERATOR(pg_catalog.=) $1 "
    "AND e.message_id OPERATOR(pg_catalog.=) $2",
    2,
    {TEXTOID, TEXTOID},
    nullptr};

/// Not read-only, so that it has a snapshot of its own: what is looked for was committed after the
/// caller's statement began.
bool find(Statement& statement, std::initializer_list<Datum> values, pg_uuid_t& found) {
    execute(statement, values, Access::write);
    if (row_count() == 0) {
        return false;
    }
    bool null = true;
    const Datum id = column(0, 1, &null);
    if (!null) {
        found = *DatumGetUUIDP(id);
    }
    return !null;
}

// Who may insert learns by a unique violation that an id is taken; this adds no more than whose it
// is.
void require_insert_right(Oid table) {
    const AclResult result = pg_class_aclcheck(table, GetUserId(), ACL_INSERT);
    const bool of_columns =
        pg_attribute_aclcheck_all(table, GetUserId(), ACL_INSERT, ACLMASK_ANY) == ACLCHECK_OK;
    if (result != ACLCHECK_OK && !of_columns) {
        aclcheck_error(result, OBJECT_TABLE, get_rel_name(table));
    }
}

}  // namespace

bool find_duplicate(const EventIdentity& identity, pg_uuid_t& found) {
    const Oid table = event_table();
    require_insert_right(table);
    const SavedUser saved = act_as_owner(table);
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    bool there = identity.id != nullptr && find(by_id, {UUIDPGetDatum(identity.id)}, found);
    if (!there && identity.source != nullptr && identity.message_id != nullptr) {
        there =
            find(by_message_id,
                 {PointerGetDatum(identity.source), PointerGetDatum(identity.message_id)}, found);
    }
    SPI_finish();
    restore_user(saved);
    return there;
}

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_find_duplicate);

/// outbox.find_duplicate(id uuid, source text, message_id text) returns uuid
OBD_EXPORT Datum outbox_drainer_find_duplicate(PG_FUNCTION_ARGS) {
    const outbox::postgres::EventIdentity identity{
        .id = PG_ARGISNULL(0) ? nullptr : PG_GETARG_UUID_P(0),
        .source = PG_ARGISNULL(1) ? nullptr : PG_GETARG_TEXT_PP(1),
        .message_id = PG_ARGISNULL(2) ? nullptr : PG_GETARG_TEXT_PP(2),
    };
    auto* found = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    if (!outbox::postgres::find_duplicate(identity, *found)) {
        PG_RETURN_NULL();
    }
    PG_RETURN_UUID_P(found);
}

}  // extern "C"
