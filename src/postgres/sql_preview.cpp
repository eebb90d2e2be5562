// outbox.preview(): the message that will be sent for an event.
#include "core/message_json.hpp"
#include "postgres/event_copy.hpp"
#include "postgres/guard.hpp"
#include "postgres/outbox_table.hpp"
#include "postgres/settings.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"
}

namespace outbox::postgres {

namespace {

// What the relay's own settings leave open is the server's.
constexpr const char* FIND_EVENT =
    "SELECT %s, "
    "coalesce(r.exchange, pg_catalog.current_setting('outbox_drainer.exchange')), "
    "coalesce(r.mandatory, "
    "pg_catalog.current_setting('outbox_drainer.mandatory', true)::pg_catalog.bool, false) "
    "FROM outbox.event AS e LEFT JOIN outbox.relay AS r ON r.name OPERATOR(pg_catalog.=) 'default' "
    "WHERE e.id OPERATOR(pg_catalog.=) $1";

constexpr int EXCHANGE_COLUMN = EventValues::COUNT + 1;
constexpr int MANDATORY_COLUMN = EventValues::COUNT + 2;

/// All that decides about a message. Plain data.
struct Found {
    Event event;
    std::string_view exchange;
    bool mandatory;
    bool body_is_text;
};

/// Whether text in UTF-8 has a form in the database's encoding.
bool converts(std::string_view text) {
    const int encoding = GetDatabaseEncoding();
    if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII) {
        return true;
    }
    const Oid procedure = FindDefaultConversionProc(PG_UTF8, encoding);
    if (!OidIsValid(procedure)) {
        return false;
    }
    const std::size_t room = text.size() * MAX_CONVERSION_GROWTH + 1;
    auto* converted =
        static_cast<unsigned char*>(MemoryContextAllocHuge(CurrentMemoryContext, room));
    const int length = static_cast<int>(text.size());
    auto* source = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data()));
    return pg_do_encoding_conversion_buf(procedure, PG_UTF8, encoding, source, length, converted,
                                         static_cast<int>(room), true) == length;
}

bool is_text(std::string_view body) {
    return pg_verify_mbstr(PG_UTF8, body.data(), static_cast<int>(body.size()), true) &&
           converts(body);
}

void run_query(Datum id) {
    Oid types[] = {UUIDOID};
    const int code =
        SPI_execute_with_args(psprintf(FIND_EVENT, EVENT_COLUMNS), 1, types, &id, nullptr, true, 1);
    if (code != SPI_OK_SELECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not read the event: %s", SPI_result_code_string(code))));
    }
    if (SPI_processed == 0) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("event \"%s\" does not exist",
                               DatumGetCString(DirectFunctionCall1(uuid_out, id))),
                        errhint("Either it was never committed, or it has been deleted since.")));
    }
}

/// What it gives lives as long as SPI's memory.
void read_event(Datum id, Found& found) {
    run_query(id);
    HeapTuple row = SPI_tuptable->vals[0];
    TupleDesc description = SPI_tuptable->tupdesc;
    bool null = true;
    copy_event(row, description, found.event);
    found.exchange = TextDatumGetCString(SPI_getbinval(row, description, EXCHANGE_COLUMN, &null));
    found.mandatory = DatumGetBool(SPI_getbinval(row, description, MANDATORY_COLUMN, &null));
    found.body_is_text = is_text(found.event.payload);
}

/// The answer as JSON in UTF-8, from malloc; NULL: out of memory.
char* describe(const Found& found) {
    return entry_point([&]() -> char* {
        const MessageRules rules{
            .default_exchange = found.exchange,
            .max_message_bytes = static_cast<std::size_t>(max_message_bytes_setting()),
            .max_properties_bytes = USUAL_PROPERTIES_BYTES,
        };
        Message message;
        const std::optional<Rejection> rejection = build_message(found.event, rules, message);
        return strdup((rejection ? refusal_json(*rejection)
                                 : message_json(message, found.mandatory, found.body_is_text))
                          .c_str());
    });
}

/// In the current memory context, in the encoding of the database.
char* preview(Datum id) {
    MemoryContext result = CurrentMemoryContext;
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    Found found{};
    read_event(id, found);
    char* json = describe(found);
    if (json == nullptr) {
        ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
    }
    char* copy = MemoryContextStrdup(result, json);
    free(json);
    SPI_finish();
    return pg_any_to_server(copy, static_cast<int>(strlen(copy)), PG_UTF8);
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_preview_message);

/// outbox.preview_message(id uuid) returns jsonb
OBD_EXPORT Datum outbox_drainer_preview_message(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    if (PG_ARGISNULL(0)) {
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("id of the event is NULL")));
    }
    SavedUser saved = act_as_owner(event_table());
    char* json = preview(PG_GETARG_DATUM(0));
    restore_user(saved);
    PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
}

}  // extern "C"
