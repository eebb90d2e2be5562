// The limits of messages, checked for a row of an outbox table where a producer still sees the
// mistake. The limits themselves are core's.
#include "postgres/producer_checks.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "postgres/guard.hpp"
#include "postgres/settings.hpp"

extern "C" {
#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

using Column = EventValues::Column;

struct ColumnType {
    Column column;
    Oid type;
};

// Not the number and the id: what they are decides nothing.
constexpr ColumnType COLUMN_TYPES[] = {
    {Column::SOURCE, TEXTOID},
    {Column::MESSAGE_ID, TEXTOID},
    {Column::DESTINATION, TEXTOID},
    {Column::EVENT_TYPE, TEXTOID},
    {Column::ROUTING_KEY, TEXTOID},
    {Column::KEY, TEXTOID},
    {Column::PAYLOAD, BYTEAOID},
    {Column::CONTENT_TYPE, TEXTOID},
    {Column::CONTENT_ENCODING, TEXTOID},
    {Column::SCHEMA_VERSION, INT4OID},
    {Column::SCHEMA_REFERENCE, JSONBOID},
    {Column::ATTRIBUTES, JSONBOID},
    {Column::SOURCE_EVENT_ID, TEXTOID},
    {Column::SOURCE_POSITION, INT8OID},
    {Column::OCCURRED_AT, TIMESTAMPTZOID},
    {Column::CAUSATION_ID, TEXTOID},
    {Column::CORRELATION_ID, TEXTOID},
    {Column::REPLY_TO, TEXTOID},
    {Column::TRACEPARENT, TEXTOID},
    {Column::TRACESTATE, TEXTOID},
    {Column::PRIORITY, INT2OID},
    {Column::EXPIRATION_MS, INTERVALOID},
};

}  // namespace

void pick_event(const EventColumns& columns, const Datum* values, const bool* nulls,
                EventValues& out) {
    std::fill(std::begin(out.nulls), std::end(out.nulls), true);
    for (const ColumnType& known : COLUMN_TYPES) {
        const int place = columns.numbers[known.column] - 1;
        out.values[known.column] = values[place];
        out.nulls[known.column] = nulls[place];
    }
    if (!out.nulls[Column::EXPIRATION_MS]) {
        out.values[Column::EXPIRATION_MS] =
            Int64GetDatum(milliseconds(out.values[Column::EXPIRATION_MS]));
    }
}

namespace {

std::size_t stored_size(const EventValues& row, Column column) {
    return row.nulls[column] ? 0 : toast_raw_datum_size(row.values[column]) - VARHDRSZ;
}

void ask_core(const Event& event, const StoredBytes& stored, Verdict& verdict) {
    const MessageRules rules{
        .default_exchange = {},  // its length is checked where it is set
        .max_message_bytes = static_cast<std::size_t>(max_message_bytes_setting()),
        .max_properties_bytes = USUAL_PROPERTIES_BYTES,
    };
    const std::optional<Rejection> rejection = check_event(event, stored, rules);
    verdict.refused = rejection.has_value();
    if (rejection) {
        strlcpy(verdict.code, rejection->code.c_str(), sizeof(verdict.code));
        strlcpy(verdict.detail, rejection->detail.c_str(), sizeof(verdict.detail));
    }
}

/// What a producer can do about a refusal.
struct Cure {
    std::string_view code;
    int sqlstate;
    const char* hint;
};

constexpr Cure CURES[] = {
    {"missing_event_type", ERRCODE_NOT_NULL_VIOLATION,
     "Give the event an event_type, which is the routing key by default."},
    {"key_too_long", ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
     "Use a shorter key, such as a hash of this one."},
    {"header_name_too_long", ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
     "Shorten the key, or move the value to the payload."},
    {"headers_too_large", ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
     "Move what is large from attributes and the other columns to the payload."},
    {"message_too_large", ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
     "Keep the data elsewhere and send a reference to it, or raise "
     "outbox_drainer.max_message_bytes where the broker takes larger messages."},
    {"headers_too_deep", ERRCODE_INVALID_PARAMETER_VALUE,
     "Flatten the value, or move it to the payload."},
    {"reserved_header", ERRCODE_INVALID_PARAMETER_VALUE,
     "Use another name: headers with this prefix are made from the event's columns."},
    {"invalid_routing_header", ERRCODE_INVALID_PARAMETER_VALUE,
     "RabbitMQ routes by this header: write a JSON array of strings, or use another name."},
    {"attributes_not_object", ERRCODE_INVALID_PARAMETER_VALUE,
     "Write the headers as the members of a JSON object."},
    {"invalid_traceparent", ERRCODE_INVALID_PARAMETER_VALUE,
     "It has the form 00-trace-parent-flags of 32, 16 and 2 lower-case hexadecimal digits, "
     "trace and parent not all zero; where there is no trace, leave it NULL."},
    {"number_out_of_range", ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "Write the number as a string."},
    {"invalid_priority", ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
     "Use a priority in that range, or NULL for none."},
    {"invalid_expiration", ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
     "Use a time in that range, or NULL for a message that does not expire."},
    {"invalid_occurred_at", ERRCODE_DATETIME_FIELD_OVERFLOW,
     "Use a later time: AMQP counts the seconds since 1970."},
    {"invalid_encoding", ERRCODE_CHARACTER_NOT_IN_REPERTOIRE,
     "AMQP texts are UTF-8: write this one so, or move it to the payload."},
};

constexpr Cure SHORT_STRING_CURE = {
    "", ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
    "AMQP has no room for more: shorten it, or move it to attributes or the payload."};
constexpr Cure NO_CURE = {"", ERRCODE_INVALID_PARAMETER_VALUE, nullptr};

const Cure& cure_of(std::string_view code) {
    for (const Cure& cure : CURES) {
        if (cure.code == code) {
            return cure;
        }
    }
    return code.ends_with("_too_long") ? SHORT_STRING_CURE : NO_CURE;
}

}  // namespace

int find_column(TupleDesc description, const char* table, const char* name, Oid type) {
    const int column = SPI_fnumber(description, name);
    if (column <= 0 || SPI_gettypeid(description, column) != type) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("outbox table \"%s\" has no column \"%s\" of type %s", table, name,
                               format_type_be(type))));
    }
    return column;
}

EventColumns find_event_columns(TupleDesc description, const char* table) {
    EventColumns columns{};
    for (const ColumnType& known : COLUMN_TYPES) {
        columns.numbers[known.column] =
            find_column(description, table, EVENT_COLUMN_NAMES[known.column], known.type);
    }
    return columns;
}

void judge_event(const EventColumns& columns, const Datum* values, const bool* nulls,
                 Verdict& verdict) {
    EventValues row;
    Event event;
    pick_event(columns, values, nulls, row);
    borrow_event(row, event);
    const StoredBytes stored{.payload = stored_size(row, Column::PAYLOAD),
                             .key = stored_size(row, Column::KEY)};
    entry_point([&] { ask_core(event, stored, verdict); });
}

const char* detail_text(const Verdict& verdict) {
    return pg_any_to_server(verdict.detail, static_cast<int>(strlen(verdict.detail)), PG_UTF8);
}

void refuse_event(const Verdict& verdict, Relation table) {
    const Cure& cure = cure_of(verdict.code);
    ereport(ERROR, (errcode(cure.sqlstate), errmsg("event refused: %s", detail_text(verdict)),
                    cure.hint == nullptr ? 0 : errhint("%s", cure.hint), errtable(table),
                    err_generic_string(PG_DIAG_CONSTRAINT_NAME, verdict.code)));
    pg_unreachable();
}

}  // namespace outbox::postgres
