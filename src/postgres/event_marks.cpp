// What a drainer writes to the outbox table: claims, marks and the floor.
#include "postgres/event_copy.hpp"
#include "postgres/event_rows.hpp"
#include "postgres/event_sql.hpp"
#include "postgres/event_store.hpp"
#include "postgres/statement.hpp"
#include "postgres/storable.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

// A row that somebody else has brought to its end meanwhile is not ours to change, whoever's claim
// it carries.
#define UNENDED " AND e.published_at IS NULL AND e.dead_at IS NULL"

// The rows of the array $1 with what is to be written to them. The first part bounds the scan where
// the second is planned as a filter: see SEQ_IN.
#define MARKED "e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.seq OPERATOR(pg_catalog.=) f.seq"

Statement mark_published_statement = {
    "UPDATE outbox.event e SET published_at = pg_catalog.clock_timestamp(), claimed_at = NULL,"
    " claimed_by = NULL, next_attempt_at = NULL"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by OPERATOR(pg_catalog.=) "
    "$2" UNENDED " RETURNING e.seq",
    2,
    {INT8ARRAYOID, TEXTOID, InvalidOid, InvalidOid},
    nullptr};

// clang-format off
#define AFTER_DELAY \
    "(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)" \
    " (f.delay_ms OPERATOR(pg_catalog.*) '1 millisecond'::pg_catalog.interval))"
// Held rows come due together, at the beginning of a second: thousands that are held for minutes
// would else be claimed one by one. Not all at the very same time: see wake_held.
#define AT_FULL_SECOND \
    "(pg_catalog.date_trunc('second', " AFTER_DELAY ") OPERATOR(pg_catalog.+)" \
    " '1 second'::pg_catalog.interval OPERATOR(pg_catalog.+)" \
    " (pg_catalog.mod(e.seq, 1000) OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval))"
// clang-format on

// What is held, and not failed, is not charged.
Statement mark_failed_statement = {
    "UPDATE outbox.event e SET attempts = e.attempts OPERATOR(pg_catalog.+) f.charge,"
    " last_error = f.error, claimed_at = NULL, claimed_by = NULL,"
    " next_attempt_at = CASE WHEN f.charge OPERATOR(pg_catalog.=) 0"
    " THEN " AT_FULL_SECOND " ELSE " AFTER_DELAY
    " END"
    " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),"
    " pg_catalog.unnest($4)) AS f(seq, error, delay_ms, charge)"
    " WHERE " MARKED " AND e.claimed_by OPERATOR(pg_catalog.=) $5" UNENDED " RETURNING e.seq",
    5,
    {INT8ARRAYOID, TEXTARRAYOID, FLOAT8ARRAYOID, INT4ARRAYOID, TEXTOID},
    nullptr};

// The last attempt of a dead row is charged here; a rejected row was never sent.
Statement mark_ended_statement = {
    "UPDATE outbox.event e SET dead_at = pg_catalog.clock_timestamp(), outcome = f.outcome,"
    " error_code = f.code, last_error = f.error, claimed_at = NULL, claimed_by = NULL,"
    " next_attempt_at = NULL, attempts = e.attempts OPERATOR(pg_catalog.+)"
    " CASE WHEN f.outcome OPERATOR(pg_catalog.=) 'dead' THEN 1 ELSE 0 END"
    " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),"
    " pg_catalog.unnest($4)) AS f(seq, outcome, code, error)"
    " WHERE " MARKED " AND e.claimed_by OPERATOR(pg_catalog.=) $5" UNENDED " RETURNING e.seq",
    5,
    {INT8ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, TEXTARRAYOID, TEXTOID},
    nullptr};

Statement put_behind_statement = {
    "UPDATE outbox.event e SET next_attempt_at = 'infinity', claimed_at = NULL, claimed_by = NULL"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by OPERATOR(pg_catalog.=) "
    "$2" UNENDED " RETURNING e.seq",
    2,
    {INT8ARRAYOID, TEXTOID},
    nullptr};

