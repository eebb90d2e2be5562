#include "postgres/event_copy.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "datatype/timestamp.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
}

namespace outbox::postgres {

namespace {

constexpr std::int64_t UNIX_EPOCH_OFFSET_US =
    (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

// The column numbers of EVENT_COLUMNS.
enum Column : int {
    SEQ = 1,
    ID,
    SOURCE,
    MESSAGE_ID,
    DESTINATION,
    EVENT_TYPE,
    ROUTING_KEY,
    KEY,
    PAYLOAD,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    SCHEMA_VERSION,
    SCHEMA_REFERENCE,
    ATTRIBUTES,
    SOURCE_EVENT_ID,
    SOURCE_POSITION,
    OCCURRED_AT,
    CAUSATION_ID,
    CORRELATION_ID,
    REPLY_TO,
    TRACEPARENT,
    TRACESTATE,
    PRIORITY,
    EXPIRATION_MS,
    ATTEMPTS,
    DEFERRED,
};

class Row {
  public:
    Row(HeapTuple tuple, TupleDesc description) : tuple_(tuple), description_(description) {}

    std::optional<Datum> get(Column column) const {
        bool is_null = false;
        const Datum value = SPI_getbinval(tuple_, description_, column, &is_null);
        return is_null ? std::nullopt : std::optional<Datum>(value);
    }

    const char* name(Column column) const { return SPI_fname(description_, column); }

  private:
    HeapTuple tuple_;
    TupleDesc description_;
};

std::string_view copy_bytes(const char* bytes, std::size_t length) {
    char* copy = static_cast<char*>(MemoryContextAllocHuge(CurrentMemoryContext, length));
    memcpy(copy, bytes, length);
    return {copy, length};
}

// The bytes of a text or bytea. A value that had to be decompressed or fetched lies in our memory
// already.
std::string_view stored_bytes(Datum value) {
    const varlena* stored = PG_DETOAST_DATUM_PACKED(value);
    const char* bytes = VARDATA_ANY(stored);
    const std::size_t length = VARSIZE_ANY_EXHDR(stored);
    const bool is_ours = stored != reinterpret_cast<const varlena*>(DatumGetPointer(value));
    return is_ours ? std::string_view(bytes, length) : copy_bytes(bytes, length);
}

// The conversion from the database's encoding, looked up once.
Oid conversion_to_utf8() {
    static Oid procedure = InvalidOid;
    if (!OidIsValid(procedure)) {
        procedure = FindDefaultConversionProc(GetDatabaseEncoding(), PG_UTF8);
    }
    return procedure;
}

// `text`, which is in our memory, in UTF-8; nullopt when it has no such form. The server's own
// conversion would raise an error there, and one row would stop all others.
std::optional<std::string_view> to_utf8(std::string_view text) {
    const int encoding = GetDatabaseEncoding();
    const int length = static_cast<int>(text.size());
    if (encoding == PG_UTF8) {
        return text;
    }
    if (encoding == PG_SQL_ASCII) {
        return pg_verify_mbstr(PG_UTF8, text.data(), length, true) ? std::optional(text)
                                                                   : std::nullopt;
    }
    const Oid procedure = conversion_to_utf8();
    if (!OidIsValid(procedure)) {
        return std::nullopt;
    }
    const std::size_t room = text.size() * MAX_CONVERSION_GROWTH + 1;
    auto* converted =
        static_cast<unsigned char*>(MemoryContextAllocHuge(CurrentMemoryContext, room));
    auto* source = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data()));
    const int used = pg_do_encoding_conversion_buf(procedure, encoding, PG_UTF8, source, length,
                                                   converted, static_cast<int>(room), true);
    return used == length ? std::optional(std::string_view(reinterpret_cast<char*>(converted)))
                          : std::nullopt;
}

// Copies a text of the column; notes in the event when it cannot be sent.
std::string_view copy_utf8(std::string_view text, const Row& row, Column column, Event& event) {
    const std::optional<std::string_view> converted = to_utf8(text);
    if (!converted.has_value()) {
        event.unencodable = row.name(column);
    }
    return converted.value_or(std::string_view());
}

std::optional<std::string_view> text_of(const Row& row, Column column, Event& event) {
    const std::optional<Datum> value = row.get(column);
    return value.has_value() ? std::optional(copy_utf8(stored_bytes(*value), row, column, event))
                             : std::nullopt;
}

std::string_view bytes_of(const Row& row, Column column) {
    const std::optional<Datum> value = row.get(column);
    return value.has_value() ? stored_bytes(*value) : std::string_view();
}

// A list of tokens that grows in the current memory context.
class Tokens {
  public:
    void add(JsonToken::Kind kind, std::string_view text = {}) {
        if (count_ == capacity_) {
            const std::size_t wanted = capacity_ == 0 ? 16 : capacity_ * 2;
            const Size bytes = wanted * sizeof(JsonToken);
            tokens_ =
                static_cast<JsonToken*>(capacity_ == 0 ? palloc(bytes) : repalloc(tokens_, bytes));
            capacity_ = wanted;
        }
        tokens_[count_++] = {kind, text};
    }

    Json all() const { return {tokens_, count_}; }

  private:
    JsonToken* tokens_ = nullptr;
    std::size_t count_ = 0;
    std::size_t capacity_ = 0;
};

// The strings of a JSON column.
struct JsonText {
    const Row& row;
    Column column;
    Event& event;

