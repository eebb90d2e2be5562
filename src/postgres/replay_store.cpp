// What a drainer reads and writes for a replay.
#include "postgres/replay_store.hpp"

#include "postgres/event_copy.hpp"
#include "postgres/statement.hpp"
#include "postgres/storable.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

// A stopped job takes its last progress too. SKIP LOCKED: an operator's open transaction must not
// hold up the drainer.
Statement save_statement = {
    "WITH job AS MATERIALIZED (SELECT j.id FROM outbox.replay_job j"
    " WHERE j.id OPERATOR(pg_catalog.=) $1"
    " AND j.state OPERATOR(pg_catalog.<>) 'finished' FOR NO KEY UPDATE SKIP LOCKED)"
    " UPDATE outbox.replay_job j SET position = GREATEST(j.position, $2),"
    " sent = j.sent OPERATOR(pg_catalog.+) $3, skipped = j.skipped OPERATOR(pg_catalog.+) $4"
    " FROM job WHERE j.id OPERATOR(pg_catalog.=) job.id",
    4,
    {INT8OID, INT8OID, INT8OID, INT8OID},
    nullptr};

Statement note_error_statement = {
    "UPDATE outbox.replay_job j SET last_error = $2 WHERE j.id OPERATOR(pg_catalog.=) $1",
    2,
    {INT8OID, TEXTOID, InvalidOid, InvalidOid},
    nullptr};

