// Rows that are held for what is missing at the broker, and how they go on once it is there.
#include "postgres/event_sql.hpp"
#include "postgres/event_store.hpp"
#include "postgres/statement.hpp"
#include "postgres/storable.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/timestamp.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

constexpr std::int64_t UNIX_EPOCH_OFFSET_US =
    (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

// clang-format off
// Whether the row is held for that reason; empty: for any.
#define IS_HELD(row, error) \
    "coalesce(CASE WHEN " error " OPERATOR(pg_catalog.=) ''" \
    " THEN " row ".last_error OPERATOR(pg_catalog.~~) 'held: %'" \
    " ELSE " row ".last_error OPERATOR(pg_catalog.=) " error " END, false)"
// clang-format on

// Bounded by the rows looked at, not by those found: what is deferred may be millions that are
// scheduled.
Statement look_statement = {
    "SELECT e.seq, e.next_attempt_at, e.claimed_by IS NULL AND " IS_HELD("e", "$2")
    " FROM outbox.event e"
    " WHERE e.next_attempt_at OPERATOR(pg_catalog.>) greatest($1, pg_catalog.now())"
    " AND e.next_attempt_at OPERATOR(pg_catalog.<) 'infinity'"
    " ORDER BY e.next_attempt_at, e.seq LIMIT $3",
    3,
    {TIMESTAMPTZOID, TEXTOID, INT8OID},
    nullptr};

// Each row is judged again once it is locked. That happens outside of the first part, which names
// no column of a partial index: see lock_holders_statement. All at one time, so that they are taken
// in the order of their numbers, and at one that a claim of this transaction sees as past.
Statement wake_statement = {
    "WITH locked AS MATERIALIZED (SELECT h.seq, h.next_attempt_at, h.claimed_by, h.last_error,"
    " h.published_at, h.dead_at FROM outbox.event h"
    " WHERE h.seq OPERATOR(pg_catalog.=) ANY ($1) FOR NO KEY UPDATE SKIP LOCKED),"
    " held AS (SELECT l.seq FROM locked l WHERE l.published_at IS NULL AND l.dead_at IS NULL"
    " AND l.claimed_by IS NULL AND l.next_attempt_at OPERATOR(pg_catalog.<) 'infinity'"
    " AND " IS_HELD("l", "$2")
    ") UPDATE outbox.event e SET next_attempt_at = pg_catalog.now()"
    " WHERE " SEQ_IN("held") " RETURNING e.seq",
    2,
    {INT8ARRAYOID, TEXTOID},
    nullptr};

/// What a look has found. Lives in the transaction's memory.
struct Look {
    std::span<const std::int64_t> held;
    TimestampTz first = 0;
    TimestampTz last = 0;
    bool to_the_end = true;
};

Look looked_at() {
    Look look;
    const std::size_t count = row_count();
    auto* held = allocate<std::int64_t>(count);
    std::size_t held_count = 0;
    for (std::size_t i = 0; i < count; i++) {
        bool is_null = false;
        look.last = DatumGetTimestampTz(column(i, 2, &is_null));
        look.first = i == 0 ? look.last : look.first;
        if (bool_column(i, 3)) {
            held[held_count++] = int64_column(i, 1);
        }
    }
    SPI_freetuptable(SPI_tuptable);
    look.held = {held, held_count};
    look.to_the_end = count < LOOKED_AT_ONCE;
    return look;
}

// Others may come due at the very time of the last one, so that time is looked at again; unless all
// rows have that time and none of them leaves it. Then those beyond go on at their time.
std::optional<std::int64_t> next_step(const Look& look, std::size_t woken) {
    if (look.to_the_end) {
        return std::nullopt;
    }
    const bool again = look.last > look.first || woken > 0;
    return look.last - (again ? 1 : 0) + UNIX_EPOCH_OFFSET_US;
}

}  // namespace

std::optional<HeldStep> wake_held(Transaction& transaction, const std::string& error,
                                  std::int64_t after) {
    HeldStep step;
    const char* const text = error.c_str();
    const bool ok = transaction.run([&] {
        const Datum wanted = CStringGetTextDatum(storable(text));
        const TimestampTz from = after - UNIX_EPOCH_OFFSET_US;
        execute(look_statement, {TimestampTzGetDatum(from), wanted, Int64GetDatum(LOOKED_AT_ONCE)},
                Access::read);
        const Look look = looked_at();
        if (!look.held.empty()) {
            execute(wake_statement, {bigint_array(look.held), wanted}, Access::write);
            step.woken = row_count();
            SPI_freetuptable(SPI_tuptable);
        }
        step.reached = next_step(look, step.woken);
    });
    return ok ? std::optional(step) : std::nullopt;
}

}  // namespace outbox::postgres