    std::string_view of(const JsonbValue& value) const {
        const std::string_view stored(value.val.string.val,
                                      static_cast<std::size_t>(value.val.string.len));
        return copy_utf8(copy_bytes(stored.data(), stored.size()), row, column, event);
    }
};

void add_scalar(Tokens& tokens, const JsonbValue& value, const JsonText& text) {
    switch (value.type) {
        case jbvNull:
            tokens.add(JsonToken::Kind::null);
            break;
        case jbvString:
            tokens.add(JsonToken::Kind::string, text.of(value));
            break;
        case jbvNumeric:
            tokens.add(JsonToken::Kind::number,
                       DatumGetCString(
                           DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric))));
            break;
        case jbvBool:
            tokens.add(value.val.boolean ? JsonToken::Kind::boolean_true
                                         : JsonToken::Kind::boolean_false);
            break;
        default:
            elog(ERROR, "unexpected jsonb scalar type %d", static_cast<int>(value.type));
    }
}

Json json_of(const Row& row, Column column, Event& event) {
    const std::optional<Datum> stored = row.get(column);
    if (!stored.has_value()) {
        return {};
    }
    Jsonb* json = DatumGetJsonbP(*stored);
    const bool scalar = JB_ROOT_IS_SCALAR(json);
    const JsonText text{row, column, event};
    Tokens tokens;
    JsonbValue value;
    JsonbIterator* iterator = JsonbIteratorInit(&json->root);
    for (;;) {
        switch (JsonbIteratorNext(&iterator, &value, false)) {
            case WJB_DONE:
                return tokens.all();
            case WJB_KEY:
                tokens.add(JsonToken::Kind::key, text.of(value));
                break;
            case WJB_VALUE:
            case WJB_ELEM:
                add_scalar(tokens, value, text);
                break;
            case WJB_BEGIN_OBJECT:
                tokens.add(JsonToken::Kind::begin_object);
                break;
            case WJB_END_OBJECT:
                tokens.add(JsonToken::Kind::end_object);
                break;
            // jsonb keeps a scalar as an array of one.
            case WJB_BEGIN_ARRAY:
                if (!scalar) {
                    tokens.add(JsonToken::Kind::begin_array);
                }
                break;
            case WJB_END_ARRAY:
                if (!scalar) {
                    tokens.add(JsonToken::Kind::end_array);
                }
                break;
        }
    }
}

std::optional<std::int64_t> unix_us_of(const Row& row, Column column) {
    const std::optional<Datum> value = row.get(column);
    if (!value.has_value()) {
        return std::nullopt;
    }
    // Infinity stays the extreme value that it is; the mapping refuses it.
    if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(*value))) {
        return DatumGetTimestampTz(*value);
    }
    return DatumGetTimestampTz(*value) + UNIX_EPOCH_OFFSET_US;
}

template <class T, class Convert>
std::optional<T> number_of(const Row& row, Column column, Convert convert) {
    const std::optional<Datum> value = row.get(column);
    return value.has_value() ? std::optional<T>(convert(*value)) : std::nullopt;
}

}  // namespace

const char* const EVENT_COLUMNS =
    "e.seq, e.id, e.source, e.message_id, e.destination, e.event_type, e.routing_key, e.key, "
    "e.payload, e.content_type, e.content_encoding, e.schema_version, e.schema_reference, "
    "e.attributes, e.source_event_id, e.source_position, e.occurred_at, e.causation_id, "
    "e.correlation_id, e.reply_to, e.traceparent, e.tracestate, e.priority, "
    "(pg_catalog.date_part('epoch', e.expiration) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8, "
    "e.attempts, e.next_attempt_at IS NOT NULL";

void copy_event(HeapTuple tuple, TupleDesc description, Event& event) {
    const Row row(tuple, description);
    event.seq = DatumGetInt64(*row.get(SEQ));
    const pg_uuid_t* id = DatumGetUUIDP(*row.get(ID));
    memcpy(event.id.data(), id->data, event.id.size());
    event.source = text_of(row, SOURCE, event).value_or(std::string_view());
    event.message_id = text_of(row, MESSAGE_ID, event);
    event.destination = text_of(row, DESTINATION, event);
    event.event_type = text_of(row, EVENT_TYPE, event);
    event.routing_key = text_of(row, ROUTING_KEY, event);
    event.key = text_of(row, KEY, event);
    event.payload = bytes_of(row, PAYLOAD);
    event.content_type = text_of(row, CONTENT_TYPE, event);
    event.content_encoding = text_of(row, CONTENT_ENCODING, event);
    event.schema_version =
        number_of<std::int32_t>(row, SCHEMA_VERSION, [](Datum d) { return DatumGetInt32(d); });
    event.schema_reference = json_of(row, SCHEMA_REFERENCE, event);
    event.attributes = json_of(row, ATTRIBUTES, event);
    event.source_event_id = text_of(row, SOURCE_EVENT_ID, event);
    event.source_position =
        number_of<std::int64_t>(row, SOURCE_POSITION, [](Datum d) { return DatumGetInt64(d); });
    event.occurred_at_us = unix_us_of(row, OCCURRED_AT);
    event.causation_id = text_of(row, CAUSATION_ID, event);
    event.correlation_id = text_of(row, CORRELATION_ID, event);
    event.reply_to = text_of(row, REPLY_TO, event);
    event.traceparent = text_of(row, TRACEPARENT, event);
    event.tracestate = text_of(row, TRACESTATE, event);
    event.priority =
        number_of<std::int16_t>(row, PRIORITY, [](Datum d) { return DatumGetInt16(d); });
    event.expiration_ms =
        number_of<std::int64_t>(row, EXPIRATION_MS, [](Datum d) { return DatumGetInt64(d); });
    event.attempts = DatumGetInt32(*row.get(ATTEMPTS));
    event.deferred = DatumGetBool(*row.get(DEFERRED));
}

}  // namespace outbox::postgres