Statement release_statement = {
    "UPDATE outbox.event e SET claimed_at = NULL, claimed_by = NULL"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by OPERATOR(pg_catalog.=) "
    "$2" UNENDED " RETURNING e.seq",
    2,
    {INT8ARRAYOID, TEXTOID, InvalidOid, InvalidOid},
    nullptr};

Statement renew_statement = {
    "UPDATE outbox.event e SET claimed_at = pg_catalog.clock_timestamp()"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by OPERATOR(pg_catalog.=) "
    "$2" UNENDED " RETURNING e.seq",
    2,
    {INT8ARRAYOID, TEXTOID, InvalidOid, InvalidOid},
    nullptr};

Statement write_floor_statement = {
    "INSERT INTO outbox.relay_state AS s (relay, floor, updated_at)"
    " VALUES ('default', $1, pg_catalog.clock_timestamp())"
    " ON CONFLICT (relay) DO UPDATE SET floor = EXCLUDED.floor,"
    " updated_at = EXCLUDED.updated_at",
    1,
    {INT8OID, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

// Put together at its first use, since the columns are named elsewhere. The limit lies in the list
// of rows; SKIP LOCKED sits in a CTE that is never inlined.
Statement* claim_statement() {
    static char sql[2048];
    static Statement statement = {sql, 2, {INT8ARRAYOID, TEXTOID, InvalidOid, InvalidOid}, nullptr};
    if (sql[0] == '\0') {
        snprintf(sql, sizeof(sql),
                 "WITH free AS MATERIALIZED (SELECT e.seq FROM outbox.event e"
                 " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by IS NULL"
                 " AND e.published_at IS NULL AND e.dead_at IS NULL"
                 " FOR NO KEY UPDATE SKIP LOCKED)"
                 " UPDATE outbox.event e SET claimed_at = pg_catalog.clock_timestamp(),"
                 " claimed_by = $2 WHERE " SEQ_IN("free") " RETURNING %s",
                 EVENT_COLUMNS);
    }
    return &statement;
}

Datum text_value(std::string_view text) {
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}

/// A text[] value under construction.
class TextArray {
  public:
    explicit TextArray(std::size_t size) : elements_(allocate<Datum>(size)) {}
    void add(const char* text) { elements_[count_++] = text_value(text); }
    Datum value() const {
        return PointerGetDatum(
            construct_array(elements_, count_, TEXTOID, -1, false, TYPALIGN_INT));
    }

  private:
    Datum* elements_;
    int count_ = 0;
};

// Runs a mark that takes the rows and the token.
std::optional<std::span<const std::int64_t>> mark(Transaction& transaction, Statement& statement,
                                                  std::span<const std::int64_t> seqs,
                                                  const char* token) {
    std::span<const std::int64_t> hit;
    const bool ok = transaction.run([&] {
        execute(statement, {bigint_array(seqs), text_value(token)}, Access::write);
        hit = returned_seqs();
    });
    return ok ? std::optional(hit) : std::nullopt;
}

/// Rows that were hit, of those wanted.
class Hits {
  public:
    explicit Hits(std::size_t wanted)
        : seqs_(allocate<std::int64_t>(wanted)), was_hit_(allocate<bool>(wanted)) {
        memset(was_hit_, 0, wanted);
    }

    void hit(std::size_t index, std::int64_t seq) {
        was_hit_[index] = true;
        seqs_[count_++] = seq;
    }
    void add(std::span<const std::int64_t> seqs) {
        for (std::int64_t seq : seqs) {
            seqs_[count_++] = seq;
        }
    }
    std::size_t count() const { return count_; }
    std::span<const std::int64_t> seqs() const { return {seqs_, count_}; }
    std::span<const std::int64_t> missing(std::span<const PlacedRow> wanted) const {
        auto* missing = allocate<std::int64_t>(wanted.size());
        std::size_t count = 0;
        for (std::size_t i = 0; i < wanted.size(); i++) {
            if (!was_hit_[i]) {
                missing[count++] = wanted[i].seq;
            }
        }
        return {missing, count};
    }

  private:
    std::int64_t* seqs_;
    bool* was_hit_;
    std::size_t count_ = 0;
};

/// Events under construction, in the memory of their batch.
class Claimed {
  public:
    Claimed(std::size_t most, MemoryContext memory) : memory_(memory) {
        MemoryContext previous = MemoryContextSwitchTo(memory_);
        events_ = allocate<Event>(most);
        MemoryContextSwitchTo(previous);
    }
    MemoryContext memory() const { return memory_; }
    /// The place for the next event, all default.
    Event& next() { return events_[count_] = Event{}; }
    /// Keeps what is there.
    void keep() { count_++; }
    std::span<Event> events() const { return {events_, count_}; }

  private:
    MemoryContext memory_;
    Event* events_;
    std::size_t count_ = 0;
};

void claim_in_place(EventRows& places, std::span<const PlacedRow> rows, const char* token,
                    Snapshot snapshot, Hits& hits, Claimed& claimed) {
    const Datum claimed_by = text_value(token);
    const TimestampTz now = GetCurrentTimestamp();
    MemoryContext previous = MemoryContextSwitchTo(claimed.memory());
    for (std::size_t i = 0; i < rows.size(); i++) {
        if (!places.read(rows[i].place, rows[i].seq, snapshot)) {
            continue;
        }
        // What is read of a row that is not had would stay in the memory of those that are.
        if (places.is_claimed() || !places.claim(now, claimed_by)) {
            places.discard();
            continue;
        }
        Event& event = claimed.next();
        places.event(event);
        event.place = places.place();
        claimed.keep();
        hits.hit(i, rows[i].seq);
    }
    MemoryContextSwitchTo(previous);
    CommandCounterIncrement();
}

// Passes over what somebody has locked, and sees what somebody has changed since the walk.
void claim_by_statement(std::span<const std::int64_t> seqs, const char* token, Snapshot snapshot,
                        Claimed& claimed) {
    execute(*claim_statement(), {bigint_array(seqs), text_value(token)}, Access::write, snapshot);
    MemoryContext previous = MemoryContextSwitchTo(claimed.memory());
    for (std::size_t i = 0; i < row_count(); i++) {
        copy_event(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, claimed.next());
        claimed.keep();
    }
    MemoryContextSwitchTo(previous);
    SPI_freetuptable(SPI_tuptable);
}

// What somebody has moved or locked meanwhile is left to the statement, which finds it and waits
// for it.
void mark_in_place(EventRows& places, std::span<const PlacedRow> rows, std::string_view token,
                   Hits& hits) {
    const TimestampTz now = GetCurrentTimestamp();
    MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "outbox_drainer rows", ALLOCSET_DEFAULT_SIZES);
    MemoryContext previous = MemoryContextSwitchTo(scratch);
    PushActiveSnapshot(GetLatestSnapshot());
    for (std::size_t i = 0; i < rows.size(); i++) {
        if (rows[i].place != 0 && places.read(rows[i].place, rows[i].seq, GetActiveSnapshot()) &&
            places.is_claimed_by(token) && places.mark_published(now)) {
            hits.hit(i, rows[i].seq);
        }
        MemoryContextReset(scratch);
    }
    PopActiveSnapshot();
    MemoryContextSwitchTo(previous);
    MemoryContextDelete(scratch);
    CommandCounterIncrement();
}

// UPDATE ... RETURNING has no order of its own.
int by_seq(const void* a, const void* b) {
    const std::int64_t left = static_cast<const Event*>(a)->seq;
    const std::int64_t right = static_cast<const Event*>(b)->seq;
    return left < right ? -1 : (left > right ? 1 : 0);
}

}  // namespace

