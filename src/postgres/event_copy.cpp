#include "postgres/event_copy.hpp"

#include <cmath>

#include "postgres/guard.hpp"
#include "postgres/json_tokens.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "datatype/timestamp.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
}

namespace outbox::postgres {

namespace {

constexpr std::int64_t UNIX_EPOCH_OFFSET_US =
    (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

using Column = EventValues::Column;

// What an AllocSet takes from the system for one piece alone: ALLOC_CHUNK_LIMIT, utils/mmgr/aset.c.
constexpr std::size_t LEAST_ALONE = 8192;

enum class Bytes : std::uint8_t { copied, borrowed };

class Row {
  public:
    Row(const EventValues& values, Bytes bytes) : values_(values), bytes_(bytes) {}

    std::optional<Datum> get(Column column) const {
        return values_.nulls[column] ? std::nullopt : std::optional<Datum>(values_.values[column]);
    }

    Bytes bytes() const { return bytes_; }

  private:
    const EventValues& values_;
    Bytes bytes_;
};

std::string_view copy_bytes(const char* bytes, std::size_t length) {
    char* copy = static_cast<char*>(MemoryContextAllocHuge(CurrentMemoryContext, length));
    memcpy(copy, bytes, length);
    return {copy, length};
}

struct Stored {
    std::string_view bytes;
    varlena* ours = nullptr;  ///< the memory in which they lie if it was made for them alone
};

// The bytes of a text or bytea. A value that had to be decompressed or fetched lies in our memory
// already.
Stored stored_value(Datum value, Bytes wanted) {
    varlena* stored = PG_DETOAST_DATUM_PACKED(value);
    const std::string_view bytes(VARDATA_ANY(stored), VARSIZE_ANY_EXHDR(stored));
    if (stored != reinterpret_cast<varlena*>(DatumGetPointer(value))) {
        return {bytes, stored};
    }
    return {wanted == Bytes::borrowed ? bytes : copy_bytes(bytes.data(), bytes.size())};
}

std::string_view stored_bytes(Datum value, Bytes wanted) {
    return stored_value(value, wanted).bytes;
}

// The conversion from the database's encoding, looked up once.
Oid conversion_to_utf8() {
    static Oid procedure = InvalidOid;
    if (!OidIsValid(procedure)) {
        procedure = FindDefaultConversionProc(GetDatabaseEncoding(), PG_UTF8);
    }
    return procedure;
}

// `text`, which lives as long as the event, in UTF-8; nullopt when it has no such form. The
// server's own conversion would raise an error there, and one row would stop all others.
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

// A text of the column as it is sent; notes in the event when it cannot be.
std::string_view in_utf8(std::string_view text, Column column, Event& event) {
    const std::optional<std::string_view> converted = to_utf8(text);
    if (!converted.has_value()) {
        event.unencodable = EVENT_COLUMN_NAMES[column];
    }
    return converted.value_or(std::string_view());
}

std::optional<std::string_view> text_of(const Row& row, Column column, Event& event) {
    const std::optional<Datum> value = row.get(column);
    return value.has_value()
               ? std::optional(in_utf8(stored_bytes(*value, row.bytes()), column, event))
               : std::nullopt;
}

// Smaller memory goes back to its context only, whose size stays the same.
void read_payload(const Row& row, Event& event) {
    const std::optional<Datum> value = row.get(Column::PAYLOAD);
    if (!value.has_value()) {
        return;
    }
    const Stored payload = stored_value(*value, row.bytes());
    event.payload = payload.bytes;
    event.payload_memory = payload.bytes.size() > LEAST_ALONE ? payload.ours : nullptr;
}

// The strings of a JSON column.
struct JsonText {
    const Row& row;
    Column column;
    Event& event;

    std::string_view of(const JsonbValue& value) const {
        const std::string_view stored(value.val.string.val,
                                      static_cast<std::size_t>(value.val.string.len));
        return in_utf8(
            row.bytes() == Bytes::copied ? copy_bytes(stored.data(), stored.size()) : stored,
            column, event);
    }
};

Json json_of(const Row& row, Column column, Event& event) {
    const std::optional<Datum> stored = row.get(column);
    return stored.has_value() ? json_tokens(DatumGetJsonbP(*stored), JsonText{row, column, event})
                              : Json{};
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

void read_identity(const Row& row, Event& event) {
    if (const std::optional<Datum> seq = row.get(Column::SEQ)) {
        event.seq = DatumGetInt64(*seq);
    }
    if (const std::optional<Datum> id = row.get(Column::ID)) {
        memcpy(event.id.data(), DatumGetUUIDP(*id)->data, event.id.size());
    }
}

void read_envelope(const Row& row, Event& event) {
    event.source = text_of(row, Column::SOURCE, event).value_or(std::string_view());
    event.message_id = text_of(row, Column::MESSAGE_ID, event);
    event.destination = text_of(row, Column::DESTINATION, event);
    event.event_type = text_of(row, Column::EVENT_TYPE, event);
    event.routing_key = text_of(row, Column::ROUTING_KEY, event);
    event.key = text_of(row, Column::KEY, event);
    event.content_type = text_of(row, Column::CONTENT_TYPE, event);
    event.content_encoding = text_of(row, Column::CONTENT_ENCODING, event);
    event.schema_version = number_of<std::int32_t>(row, Column::SCHEMA_VERSION,
                                                   [](Datum d) { return DatumGetInt32(d); });
    event.schema_reference = json_of(row, Column::SCHEMA_REFERENCE, event);
    event.attributes = json_of(row, Column::ATTRIBUTES, event);
    event.source_event_id = text_of(row, Column::SOURCE_EVENT_ID, event);
    event.source_position = number_of<std::int64_t>(row, Column::SOURCE_POSITION,
                                                    [](Datum d) { return DatumGetInt64(d); });
    event.occurred_at_us = unix_us_of(row, Column::OCCURRED_AT);
    event.causation_id = text_of(row, Column::CAUSATION_ID, event);
    event.correlation_id = text_of(row, Column::CORRELATION_ID, event);
    event.reply_to = text_of(row, Column::REPLY_TO, event);
    event.traceparent = text_of(row, Column::TRACEPARENT, event);
    event.tracestate = text_of(row, Column::TRACESTATE, event);
    event.priority =
        number_of<std::int16_t>(row, Column::PRIORITY, [](Datum d) { return DatumGetInt16(d); });
    event.expiration_ms = number_of<std::int64_t>(row, Column::EXPIRATION_MS,
                                                  [](Datum d) { return DatumGetInt64(d); });
}

}  // namespace

const char* const EVENT_COLUMNS =
    "e.seq, e.id, e.source, e.message_id, e.destination, e.event_type, e.routing_key, e.key, "
    "e.payload, e.content_type, e.content_encoding, e.schema_version, e.schema_reference, "
    "e.attributes, e.source_event_id, e.source_position, e.occurred_at, e.causation_id, "
    "e.correlation_id, e.reply_to, e.traceparent, e.tracestate, e.priority, "
    "e.expiration, e.attempts, e.next_attempt_at IS NOT NULL, "
    "coalesce(pg_catalog.starts_with(e.last_error, 'poison:'), false)";

// In the order of EventValues::Column.
const char* const EVENT_COLUMN_NAMES[EventValues::ATTEMPTS] = {
    "seq",
    "id",
    "source",
    "message_id",
    "destination",
    "event_type",
    "routing_key",
    "key",
    "payload",
    "content_type",
    "content_encoding",
    "schema_version",
    "schema_reference",
    "attributes",
    "source_event_id",
    "source_position",
    "occurred_at",
    "causation_id",
    "correlation_id",
    "reply_to",
    "traceparent",
    "tracestate",
    "priority",
    "expiration",
};

std::int64_t milliseconds(Datum interval) {
    const Datum epoch = DirectFunctionCall2(interval_part, CStringGetTextDatum("epoch"), interval);
    const double rounded = std::rint(DatumGetFloat8(epoch) * 1000);
    if (FLOAT8_FITS_IN_INT64(rounded)) {
        return static_cast<std::int64_t>(rounded);
    }
    return rounded < 0 ? PG_INT64_MIN : PG_INT64_MAX;
}

void borrow_event(const EventValues& values, Event& event) {
    const Row row(values, Bytes::borrowed);
    read_identity(row, event);
    read_envelope(row, event);
}

void borrow_payload(const EventValues& values, Event& event) {
    read_payload(Row(values, Bytes::borrowed), event);
}

void free_payload(const Event& event) noexcept {
    PgError ignored;
    pg_try(ignored, [&event] { pfree(event.payload_memory); });
}

void copy_event(HeapTuple tuple, TupleDesc description, Event& event) {
    EventValues found;
    for (int i = 0; i < EventValues::COUNT; i++) {
        found.values[i] = SPI_getbinval(tuple, description, i + 1, &found.nulls[i]);
    }
    if (!found.nulls[Column::EXPIRATION_MS]) {
        Datum& expiration = found.values[Column::EXPIRATION_MS];
        expiration = Int64GetDatum(milliseconds(expiration));
    }
    const Row row(found, Bytes::copied);
    read_identity(row, event);
    read_envelope(row, event);
    read_payload(row, event);
    event.attempts = DatumGetInt32(found.values[Column::ATTEMPTS]);
    event.deferred = DatumGetBool(found.values[Column::DEFERRED]);
    event.poisoned = DatumGetBool(found.values[Column::POISONED]);
}

}  // namespace outbox::postgres
