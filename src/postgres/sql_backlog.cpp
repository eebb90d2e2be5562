// outbox.backlog()
#include "postgres/outbox_table.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

constexpr int COUNTS = 6;  // the columns after the relay's name

constexpr const char* FIND_FLOOR =
    "SELECT coalesce(s.floor, 0) FROM outbox.relay AS r "
    "LEFT JOIN outbox.relay_state AS s ON s.relay OPERATOR(pg_catalog.=) r.name "
    "WHERE r.name OPERATOR(pg_catalog.=) $1";

// Whatever is not above the floor has ended or is deferred, so the history below it is not read.
constexpr const char* COUNT_EVENTS = R"(
WITH undone AS (
    SELECT e.claimed_by, e.next_attempt_at, e.attempts, e.last_error, e.available_at, e.enqueued_at
    FROM outbox.event AS e
    WHERE e.seq OPERATOR(pg_catalog.>) $1 AND e.next_attempt_at IS NULL
        AND e.published_at IS NULL AND e.dead_at IS NULL
    UNION ALL
    SELECT e.claimed_by, e.next_attempt_at, e.attempts, e.last_error, e.available_at, e.enqueued_at
    FROM outbox.event AS e
    WHERE e.next_attempt_at IS NOT NULL AND e.published_at IS NULL AND e.dead_at IS NULL
),
judged AS (
    SELECT
        u.claimed_by IS NOT NULL AS publishing,
        u.claimed_by IS NULL AND u.next_attempt_at IS NOT NULL
            AND (u.attempts OPERATOR(pg_catalog.>) 0 OR u.last_error IS NOT NULL) AS failed,
        greatest(u.enqueued_at, u.available_at) AS publishable_since
    FROM undone AS u
),
counted AS (
    SELECT
        pg_catalog.count(*) FILTER (WHERE NOT j.publishing AND NOT j.failed) AS pending,
        pg_catalog.count(*) FILTER (WHERE j.publishing) AS publishing,
        pg_catalog.count(*) FILTER (WHERE j.failed) AS failed,
        pg_catalog.min(j.publishable_since) FILTER (
            WHERE NOT j.publishing AND NOT j.failed
                AND j.publishable_since OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
        ) AS oldest_pending
    FROM judged AS j
)
SELECT c.pending, c.publishing, c.failed,
    (SELECT pg_catalog.count(*) FROM outbox.event AS e
     WHERE e.dead_at IS NOT NULL AND coalesce(e.outcome, 'dead') OPERATOR(pg_catalog.<>) 'discarded'),
    c.oldest_pending,
    pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) c.oldest_pending
FROM counted AS c)";

// The planner may know nothing yet of a table that grew an hour ago; and a plan that it thinks
// expensive must not be compiled for half a second.
void pin_planner() {
    for (const char* name : {"enable_seqscan", "jit"}) {
        (void)set_config_option(name, "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
                                false);
    }
}

void run(const char* query, Oid type, Datum argument) {
    int code = SPI_execute_with_args(query, 1, &type, &argument, nullptr, false, 0);
    if (code != SPI_OK_SELECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not read the backlog: %s", SPI_result_code_string(code))));
    }
}

Datum floor_of(text* relay) {
    run(FIND_FLOOR, TEXTOID, PointerGetDatum(relay));
    if (SPI_processed == 0) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("relay \"%s\" does not exist", text_to_cstring(relay)),
                        errhint("The relays are listed in outbox.relay.")));
    }
    bool null = true;
    return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
}

/// The counts and times as values of their own; the interval is copied into `age`, since what SPI
/// returns goes with it.
void read_backlog(text* relay, Datum* values, bool* nulls, Interval& age) {
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    run(COUNT_EVENTS, INT8OID, floor_of(relay));
    for (int i = 0; i < COUNTS; i++) {
        values[i] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1, &nulls[i]);
    }
    if (!nulls[COUNTS - 1]) {
        age = *DatumGetIntervalP(values[COUNTS - 1]);
        values[COUNTS - 1] = IntervalPGetDatum(&age);
    }
    SPI_finish();
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_backlog);

/// outbox.backlog(relay text) returns record
OBD_EXPORT Datum outbox_drainer_backlog(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    TupleDesc descriptor = nullptr;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE) {
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("function returning record called in a context that cannot take it")));
    }
    Datum values[1 + COUNTS] = {PG_GETARG_DATUM(0)};
    bool nulls[1 + COUNTS] = {};
    Interval age{};

    SavedUser saved = act_as_owner(event_table());
    pin_planner();
    read_backlog(PG_GETARG_TEXT_PP(0), values + 1, nulls + 1, age);
    restore_user(saved);
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), values, nulls)));
}

}  // extern "C"