std::optional<std::span<Event>> claim_rows(Transaction& transaction, Oid table,
                                           std::span<const PlacedRow> rows, const char* token,
                                           MemoryContext memory) {
    std::span<Event> claimed;
    const bool ok = transaction.run([&] {
        Hits hits(rows.size());
        Claimed taken(rows.size(), memory);
        EventRows places(table);
        if (places.can_update()) {
            claim_in_place(places, rows, token, transaction.snapshot(), hits, taken);
        }
        places.close();
        if (hits.count() < rows.size()) {
            claim_by_statement(hits.missing(rows), token, transaction.snapshot(), taken);
        }
        claimed = taken.events();
        qsort(claimed.data(), claimed.size(), sizeof(Event), by_seq);
    });
    return ok ? std::optional(claimed) : std::nullopt;
}

std::optional<std::span<const std::int64_t>> mark_published(Transaction& transaction, Oid table,
                                                            std::span<const PlacedRow> rows,
                                                            std::string_view token) {
    std::span<const std::int64_t> hit;
    const bool ok = transaction.run([&] {
        Hits hits(rows.size());
        EventRows places(table);
        if (places.can_update()) {
            mark_in_place(places, rows, token, hits);
        }
        places.close();
        if (hits.count() < rows.size()) {
            execute(mark_published_statement, {bigint_array(hits.missing(rows)), text_value(token)},
                    Access::write);
            hits.add(returned_seqs());
        }
        hit = hits.seqs();
    });
    return ok ? std::optional(hit) : std::nullopt;
}

