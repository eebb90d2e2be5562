// outbox.enqueue(): one INSERT, planned once per session, which runs with the caller's rights. In
// C, because a producer pays for it with each event: PL/pgSQL, and SQL functions around it for the
// other types of payload, took as long as the INSERT.
#include "postgres/find_duplicate.hpp"
#include "postgres/prelude.hpp"
#include "postgres/sql_uuid.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "common/jsonapi.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

/// The function's arguments, which are the INSERT's parameters in the same order.
enum Argument : int {
    EVENT_TYPE,
    PAYLOAD,
    KEY,
    DESTINATION,
    ROUTING_KEY,
    ATTRIBUTES,
    CONTENT_TYPE,
    SOURCE,
    MESSAGE_ID,
    ID,
    AVAILABLE_AT,
    CORRELATION_ID,
    CAUSATION_ID,
    TRACEPARENT,
    TRACESTATE,
    REPLY_TO,
    PRIORITY,
    EXPIRATION,
    OCCURRED_AT,
    SCHEMA_VERSION,
    SCHEMA_REFERENCE,
    SOURCE_EVENT_ID,
    SOURCE_POSITION,
    CONTENT_ENCODING,
    ARGUMENTS,
};

#define INSERT_EVENT                                                                             \
    "INSERT INTO outbox.event (event_type, payload, key, destination, routing_key, attributes, " \
    "content_type, source, message_id, id, available_at, correlation_id, causation_id, "         \
    "traceparent, tracestate, reply_to, priority, expiration, occurred_at, schema_version, "     \
    "schema_reference, source_event_id, source_position, content_encoding) VALUES ($1, $2, $3, " \
    "$4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, "  \
    "$23, $24)"

/// An INSERT and its plan: the same whatever the values, there is nothing to choose.
struct Insert {
    const char* sql;
    SPIPlanPtr plan;
};

/// For an event that can have no duplicate, because its id is new and it has no message_id: half of
/// what ON CONFLICT costs, in time and in WAL, is a look for one.
Insert insert_new = {INSERT_EVENT, nullptr};
// ON CONFLICT names no columns, because that would need the right to read them.
Insert insert_once = {INSERT_EVENT " ON CONFLICT DO NOTHING", nullptr};

Oid parameter_types[ARGUMENTS] = {
    TEXTOID, BYTEAOID,    TEXTOID,        TEXTOID, TEXTOID,  JSONBOID, TEXTOID, TEXTOID,
    TEXTOID, UUIDOID,     TIMESTAMPTZOID, TEXTOID, TEXTOID,  TEXTOID,  TEXTOID, TEXTOID,
    INT2OID, INTERVALOID, TIMESTAMPTZOID, INT4OID, JSONBOID, TEXTOID,  INT8OID, TEXTOID,
};

/// The INSERT's parameters, in the form in which SPI takes them.
struct Parameters {
    Datum values[ARGUMENTS];
    char nulls[ARGUMENTS];

    bool is_null(Argument argument) const { return nulls[argument] == 'n'; }

    void set(Argument argument, Datum value) {
        values[argument] = value;
        nulls[argument] = ' ';
    }

    text* text_or_null(Argument argument) const {
        return is_null(argument) ? nullptr : DatumGetTextPP(values[argument]);
    }
};

void take_arguments(FunctionCallInfo fcinfo, Parameters& event) {
    Assert(PG_NARGS() == ARGUMENTS);
    for (int i = 0; i < ARGUMENTS; i++) {
        event.values[i] = PG_GETARG_DATUM(i);
        event.nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
    }
}

// No session that is connected to a database sees it renamed.
text* database_name() {
    static text* name = nullptr;
    if (name == nullptr) {
        const MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
        name = cstring_to_text(get_database_name(MyDatabaseId));
        MemoryContextSwitchTo(before);
    }
    return name;
}

/// A priority within the column's type, so that the check of the row names the column and the
/// limit.
Datum clamp_priority(int32 priority) {
    return Int16GetDatum(static_cast<int16>(Max(Min(priority, PG_INT16_MAX), PG_INT16_MIN)));
}

void fill_defaults(Parameters& event, pg_uuid_t& new_id) {
    if (event.is_null(ID)) {
        new_uuid(new_id);
        event.set(ID, UUIDPGetDatum(&new_id));
    }
    if (event.is_null(SOURCE)) {
        event.set(SOURCE, PointerGetDatum(database_name()));
    }
    if (event.is_null(OCCURRED_AT)) {
        event.set(OCCURRED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
    }
    if (!event.is_null(PRIORITY)) {
        event.set(PRIORITY, clamp_priority(DatumGetInt32(event.values[PRIORITY])));
    }
}

SPIPlanPtr plan_of(Insert& insert) {
    if (insert.plan == nullptr) {
        SPIPlanPtr plan =
            SPI_prepare_cursor(insert.sql, ARGUMENTS, parameter_types, CURSOR_OPT_GENERIC_PLAN);
        if (plan == nullptr) {
            ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                            errmsg("could not prepare the INSERT of an event: %s",
                                   SPI_result_code_string(SPI_result))));
        }
        SPI_keepplan(plan);
        insert.plan = plan;
    }
    return insert.plan;
}

/// Whether the event was stored: not when it met another, or a trigger dropped it.
bool run(Insert& insert, Parameters& event) {
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    const int code = SPI_execute_plan(plan_of(insert), event.values, event.nulls, false, 0);
    if (code < 0) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not insert an event: %s", SPI_result_code_string(code))));
    }
    const bool stored = SPI_processed > 0;
    SPI_finish();
    return stored;
}

