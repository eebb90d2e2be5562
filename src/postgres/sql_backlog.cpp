// outbox.backlog(): exact while there is little left to do, else counted in part and estimated, so
// that it costs about the same however much there is.
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

/// So many rows of each lane are counted one by one.
constexpr int64 COUNTED_ROWS = 20000;

constexpr const char* FIND_FLOOR =
    "SELECT coalesce(s.floor, 0) FROM outbox.relay AS r "
    "LEFT JOIN outbox.relay_state AS s ON s.relay = r.name WHERE r.name = $1";

// The lanes, and what makes a row one of them that is not done.
#define ROWS(undone, lane)                                                           \
    "SELECT e.seq, e.published_at IS NULL AND e.dead_at IS NULL" undone              \
    " AS undone, e.claimed_by IS NOT NULL AS claimed, e.next_attempt_at IS NOT NULL" \
    " AND e.attempts > 0 AS tried,"                                                  \
    " e.next_attempt_at = 'infinity' AND e.available_at IS DISTINCT FROM 'infinity'" \
    " AS behind, greatest(e.enqueued_at, e.available_at) AS since"                   \
    " FROM outbox.event AS e WHERE " lane
constexpr const char* FRESH_ROWS = ROWS(" AND e.next_attempt_at IS NULL", "true");
constexpr const char* BEHIND_ROWS = ROWS("", "e.next_attempt_at IS NOT NULL");
constexpr const char* DUE_ROWS = ROWS("", "e.next_attempt_at < 'infinity'");
#undef ROWS

constexpr const char* TALLY = R"(
    count(*) AS read, max(r.seq) AS last,
    count(*) FILTER (WHERE r.undone AND NOT r.claimed AND NOT r.tried) AS pending,
    count(*) FILTER (WHERE r.undone AND r.claimed) AS publishing,
    count(*) FILTER (WHERE r.undone AND NOT r.claimed AND r.tried) AS failed,
    count(*) FILTER (WHERE r.undone AND NOT r.claimed AND r.behind) AS deferred,
    min(r.since) FILTER (
        WHERE r.undone AND NOT r.claimed AND NOT r.tried AND r.since <= clock_timestamp()
    ) AS oldest
)";

// A lane in the order of seq, above $1. $2 rows are counted. Of what follows, up to the last number
// drawn, the first 20 rows of each of 100 sections stand for their section. %1: the rows; %2: the
// tally; %3: the columns of the lane's index, and %4: the value of those before seq. (With an
// equality in their place the planner could walk the primary key.)
constexpr const char* COUNT_BY_SEQ = R"(
WITH counted AS (
    SELECT %2$s FROM (%1$s AND (%3$s) > (%4$s $1) ORDER BY %3$s LIMIT $2) AS r
),
section AS (
    SELECT c.last + (d.width * i / 100)::int8 AS low, c.last + (d.width * (i + 1) / 100)::int8 AS high
    FROM counted AS c
    CROSS JOIN LATERAL (
        SELECT coalesce(pg_sequence_last_value('outbox.event_seq'), 0)::numeric - c.last AS width
    ) AS d
    CROSS JOIN generate_series(0, 99) AS i
    WHERE c.read = $2 AND d.width > 0
),
sample AS (
    SELECT t.*, CASE WHEN t.read < 20 THEN 1 ELSE (s.high - s.low)::float8 / (t.last - s.low) END AS weight
    FROM section AS s
    CROSS JOIN LATERAL (
        SELECT %2$s
        FROM (%1$s AND (%3$s) > (%4$s s.low) AND (%3$s) <= (%4$s s.high) ORDER BY %3$s LIMIT 20) AS r
    ) AS t
),
rest AS (
    SELECT sum(s.pending * s.weight) AS pending, sum(s.publishing * s.weight) AS publishing,
        sum(s.failed * s.weight) AS failed, sum(s.deferred * s.weight) AS deferred, min(s.oldest) AS oldest
    FROM sample AS s
)
SELECT c.read,
    (c.pending + coalesce(r.pending, 0))::int8, (c.publishing + coalesce(r.publishing, 0))::int8,
    (c.failed + coalesce(r.failed, 0))::int8, (c.deferred + coalesce(r.deferred, 0))::int8,
    least(c.oldest, r.oldest)
