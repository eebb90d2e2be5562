#pragma once

#include "core/event.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "access/htup.h"
#include "access/tupdesc.h"
}

namespace outbox::postgres {

/// The columns of outbox.event that a drainer reads, in the order in which copy_event expects them,
/// for the select list of a statement that calls the table `e`.
extern const char* const EVENT_COLUMNS;

/// A row's values in the order of those columns, counted from 0. The expiration is in milliseconds,
/// an int8.
struct EventValues {
    enum Column : int {
        SEQ,
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
        POISONED,
        COUNT,
    };
    Datum values[COUNT];
    bool nulls[COUNT];
};

/// The columns' names in the table, for messages; those of ATTEMPTS and DEFERRED are missing.
extern const char* const EVENT_COLUMN_NAMES[EventValues::ATTEMPTS];

/// The milliseconds of an interval. What is beyond an int8 (an infinite interval) becomes the
/// extreme value, which core refuses.
std::int64_t milliseconds(Datum interval);

/// Reads the values into an event that is all default, as copy_event does, but where it can without
/// copying: the event lives as long as the values. The payload is left out. Raises PostgreSQL
/// errors.
void borrow_event(const EventValues& values, Event& event);

/// Its payload likewise.
void borrow_payload(const EventValues& values, Event& event);

/// Copies a row with those columns to the current memory context, text converted to UTF-8; a text
/// that has no UTF-8 form is left out and noted in the event. Raises PostgreSQL errors (out of
/// memory).
void copy_event(HeapTuple tuple, TupleDesc description, Event& event);

/// Gives back the payload's own memory, which the event must have: see Event::payload_memory.
void free_payload(const Event& event) noexcept;

}  // namespace outbox::postgres
