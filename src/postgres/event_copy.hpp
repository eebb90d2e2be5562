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

/// Copies a row with those columns to the current memory context, text converted to UTF-8; a text
/// that has no UTF-8 form is left out and noted in the event. Raises PostgreSQL errors (out of
/// memory).
void copy_event(HeapTuple tuple, TupleDesc description, Event& event);

}  // namespace outbox::postgres