/// Stores the event unless it is there, and gives the id under which it is stored. An INSERT that
/// meets an open transaction waits for its end; after a commit the other event is looked up in a
/// new statement, which may find that it has been deleted since. In REPEATABLE READ the INSERT
/// itself fails with a serialization failure.
void store(Insert& insert, Parameters& event, pg_uuid_t& stored_as) {
    constexpr int ATTEMPTS = 10;
    const EventIdentity identity{
        .id = DatumGetUUIDP(event.values[ID]),
        .source = event.text_or_null(SOURCE),
        .message_id = event.text_or_null(MESSAGE_ID),
    };
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (run(insert, event)) {
            stored_as = *identity.id;
            return;
        }
        if (find_duplicate(identity, stored_as)) {
            return;
        }
    }
    ereport(ERROR,
            (errcode(ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION),
             errmsg("event was not stored, and there is none with its id or message_id"),
             errhint("Look for a trigger on outbox.event that drops rows or changes their id or "
                     "message_id, for a unique index of your own, and whether outbox.event_seq is "
                     "behind the table.")));
}

/// Where a new id is made it is stored in `id`, which is the result.
Datum enqueue(Parameters& event) {
    auto* id = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    Insert& insert = event.is_null(ID) && event.is_null(MESSAGE_ID) ? insert_new : insert_once;
    fill_defaults(event, *id);
    store(insert, event, *id);
    return UUIDPGetDatum(id);
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

const char* guess_content_type(const text* payload) {
    return is_json(payload) ? "application/json" : "text/plain";
}

void set_content_type(Parameters& event, const char* content_type) {
    if (event.is_null(CONTENT_TYPE)) {
        event.set(CONTENT_TYPE, PointerGetDatum(cstring_to_text(content_type)));
    }
}

/// Sets the payload to a text of the database's encoding, in UTF-8: a text is laid out as a bytea.
void set_payload(Parameters& event, text* payload) {
    const char* bytes = VARDATA_ANY(payload);
    auto* source = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes));
    const auto* converted = reinterpret_cast<const char*>(pg_do_encoding_conversion(
        source, static_cast<int>(VARSIZE_ANY_EXHDR(payload)), GetDatabaseEncoding(), PG_UTF8));
    event.set(PAYLOAD, PointerGetDatum(converted == bytes ? payload : cstring_to_text(converted)));
}

Datum enqueue_bytea(FunctionCallInfo fcinfo) {
    Parameters event;
    take_arguments(fcinfo, event);
    set_content_type(event, "application/octet-stream");
    return enqueue(event);
}

Datum enqueue_text(FunctionCallInfo fcinfo) {
    Parameters event;
    take_arguments(fcinfo, event);
    if (!event.is_null(PAYLOAD)) {
        text* payload = DatumGetTextPP(event.values[PAYLOAD]);
        if (event.is_null(CONTENT_TYPE)) {
            set_content_type(event, guess_content_type(payload));
        }
        set_payload(event, payload);
    }
    return enqueue(event);
}

Datum enqueue_json(FunctionCallInfo fcinfo) {
    Parameters event;
    take_arguments(fcinfo, event);
    set_content_type(event, "application/json");
    if (!event.is_null(PAYLOAD)) {
        set_payload(event, DatumGetTextPP(event.values[PAYLOAD]));
    }
    return enqueue(event);
}

Datum enqueue_jsonb(FunctionCallInfo fcinfo) {
    Parameters event;
    take_arguments(fcinfo, event);
    set_content_type(event, "application/json");
    if (!event.is_null(PAYLOAD)) {
        Jsonb* payload = DatumGetJsonbP(event.values[PAYLOAD]);
        set_payload(event, cstring_to_text(JsonbToCString(nullptr, &payload->root,
                                                          static_cast<int>(VARSIZE(payload)))));
    }
    return enqueue(event);
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_enqueue_bytea);
PG_FUNCTION_INFO_V1(outbox_drainer_enqueue_text);
PG_FUNCTION_INFO_V1(outbox_drainer_enqueue_json);
PG_FUNCTION_INFO_V1(outbox_drainer_enqueue_jsonb);
PG_FUNCTION_INFO_V1(outbox_drainer_guess_content_type);

/// outbox.enqueue(event_type text, payload bytea, ...) returns uuid
OBD_EXPORT Datum outbox_drainer_enqueue_bytea(PG_FUNCTION_ARGS) {
    return outbox::postgres::enqueue_bytea(fcinfo);
}

/// outbox.enqueue(event_type text, payload text, ...) returns uuid
OBD_EXPORT Datum outbox_drainer_enqueue_text(PG_FUNCTION_ARGS) {
    return outbox::postgres::enqueue_text(fcinfo);
}

/// outbox.enqueue(event_type text, payload json, ...) returns uuid
OBD_EXPORT Datum outbox_drainer_enqueue_json(PG_FUNCTION_ARGS) {
    return outbox::postgres::enqueue_json(fcinfo);
}

/// outbox.enqueue(event_type text, payload jsonb, ...) returns uuid
OBD_EXPORT Datum outbox_drainer_enqueue_jsonb(PG_FUNCTION_ARGS) {
    return outbox::postgres::enqueue_jsonb(fcinfo);
}

/// outbox.guess_content_type(payload text) returns text
OBD_EXPORT Datum outbox_drainer_guess_content_type(PG_FUNCTION_ARGS) {
    PG_RETURN_TEXT_P(cstring_to_text(outbox::postgres::guess_content_type(PG_GETARG_TEXT_PP(0))));
}

}  // extern "C"
