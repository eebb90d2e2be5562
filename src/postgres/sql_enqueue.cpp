// What outbox.enqueue() needs beside SQL.
#include "postgres/outbox_table.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "common/jsonapi.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/uuid.h"
}

namespace outbox::postgres {

namespace {

// Operators are qualified: the search_path is the caller's. The id comes first, as it was asked for
// by name.
constexpr const char* FIND_BY_ID =
    "SELECT e.id FROM outbox.event AS e WHERE e.id OPERATOR(pg_catalog.=) $1";
constexpr const char* FIND_BY_MESSAGE_ID =
    "SELECT e.id FROM outbox.event AS e WHERE e.source OPERATOR(pg_catalog.=) $1 "
    "AND e.message_id OPERATOR(pg_catalog.=) $2";

SPIPlanPtr id_plan = nullptr;
SPIPlanPtr message_id_plan = nullptr;

SPIPlanPtr prepared(SPIPlanPtr& plan, const char* query, int count, Oid* types) {
    if (plan == nullptr) {
        SPIPlanPtr made = SPI_prepare(query, count, types);
        if (made == nullptr) {
            ereport(ERROR,
                    (errcode(ERRCODE_INTERNAL_ERROR),
                     errmsg("could not prepare a query: %s", SPI_result_code_string(SPI_result))));
        }
        SPI_keepplan(made);
        plan = made;
    }
    return plan;
}

/// Runs a query for one id. Not read-only, so that it has a snapshot of its own: what is looked for
/// was committed after the caller's statement began.
bool find(SPIPlanPtr plan, Datum* values, pg_uuid_t& found) {
    int code = SPI_execute_plan(plan, values, nullptr, false, 1);
    if (code != SPI_OK_SELECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not read outbox.event: %s", SPI_result_code_string(code))));
    }
    if (SPI_processed == 0) {
        return false;
    }
    bool null = true;
    Datum id = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
    if (!null) {
        found = *DatumGetUUIDP(id);
    }
    return !null;
}

bool find_by_id(Datum id, pg_uuid_t& found) {
    Oid types[] = {UUIDOID};
    Datum values[] = {id};
    return find(prepared(id_plan, FIND_BY_ID, 1, types), values, found);
}

bool find_by_message_id(Datum source, Datum message_id, pg_uuid_t& found) {
    Oid types[] = {TEXTOID, TEXTOID};
    Datum values[] = {source, message_id};
    return find(prepared(message_id_plan, FIND_BY_MESSAGE_ID, 2, types), values, found);
}

// Who may insert learns by a unique violation that an id is taken; this adds no more than whose it
// is.
void require_insert_right(Oid table) {
    AclResult result = pg_class_aclcheck(table, GetUserId(), ACL_INSERT);
    if (result != ACLCHECK_OK) {
        aclcheck_error(result, OBJECT_TABLE, get_rel_name(table));
    }
}

bool find_duplicate(FunctionCallInfo fcinfo, pg_uuid_t& found) {
    Oid table = event_table();
    require_insert_right(table);
    SavedUser saved = act_as_owner(table);
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    bool there = !PG_ARGISNULL(0) && find_by_id(PG_GETARG_DATUM(0), found);
    if (!there && !PG_ARGISNULL(1) && !PG_ARGISNULL(2)) {
        there = find_by_message_id(PG_GETARG_DATUM(1), PG_GETARG_DATUM(2), found);
    }
    SPI_finish();
    restore_user(saved);
    return there;
}

bool is_json(const text* payload) {
    char* bytes = const_cast<char*>(VARDATA_ANY(payload));
#if PG_VERSION_NUM >= 170000
    JsonLexContext* lexer = makeJsonLexContextCstringLen(nullptr, bytes, VARSIZE_ANY_EXHDR(payload),
                                                         GetDatabaseEncoding(), false);
#else
    JsonLexContext* lexer = makeJsonLexContextCstringLen(
        bytes, static_cast<int>(VARSIZE_ANY_EXHDR(payload)), GetDatabaseEncoding(), false);
#endif
    return pg_parse_json(lexer, &nullSemAction) == JSON_SUCCESS;
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_find_duplicate);
PG_FUNCTION_INFO_V1(outbox_drainer_guess_content_type);

/// outbox.find_duplicate(id uuid, source text, message_id text) returns uuid
OBD_EXPORT Datum outbox_drainer_find_duplicate(PG_FUNCTION_ARGS) {
    auto* found = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    if (!outbox::postgres::find_duplicate(fcinfo, *found)) {
        PG_RETURN_NULL();
    }
    PG_RETURN_UUID_P(found);
}

/// outbox.guess_content_type(payload text) returns text
OBD_EXPORT Datum outbox_drainer_guess_content_type(PG_FUNCTION_ARGS) {
    bool json = outbox::postgres::is_json(PG_GETARG_TEXT_PP(0));
    PG_RETURN_TEXT_P(cstring_to_text(json ? "application/json" : "text/plain"));
}

}  // extern "C"
