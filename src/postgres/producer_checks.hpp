#pragma once

#include "postgres/event_copy.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "utils/relcache.h"
}

namespace outbox::postgres {

/// The number of a column. `table` names the table in the error that is raised when it has no such
/// column of that type.
int find_column(TupleDesc description, const char* table, const char* name, Oid type);

/// The numbers of the columns that go into an event's message. Plain data.
struct EventColumns {
    int numbers[EventValues::ATTEMPTS];
};

/// Finds them, or raises an error.
EventColumns find_event_columns(TupleDesc description, const char* table);

/// The values of those columns from a row of the table, given by all its values. The number, the id
/// and what only a drainer needs are not among them.
void pick_event(const EventColumns& columns, const Datum* values, const bool* nulls,
                EventValues& out);

/// What core says of an event, without any object that owns memory.
struct Verdict {
    bool refused;
    char code[64];     ///< set when it is refused
    char detail[512];  ///< likewise; in UTF-8
};

/// Judges a row of an outbox table, given by the values of its columns, as producers are judged.
/// Does not fetch the payload. Raises PostgreSQL errors.
void judge_event(const EventColumns& columns, const Datum* values, const bool* nulls,
                 Verdict& verdict);

/// The detail in the encoding of the database.
const char* detail_text(const Verdict& verdict);

/// Raises the error that a producer gets for an event that was refused.
[[noreturn]] void refuse_event(const Verdict& verdict, Relation table);

}  // namespace outbox::postgres