FROM counted AS c CROSS JOIN rest AS r
)";

// Those that come due first. What is not read is taken to be like what is.
constexpr const char* COUNT_DUE = R"(
SELECT c.read, c.pending, c.publishing, c.failed, c.deferred, c.oldest
FROM (SELECT %2$s FROM (%1$s ORDER BY e.next_attempt_at, e.seq LIMIT $1) AS r) AS c
)";

constexpr const char* COUNT_DEAD = R"(
SELECT count(*), count(*) FILTER (WHERE coalesce(d.outcome, 'dead') <> 'discarded')
FROM (SELECT e.outcome FROM outbox.event AS e WHERE e.dead_at IS NOT NULL ORDER BY e.dead_at LIMIT $1) AS d
)";

// By its size and by how full its pages were when it was last vacuumed; an index that was small
// then says nothing, and 250 is about what a page takes.
constexpr const char* INDEX_ROWS = R"(
SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int8
    * CASE WHEN c.relpages >= 10 AND c.reltuples > 0 THEN c.reltuples / c.relpages ELSE 250 END)::int8
FROM pg_class AS c WHERE c.oid = $1::regclass
)";

/// Rows of one lane. Plain data.
struct Count {
    int64 read;
    int64 pending;
    int64 publishing;
    int64 failed;
    int64 deferred;
    TimestampTz oldest;  ///< DT_NOEND: none is pending

    bool partial() const { return read >= COUNTED_ROWS; }
};

struct Backlog {
    Count undone;
    int64 dead;
    bool estimated;
};

// The names in the queries are the server's, whoever calls. The planner may know nothing yet of a
// table that grew an hour ago; and a plan that it thinks expensive must not be compiled for half a
// second.
void pin_settings() {
    constexpr const char* PINS[][2] = {
        {"search_path", "pg_catalog, pg_temp"},
        {"enable_seqscan", "off"},
        {"enable_bitmapscan", "off"},
        {"jit", "off"},
    };
    for (const auto& [name, value] : PINS) {
        (void)set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
                                false);
    }
}

template <int N>
void run(const char* query, const Oid (&types)[N], const Datum (&arguments)[N]) {
    Oid type_list[N];
    Datum values[N];
    memcpy(type_list, types, sizeof(types));
    memcpy(values, arguments, sizeof(arguments));
    const int code = SPI_execute_with_args(query, N, type_list, values, nullptr, true, 0);
    if (code != SPI_OK_SELECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not read the backlog: %s", SPI_result_code_string(code))));
    }
}

Datum result(int number, bool* is_null) {
    return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number, is_null);
}

int64 result_int64(int number) {
    bool is_null = true;
    const Datum value = result(number, &is_null);
    return is_null ? 0 : DatumGetInt64(value);
}

int64 floor_of(text* relay) {
    run(FIND_FLOOR, {TEXTOID}, {PointerGetDatum(relay)});
    if (SPI_processed == 0) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("relay \"%s\" does not exist", text_to_cstring(relay)),
                        errhint("The relays are listed in outbox.relay.")));
    }
    return result_int64(1);
}

/// What a COUNT_ query has found.
Count counted() {
    Count found{};
    found.read = result_int64(1);
    found.pending = result_int64(2);
    found.publishing = result_int64(3);
    found.failed = result_int64(4);
    found.deferred = result_int64(5);
    bool none = true;
    const Datum oldest = result(6, &none);
    found.oldest = none ? DT_NOEND : DatumGetTimestampTz(oldest);
    return found;
}

Count count_by_seq(const char* query, int64 after) {
    run(query, {INT8OID, INT8OID}, {Int64GetDatum(after), Int64GetDatum(COUNTED_ROWS)});
    return counted();
}

/// Whatever is not above the floor has ended or is deferred, so the history is not read.
Count count_fresh(int64 floor) {
    return count_by_seq(psprintf(COUNT_BY_SEQ, FRESH_ROWS, TALLY, "e.seq", ""), floor);
}