std::optional<std::span<const std::int64_t>> mark_failed(Transaction& transaction,
                                                         std::span<const FailedMark> marks,
                                                         const char* token) {
    std::span<const std::int64_t> hit;
    const bool ok = transaction.run([&] {
        const int count = static_cast<int>(marks.size());
        auto* seqs = allocate<std::int64_t>(marks.size());
        auto* delays = allocate<Datum>(marks.size());
        auto* charges = allocate<Datum>(marks.size());
        TextArray errors(marks.size());
        for (std::size_t i = 0; i < marks.size(); i++) {
            seqs[i] = marks[i].seq;
            delays[i] = Float8GetDatum(static_cast<double>(marks[i].delay.count()));
            charges[i] = Int32GetDatum(marks[i].charged ? 1 : 0);
            errors.add(storable(marks[i].error.c_str()));
        }
        ArrayType* delay_ms = construct_array(delays, count, FLOAT8OID, sizeof(float8),
                                              FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
        ArrayType* charge =
            construct_array(charges, count, INT4OID, sizeof(std::int32_t), true, TYPALIGN_INT);
        execute(mark_failed_statement,
                {bigint_array({seqs, marks.size()}), errors.value(), PointerGetDatum(delay_ms),
                 PointerGetDatum(charge), text_value(token)},
                Access::write);
        hit = returned_seqs();
    });
    return ok ? std::optional(hit) : std::nullopt;
}

std::optional<std::span<const std::int64_t>> mark_ended(Transaction& transaction,
                                                        std::span<const EndedMark> marks,
                                                        const char* token) {
    std::span<const std::int64_t> hit;
    const bool ok = transaction.run([&] {
        auto* seqs = allocate<std::int64_t>(marks.size());
        TextArray outcomes(marks.size());
        TextArray codes(marks.size());
        TextArray errors(marks.size());
        for (std::size_t i = 0; i < marks.size(); i++) {
            seqs[i] = marks[i].seq;
            outcomes.add(marks[i].outcome == EndedMark::Outcome::dead ? "dead" : "rejected");
            codes.add(marks[i].code.c_str());
            errors.add(storable(marks[i].error.c_str()));
        }
        execute(mark_ended_statement,
                {bigint_array({seqs, marks.size()}), outcomes.value(), codes.value(),
                 errors.value(), text_value(token)},
                Access::write);
        hit = returned_seqs();
    });
    return ok ? std::optional(hit) : std::nullopt;
}

std::optional<std::span<const std::int64_t>> put_behind(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs,
                                                        const char* token) {
    return mark(transaction, put_behind_statement, seqs, token);
}

std::optional<std::span<const std::int64_t>> release_rows(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs,
                                                          const char* token) {
    return mark(transaction, release_statement, seqs, token);
}

std::optional<std::span<const std::int64_t>> renew_rows(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs,
                                                        const char* token) {
    return mark(transaction, renew_statement, seqs, token);
}

bool write_floor(Transaction& transaction, std::int64_t floor) {
    return transaction.run(
        [&] { execute(write_floor_statement, {Int64GetDatum(floor)}, Access::write); });
}

}  // namespace outbox::postgres
