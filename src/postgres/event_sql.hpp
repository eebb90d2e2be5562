#pragma once

// Pieces of SQL that the statements on an outbox table share. `e` is the table.

// A row is fresh while it has neither ended nor been deferred.
#define FRESH "e.published_at IS NULL AND e.dead_at IS NULL AND e.next_attempt_at IS NULL"

// The rows whose numbers a WITH query gives. A join with it could be planned, as long as the table
// was small when its statistics were taken, as a walk over the whole table.
#define SEQ_IN(query) "e.seq OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT q.seq FROM " query " q))"

// clang-format off
// Deferred rows that hold their group. Word for word the predicate of the indexes event_held_*_idx.
#define HOLDS(row) \
    row ".next_attempt_at IS NOT NULL AND " row ".next_attempt_at IS DISTINCT FROM " row ".available_at"

// Whether $1 is this ordering (core/ordering.hpp).
#define PER_KEY "$1 OPERATOR(pg_catalog.=) 1"
#define PER_SOURCE "$1 OPERATOR(pg_catalog.=) 2"
#define STOP_THE_LINE "$1 OPERATOR(pg_catalog.=) 3"

// The hash of the group that the row belongs to under ordering $1. The columns have collation "C", so
// equal means equal bytes.
#define KEY_HASH(row) \
    "pg_catalog.hashtextextended(" row ".key, pg_catalog.hashtextextended(" row ".source, 0))"
#define SOURCE_HASH(row) "pg_catalog.hashtextextended(" row ".source, 0)"
#define GROUP_HASH \
    "CASE WHEN " PER_KEY " THEN CASE WHEN e.key IS NOT NULL THEN " KEY_HASH("e") " END" \
    " WHEN " PER_SOURCE " THEN " SOURCE_HASH("e") \
    " WHEN " STOP_THE_LINE " THEN 0::pg_catalog.int8 END"
// clang-format on