Statement finish_statement = {
    "UPDATE outbox.replay_job j SET state = 'finished',"
    " finished_at = pg_catalog.clock_timestamp()"
    " WHERE j.id OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'running'",
    1,
    {INT8OID, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

Statement fail_statement = {
    "UPDATE outbox.replay_job j SET state = 'failed', stopped_at = pg_catalog.clock_timestamp()"
    " WHERE j.id OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'running'",
    1,
    {INT8OID, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

Statement active_job_statement = {
    "SELECT j.id, j.position, j.last_seq, j.rate::pg_catalog.int8 FROM outbox.replay_job j"
    " WHERE j.relay OPERATOR(pg_catalog.=) 'default'"
    " AND j.state OPERATOR(pg_catalog.=) 'running' ORDER BY j.id LIMIT 1",
    0,
    {InvalidOid, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

// The limit is inside, so that no more rows are read than are looked at.
Statement walk_statement = {
    "SELECT w.seq, w.published_at IS NOT NULL"
    " AND (j.from_time IS NULL OR w.enqueued_at OPERATOR(pg_catalog.>=) j.from_time)"
    " AND (j.to_time IS NULL OR w.enqueued_at OPERATOR(pg_catalog.<) j.to_time)"
    " AND (j.event_type IS NULL OR w.event_type OPERATOR(pg_catalog.~~) j.event_type),"
    " w.published_at IS NULL AND w.claimed_by IS NOT NULL"
    " AND w.claimed_at OPERATOR(pg_catalog.<) j.started_at, w.bytes"
    " FROM (SELECT e.seq, e.published_at, e.enqueued_at, e.event_type, e.claimed_by, e.claimed_at,"
    " pg_catalog.octet_length(e.payload)::pg_catalog.int8 AS bytes FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.>) $2 AND e.seq OPERATOR(pg_catalog.<=) $3"
    " ORDER BY e.seq LIMIT $4) w"
    " CROSS JOIN outbox.replay_job j WHERE j.id OPERATOR(pg_catalog.=) $1 ORDER BY w.seq",
    4,
    {INT8OID, INT8OID, INT8OID, INT8OID},
    nullptr};

// The number of the last column of the fetch statement, which follows those of EVENT_COLUMNS.
int exchange_column() {
    return SPI_tuptable->tupdesc->natts;
}

// Put together at its first use, since the columns are named elsewhere. The exchange in UTF-8, as
// messages need it.
Statement* fetch_statement() {
    static char sql[2048];
    static Statement statement = {sql, 2, {INT8ARRAYOID, INT8OID, InvalidOid, InvalidOid}, nullptr};
    if (sql[0] == '\0') {
        snprintf(sql, sizeof(sql),
                 "SELECT %s, pg_catalog.convert_to(j.exchange, 'UTF8')"
                 " FROM outbox.event e CROSS JOIN outbox.replay_job j"
                 " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.published_at IS NOT NULL"
                 " AND j.id OPERATOR(pg_catalog.=) $2 ORDER BY e.seq",
                 EVENT_COLUMNS);
    }
    return &statement;
}

/// The rows that a chunk is made of.
struct Walk {
    std::span<const std::int64_t> wanted;
    std::int64_t looked_to = 0;
};

Walk walk(std::int64_t job, std::int64_t after, std::int64_t last, const ReplayLimits& limits) {
    execute(walk_statement,
            {Int64GetDatum(job), Int64GetDatum(after), Int64GetDatum(last),
             Int64GetDatum(static_cast<std::int64_t>(limits.looked_at))},
            Access::read);
    const std::size_t count = row_count();
    auto* seqs = allocate<std::int64_t>(count);
    std::size_t wanted = 0;
    std::int64_t bytes = 0;
    std::int64_t looked_to = after;
    std::size_t row = 0;
    for (; row < count; row++) {
        const std::int64_t seq = int64_column(row, 1);
        if (bool_column(row, 2)) {
            bytes += int64_column(row, 4);
            if (wanted > 0 && (wanted == limits.events || bytes > limits.bytes)) {
                break;
            }
            seqs[wanted++] = seq;
        } else if (bool_column(row, 3)) {
            break;
        }
        looked_to = seq;
    }
    if (row == count && count < limits.looked_at) {
        looked_to = last;
    }
    SPI_freetuptable(SPI_tuptable);
    return {{seqs, wanted}, looked_to};
}

std::span<const Event> fetch(std::int64_t job, std::span<const std::int64_t> seqs,
                             MemoryContext memory) {
    execute(*fetch_statement(), {bigint_array(seqs), Int64GetDatum(job)}, Access::read);
    const std::size_t count = row_count();
    MemoryContext previous = MemoryContextSwitchTo(memory);
    auto* events = allocate<Event>(count);
    for (std::size_t i = 0; i < count; i++) {
        events[i] = Event{};
        copy_event(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, events[i]);
        events[i].replay_job = job;
        bool is_null = false;
        column(i, exchange_column(), &is_null);
        if (!is_null) {
            events[i].destination = text_column(i, exchange_column());
        }
    }
    MemoryContextSwitchTo(previous);
    SPI_freetuptable(SPI_tuptable);
    return {events, count};
}

}  // namespace

std::optional<bool> save_progress(Transaction& transaction, const ReplayPlan& plan) {
    bool saved = false;
    const bool ok = transaction.run([&] {
        const Datum job = Int64GetDatum(plan.job);
        execute(save_statement,
                {job, Int64GetDatum(plan.position), Int64GetDatum(plan.sent),
                 Int64GetDatum(plan.skipped)},
                Access::write);
        saved = row_count() > 0;
        if (saved && !plan.error.empty()) {
            execute(note_error_statement, {job, CStringGetTextDatum(storable(plan.error.c_str()))},
                    Access::write);
        }
        if (saved && plan.end == ReplayPlan::End::finished) {
            execute(finish_statement, {job}, Access::write);
        } else if (saved && plan.end == ReplayPlan::End::failed) {
            execute(fail_statement, {job}, Access::write);
        }
    });
    return ok ? std::optional(saved) : std::nullopt;
}

std::optional<ReplayJob> read_active_job(Transaction& transaction) {
    ReplayJob job;
    const bool ok = transaction.run([&] {
        execute(active_job_statement, {}, Access::read);
        if (row_count() > 0) {
            job = {int64_column(0, 1), int64_column(0, 2), int64_column(0, 3),
                   static_cast<std::int32_t>(int64_column(0, 4))};
        }
    });
    return ok ? std::optional(job) : std::nullopt;
}

std::optional<ReplayChunk> read_chunk(Transaction& transaction, std::int64_t job,
                                      std::int64_t after, std::int64_t last,
                                      const ReplayLimits& limits, MemoryContext memory) {
    ReplayChunk chunk;
    const bool ok = transaction.run([&] {
        const Walk walked = walk(job, after, last, limits);
        chunk.looked_to = walked.looked_to;
        if (!walked.wanted.empty()) {
            chunk.events = fetch(job, walked.wanted, memory);
        }
    });
    return ok ? std::optional(chunk) : std::nullopt;
}

std::optional<ReplayResult> run_replay(Transaction& transaction, const ReplayPlan& plan,
                                       const ReplayLimits& limits, MemoryContext memory) {
    ReplayResult result;
    if (plan.job != 0) {
        const std::optional<bool> saved = save_progress(transaction, plan);
        if (!saved.has_value()) {
            return std::nullopt;
        }
        result.saved = *saved;
    }
    const std::optional<ReplayJob> active = read_active_job(transaction);
    if (!active.has_value()) {
        return std::nullopt;
    }
    result.active = *active;
    if (plan.chunk_of == 0 || plan.chunk_of != active->id) {
        return result;
    }
    const std::optional<ReplayChunk> chunk =
        read_chunk(transaction, plan.chunk_of, plan.read_after, plan.last_seq, limits, memory);
    if (!chunk.has_value()) {
        return std::nullopt;
    }
    result.chunk_of = plan.chunk_of;
    result.events = chunk->events;
    result.looked_to = chunk->looked_to;
    return result;
}

}  // namespace outbox::postgres
