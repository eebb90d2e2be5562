// What retention reads and removes.
#include "postgres/event_retention.hpp"

#include "postgres/event_sql.hpp"
#include "postgres/statement.hpp"

extern "C" {
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

Statement read_published_statement = {
    "SELECT e.seq, e.published_at FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.>) $1 AND e.seq OPERATOR(pg_catalog.<=) $2"
    " ORDER BY e.seq LIMIT $3",
    3,
    {INT8OID, INT8OID, INT8OID, InvalidOid},
    nullptr};

// Locks what it gives: rows that somebody else has locked must not hide those behind them.
Statement read_dead_statement = {
    "SELECT e.seq, e.dead_at FROM outbox.event e"
    " WHERE e.dead_at OPERATOR(pg_catalog.>=) $1 AND e.dead_at OPERATOR(pg_catalog.<=) $2"
    " AND e.seq OPERATOR(pg_catalog.<>) ALL ($3)"
    " ORDER BY e.dead_at LIMIT $4 FOR UPDATE SKIP LOCKED",
    4,
    {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8ARRAYOID, INT8OID},
    nullptr};

// SKIP LOCKED sits in a CTE that is never inlined.
Statement remove_statement = {
    "WITH ended AS MATERIALIZED (SELECT e.seq FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1)"
    " AND (e.published_at OPERATOR(pg_catalog.<=) $2 OR e.dead_at OPERATOR(pg_catalog.<=) $3)"
    " FOR UPDATE SKIP LOCKED)"
    " DELETE FROM outbox.event e WHERE " SEQ_IN("ended") " RETURNING e.seq",
    3,
    {INT8ARRAYOID, TIMESTAMPTZOID, TIMESTAMPTZOID, InvalidOid},
    nullptr};

Statement read_position_statement = {
    "SELECT s.retention_from FROM outbox.relay_state s"
    " WHERE s.relay OPERATOR(pg_catalog.=) 'default'",
    0,
    {InvalidOid, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

Statement write_position_statement = {
    "INSERT INTO outbox.relay_state AS s (relay, retention_from) VALUES ('default', $1)"
    " ON CONFLICT (relay) DO UPDATE SET retention_from = EXCLUDED.retention_from",
    1,
    {INT8OID, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

// What ended then or earlier is over. Kept for longer than there have been times: nothing is.
TimestampTz cutoff(Duration kept) {
    const TimestampTz now = GetCurrentTransactionStartTimestamp();
    if (kept <= Duration{0} || kept.count() > (now - MIN_TIMESTAMP) / 1000) {
        return DT_NOBEGIN;
    }
    return now - kept.count() * 1000;
}

// In milliseconds, the last one whole.
Duration left_until(TimestampTz end, TimestampTz cutoff) {
    if (cutoff == DT_NOBEGIN) {
        return Duration::max();
    }
    return end <= cutoff ? Duration{0} : Duration{(end - cutoff + 999) / 1000};
}

std::span<const RetainedRow> retained_rows(TimestampTz cutoff) {
    const std::size_t count = row_count();
    auto* rows = allocate<RetainedRow>(count);
    for (std::size_t i = 0; i < count; i++) {
        bool is_null = false;
        const TimestampTz end = DatumGetTimestampTz(column(i, 2, &is_null));
        rows[i].seq = int64_column(i, 1);
        // 'infinity' is a way to keep a row for ever.
        if (!is_null && end != DT_NOEND) {
            rows[i].counts = true;
            rows[i].left = left_until(end, cutoff);
            rows[i].end = end;
        }
    }
    SPI_freetuptable(SPI_tuptable);
    return {rows, count};
}

}  // namespace

std::optional<std::span<const RetainedRow>> read_retained(Transaction& transaction,
                                                          const Retention::Turn& turn,
                                                          std::span<const std::int64_t> refused,
                                                          const Kept& kept) {
    std::span<const RetainedRow> rows;
    const bool ok = transaction.run([&] {
        const Datum limit = Int64GetDatum(static_cast<std::int64_t>(turn.limit));
        if (turn.where == Retention::Where::dead) {
            const TimestampTz before = cutoff(kept.dead);
            execute(read_dead_statement,
                    {TimestampTzGetDatum(turn.dead_from), TimestampTzGetDatum(before),
                     bigint_array(refused), limit},
                    Access::write);
            rows = retained_rows(before);
            return;
        }
        execute(read_published_statement,
                {Int64GetDatum(turn.after), Int64GetDatum(turn.last), limit}, Access::read);
        rows = retained_rows(cutoff(kept.published));
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<std::span<const std::int64_t>> remove_ended(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs,
                                                          const Kept& kept) {
    std::span<const std::int64_t> removed;
    const bool ok = transaction.run([&] {
        execute(remove_statement,
                {bigint_array(seqs), TimestampTzGetDatum(cutoff(kept.published)),
                 TimestampTzGetDatum(cutoff(kept.dead))},
                Access::write);
        const std::size_t count = row_count();
        auto* rows = allocate<std::int64_t>(count);
        for (std::size_t i = 0; i < count; i++) {
            rows[i] = int64_column(i, 1);
        }
        removed = {rows, count};
    });
    return ok ? std::optional(removed) : std::nullopt;
}

std::optional<std::int64_t> read_retention_position(Transaction& transaction) {
    std::int64_t position = 0;
    const bool ok = transaction.run([&] {
        execute(read_position_statement, {}, Access::read);
        position = row_count() > 0 ? int64_column(0, 1) : 0;
    });
    return ok ? std::optional(position) : std::nullopt;
}

bool write_retention_position(Transaction& transaction, std::int64_t position) {
    return transaction.run(
        [&] { execute(write_position_statement, {Int64GetDatum(position)}, Access::write); });
}

}  // namespace outbox::postgres