/// Deferred rows that wait for another one, or for ever.
Count count_behind() {
    return count_by_seq(psprintf(COUNT_BY_SEQ, BEHIND_ROWS, TALLY, "e.next_attempt_at, e.seq",
                                 "timestamptz 'infinity',"),
                        PG_INT64_MIN);
}

/// About how many entries an index has, and at least as many as were read of it.
int64 entries(const char* index, int64 read) {
    run(INDEX_ROWS, {TEXTOID}, {CStringGetTextDatum(index)});
    return Max(result_int64(1), read);
}

/// Deferred rows that come due. `others`: rows of the same index that do not.
Count count_due(int64 others) {
    run(psprintf(COUNT_DUE, DUE_ROWS, TALLY), {INT8OID}, {Int64GetDatum(COUNTED_ROWS)});
    Count found = counted();
    if (found.partial()) {
        const int64 all = entries("outbox.event_due_idx", found.read + others) - others;
        const double factor = static_cast<double>(all) / static_cast<double>(found.read);
        for (int64* number : {&found.pending, &found.publishing, &found.failed, &found.deferred}) {
            *number = static_cast<int64>(static_cast<double>(*number) * factor);
        }
    }
    return found;
}

/// Rows that ended dead or rejected.
int64 count_dead(bool& estimated) {
    run(COUNT_DEAD, {INT8OID}, {Int64GetDatum(COUNTED_ROWS)});
    const int64 read = result_int64(1);
    const int64 dead = result_int64(2);
    if (read < COUNTED_ROWS) {
        return dead;
    }
    estimated = true;
    const double share = static_cast<double>(dead) / static_cast<double>(read);
    return static_cast<int64>(static_cast<double>(entries("outbox.event_dead_idx", read)) * share);
}

void add(Backlog& backlog, const Count& lane) {
    backlog.undone.pending += lane.pending;
    backlog.undone.publishing += lane.publishing;
    backlog.undone.failed += lane.failed;
    backlog.undone.deferred += lane.deferred;
    backlog.undone.oldest = Min(backlog.undone.oldest, lane.oldest);
    backlog.estimated = backlog.estimated || lane.partial();
}

Backlog read_backlog(text* relay) {
    if (SPI_connect() != SPI_OK_CONNECT) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not connect to SPI")));
    }
    Backlog backlog{};
    backlog.undone.oldest = DT_NOEND;
    add(backlog, count_fresh(floor_of(relay)));
    const Count behind = count_behind();
    add(backlog, behind);
    add(backlog, count_due(behind.pending + behind.publishing + behind.failed));
    backlog.dead = count_dead(backlog.estimated);
    SPI_finish();
    return backlog;
}

HeapTuple tuple_of(TupleDesc descriptor, Datum relay, const Backlog& backlog) {
    const bool none = backlog.undone.oldest == DT_NOEND;
    const Datum oldest = TimestampTzGetDatum(backlog.undone.oldest);
    Datum values[] = {
        relay,
        Int64GetDatum(backlog.undone.pending),
        Int64GetDatum(backlog.undone.publishing),
        Int64GetDatum(backlog.undone.failed),
        Int64GetDatum(backlog.undone.deferred),
        Int64GetDatum(backlog.dead),
        oldest,
        none
            ? Datum{0}
            : DirectFunctionCall2(timestamp_mi, TimestampTzGetDatum(GetCurrentTimestamp()), oldest),
        BoolGetDatum(backlog.estimated),
    };
    bool nulls[] = {false, false, false, false, false, false, none, none, false};
    static_assert(lengthof(values) == lengthof(nulls));
    return heap_form_tuple(descriptor, values, nulls);
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
    SavedUser saved = act_as_owner(event_table());
    pin_settings();
    const Backlog backlog = read_backlog(PG_GETARG_TEXT_PP(0));
    restore_user(saved);
    PG_RETURN_DATUM(
        HeapTupleGetDatum(tuple_of(BlessTupleDesc(descriptor), PG_GETARG_DATUM(0), backlog)));
}

}  // extern "C"
