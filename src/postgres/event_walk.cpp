// What a drainer reads of the outbox table, without locking anything.
#include "postgres/event_rows.hpp"
#include "postgres/event_sql.hpp"
#include "postgres/event_store.hpp"
#include "postgres/statement.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
}

namespace outbox::postgres {

namespace {

// clang-format off
// One index probe for a row of the deferred lane that holds the group of `e`: the first one from the
// group's place in the index on, which is compared outside. Only the index of HOLDS gives that order
// and those bounds, whatever the statistics say; and two inequalities for each column would not
// bound the scan. Nor would a key that is NULL: all rows of the source are neither below nor above.
#define HOLDER(from, direction, from_of_source) \
    " LEFT JOIN LATERAL (SELECT h.source, h.key, h.seq FROM outbox.event h" \
    " WHERE " PER_KEY " AND e.key IS NOT NULL AND " HOLDS("h") \
    " AND ROW(h.source, h.key, h.seq) " from \
    " ORDER BY h.source " direction ", h.key " direction ", h.seq " direction " LIMIT 1) k" \
    " ON k.source OPERATOR(pg_catalog.=) e.source AND k.key OPERATOR(pg_catalog.=) e.key" \
    " LEFT JOIN LATERAL (SELECT h.source, h.seq FROM outbox.event h" \
    " WHERE " PER_SOURCE " AND " HOLDS("h") " AND ROW(h.source, h.seq) " from_of_source \
    " ORDER BY h.source " direction ", h.seq " direction " LIMIT 1) s" \
    " ON s.source OPERATOR(pg_catalog.=) e.source"
// For a fresh row the lowest one; for a deferred row the highest one below it.
#define LOWEST_HOLDER \
    HOLDER("OPERATOR(pg_catalog.>=) ROW(e.source, e.key, (-9223372036854775808)::pg_catalog.int8)", \
           "ASC", "OPERATOR(pg_catalog.>=) ROW(e.source, (-9223372036854775808)::pg_catalog.int8)")
#define HOLDER_BELOW \
    HOLDER("OPERATOR(pg_catalog.<) ROW(e.source, e.key, e.seq)", \
           "DESC", "OPERATOR(pg_catalog.<) ROW(e.source, e.seq)")

#define WALKED \
    "e.seq, (" FRESH "), e.claimed_by, pg_catalog.octet_length(e.payload)::pg_catalog.int8, " \
    GROUP_HASH ", NULL::pg_catalog.int8, e.attempts::pg_catalog.int8, e.id, e.ctid"
// clang-format on

Statement walk_fresh_statement = {
    "SELECT " WALKED
    " FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.>) $2 AND e.seq OPERATOR(pg_catalog.<=) $3"
    " ORDER BY e.seq LIMIT $4",
    4,
    {INT4OID, INT8OID, INT8OID, INT8OID},
    nullptr};

// The gaps come ascending and disjoint, and a lateral join keeps their order, so the limit cuts off
// the end.
Statement walk_gaps_statement = {
    "SELECT w.* FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) AS g(lo, hi)"
    " CROSS JOIN LATERAL (SELECT " WALKED
    " FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.>=) g.lo AND e.seq OPERATOR(pg_catalog.<=) g.hi"
    " ORDER BY e.seq) w LIMIT $4",
    4,
    {INT4OID, INT8ARRAYOID, INT8ARRAYOID, INT8OID},
    nullptr};

// One probe for each group, not for each row: where a thousand rows of the group have just left the
// deferred lane, each probe steps over what is left of them in the index.
Statement lowest_holders_statement = {
    "SELECT e.seq, coalesce(k.seq, s.seq) FROM outbox.event e" LOWEST_HOLDER
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($2)",
    2,
    {INT4OID, INT8ARRAYOID},
    nullptr};

// Whether the row's bucket is in the set $3.
#define IN_BUCKETS                                                                    \
    "(($3 OPERATOR(pg_catalog.>>) (coalesce(" GROUP_HASH                              \
    ", e.seq) OPERATOR(pg_catalog.&) 63)::pg_catalog.int4) OPERATOR(pg_catalog.&) 1)" \
    " OPERATOR(pg_catalog.=) 1"

// Locks what it gives: rows that somebody else has locked must not hide those behind them.
Statement walk_due_statement = {
    "SELECT e.seq, false, e.claimed_by, "
    "pg_catalog.octet_length(e.payload)::pg_catalog.int8, " GROUP_HASH
    ", coalesce(k.seq, s.seq), e.attempts::pg_catalog.int8, e.id, e.ctid FROM outbox.event "
    "e" HOLDER_BELOW
    " WHERE e.next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.now() AND e.claimed_by IS NULL"
    " AND " IN_BUCKETS
    " ORDER BY e.next_attempt_at, e.seq LIMIT $2 FOR NO KEY UPDATE OF e SKIP LOCKED",
    3,
    {INT4OID, INT8OID, INT8OID},
    nullptr};

// What stop_the_line waits for: the deferred row that is due first, scheduled ones aside. Not in
// the words of HOLDS, so that only the index by time fits, which has them in this order.
Statement halted_statement = {
    "SELECT h.seq, h.next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.now(),"
    " pg_catalog.ceil(pg_catalog.date_part('epoch', h.next_attempt_at OPERATOR(pg_catalog.-)"
    " pg_catalog.now()) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8"
    " FROM outbox.event h WHERE h.next_attempt_at OPERATOR(pg_catalog.<) 'infinity'"
    " AND coalesce(h.next_attempt_at OPERATOR(pg_catalog.<>) h.available_at, true)"
    " ORDER BY h.next_attempt_at, h.seq LIMIT 1",
    0,
    {},
    nullptr};

Statement next_due_statement = {
    "SELECT pg_catalog.ceil(pg_catalog.date_part('epoch', e.next_attempt_at"
    " OPERATOR(pg_catalog.-) pg_catalog.now()) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8"
    " FROM outbox.event e WHERE e.next_attempt_at OPERATOR(pg_catalog.>) pg_catalog.now()"
    " AND e.next_attempt_at OPERATOR(pg_catalog.<) 'infinity' AND e.claimed_by IS NULL"
    " ORDER BY e.next_attempt_at LIMIT 1",
    0,
    {InvalidOid, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

Statement last_drawn_statement = {"SELECT pg_catalog.pg_sequence_last_value($1)",
                                  1,
                                  {REGCLASSOID, InvalidOid, InvalidOid, InvalidOid},
                                  nullptr};

#define EXPIRED                                                                        \
    "e.claimed_at IS NULL OR e.claimed_at OPERATOR(pg_catalog.<)"                      \
    " (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) ($2 OPERATOR(pg_catalog.*)" \
    " '1 millisecond'::pg_catalog.interval))"

// Bounded by the rows walked, not by those found: what is walked may be a backlog of millions.
Statement inspect_statement = {
    "SELECT e.seq, e.claimed_by, " EXPIRED ", " FRESH ", coalesce(" GROUP_HASH
    ", e.seq), e.attempts::pg_catalog.int8, e.id"
    " FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.>) $3 AND e.seq OPERATOR(pg_catalog.<=) $4"
    " ORDER BY e.seq LIMIT $5",
    5,
    {INT4OID, FLOAT8OID, INT8OID, INT8OID, INT8OID},
    nullptr};

Statement held_deferred_statement = {
    "SELECT e.seq, e.claimed_by, " EXPIRED ", false, coalesce(" GROUP_HASH
    ", e.seq), e.attempts::pg_catalog.int8, e.id"
    " FROM outbox.event e"
    " WHERE e.claimed_by IS NOT NULL AND e.next_attempt_at OPERATOR(pg_catalog.<) 'infinity'"
    " ORDER BY e.next_attempt_at, e.seq LIMIT $3",
    3,
    {INT4OID, FLOAT8OID, INT8OID},
    nullptr};

Statement read_floor_statement = {
    "SELECT s.floor FROM outbox.relay_state s WHERE s.relay OPERATOR(pg_catalog.=) 'default'",
    0,
    {InvalidOid, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

Statement fingerprint_statement = {
    "SELECT pg_catalog.hashtextextended(pg_catalog.string_agg(s.setconfig::pg_catalog.text, ','"
    " ORDER BY s.setdatabase, s.setrole), 0) FROM pg_catalog.pg_db_role_setting s"
    " WHERE s.setdatabase OPERATOR(pg_catalog.=) ANY ($1)"
    " AND s.setrole OPERATOR(pg_catalog.=) ANY ($2)",
    2,
    {OIDARRAYOID, OIDARRAYOID, InvalidOid, InvalidOid},
    nullptr};

std::uint64_t place_column(std::size_t row, int number) {
    bool is_null = false;
    const Datum place = column(row, number, &is_null);
    return is_null ? 0 : pack_place(*reinterpret_cast<ItemPointer>(DatumGetPointer(place)));
}

std::span<const WalkedRow> walked_rows() {
    const std::size_t count = row_count();
    auto* rows = allocate<WalkedRow>(count);
    for (std::size_t i = 0; i < count; i++) {
        bool has_no_group = false;
        const Datum group = column(i, 5, &has_no_group);
        rows[i] = {int64_column(i, 1),
                   bool_column(i, 2),
                   text_column(i, 3),
                   int64_column(i, 4),
                   has_no_group ? std::nullopt
                                : std::optional(static_cast<std::uint64_t>(DatumGetInt64(group))),
                   int64_column(i, 6),
                   static_cast<std::int32_t>(int64_column(i, 7)),
                   uuid_column(i, 8),
                   place_column(i, 9)};
    }
    SPI_freetuptable(SPI_tuptable);
    return {rows, count};
}

std::span<const HeldRow> held() {
    const std::size_t count = row_count();
    auto* rows = allocate<HeldRow>(count);
    for (std::size_t i = 0; i < count; i++) {
        rows[i] = {int64_column(i, 1),
                   text_column(i, 2),
                   bool_column(i, 3),
                   bool_column(i, 4),
                   static_cast<std::uint64_t>(int64_column(i, 5)),
                   static_cast<std::int32_t>(int64_column(i, 6)),
                   uuid_column(i, 7)};
    }
    SPI_freetuptable(SPI_tuptable);
    return {rows, count};
}

Datum limit_value(std::size_t limit) {
    return Int64GetDatum(static_cast<std::int64_t>(limit));
}

Datum ordering_value(Ordering ordering) {
    return Int32GetDatum(static_cast<std::int32_t>(ordering));
}

Datum ttl_value(Duration lease_ttl) {
    return Float8GetDatum(static_cast<double>(lease_ttl.count()));
}

Datum oid_array(Oid first, Oid second) {
    Datum oids[] = {ObjectIdGetDatum(first), ObjectIdGetDatum(second)};
    return PointerGetDatum(construct_array(oids, 2, OIDOID, sizeof(Oid), true, TYPALIGN_INT));
}

}  // namespace

std::optional<std::int64_t> last_drawn(Transaction& transaction, Oid sequence) {
    std::int64_t last = 0;
    const bool ok = transaction.run([&] {
        execute(last_drawn_statement, {ObjectIdGetDatum(sequence)}, Access::read);
        last = int64_column(0, 1);
    });
    return ok ? std::optional(last) : std::nullopt;
}

std::optional<std::span<const WalkedRow>> walk_fresh(Transaction& transaction, Ordering ordering,
                                                     std::int64_t cursor, std::int64_t last,
                                                     std::size_t limit) {
    std::span<const WalkedRow> rows;
    const bool ok = transaction.run([&] {
        execute(walk_fresh_statement,
                {ordering_value(ordering), Int64GetDatum(cursor), Int64GetDatum(last),
                 limit_value(limit)},
                Access::read, transaction.snapshot());
        rows = walked_rows();
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<std::span<const WalkedRow>> walk_gaps(Transaction& transaction, Ordering ordering,
                                                    std::span<const Interval> gaps,
                                                    std::size_t limit) {
    std::span<const WalkedRow> rows;
    const bool ok = transaction.run([&] {
        auto* lows = allocate<std::int64_t>(gaps.size());
        auto* highs = allocate<std::int64_t>(gaps.size());
        for (std::size_t i = 0; i < gaps.size(); i++) {
            lows[i] = gaps[i].lo;
            highs[i] = gaps[i].hi;
        }
        execute(walk_gaps_statement,
                {ordering_value(ordering), bigint_array({lows, gaps.size()}),
                 bigint_array({highs, gaps.size()}), limit_value(limit)},
                Access::read, transaction.snapshot());
        rows = walked_rows();
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<std::span<const Holder>> lowest_holders(Transaction& transaction, Ordering ordering,
                                                      std::span<const std::int64_t> seqs) {
    std::span<const Holder> holders;
    const bool ok = transaction.run([&] {
        execute(lowest_holders_statement, {ordering_value(ordering), bigint_array(seqs)},
                Access::read, transaction.snapshot());
        const std::size_t count = row_count();
        auto* found = allocate<Holder>(count);
        for (std::size_t i = 0; i < count; i++) {
            found[i] = {int64_column(i, 1), int64_column(i, 2)};
        }
        SPI_freetuptable(SPI_tuptable);
        holders = {found, count};
    });
    return ok ? std::optional(holders) : std::nullopt;
}

std::optional<std::span<const WalkedRow>> walk_due(Transaction& transaction, Ordering ordering,
                                                   std::uint64_t buckets, std::size_t limit) {
    std::span<const WalkedRow> rows;
    const bool ok = transaction.run([&] {
        execute(walk_due_statement,
                {ordering_value(ordering), limit_value(limit),
                 Int64GetDatum(static_cast<std::int64_t>(buckets))},
                Access::write, transaction.snapshot());
        rows = walked_rows();
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<HaltedRow> halted_row(Transaction& transaction) {
    HaltedRow row;
    const bool ok = transaction.run([&] {
        execute(halted_statement, {}, Access::read, transaction.snapshot());
        if (row_count() > 0) {
            row = {int64_column(0, 1), bool_column(0, 2), Duration{int64_column(0, 3)}};
        }
    });
    return ok ? std::optional(row) : std::nullopt;
}

std::optional<Duration> next_due(Transaction& transaction) {
    Duration due{-1};
    const bool ok = transaction.run([&] {
        execute(next_due_statement, {}, Access::read, transaction.snapshot());
        if (row_count() > 0) {
            due = Duration{int64_column(0, 1)};
        }
    });
    return ok ? std::optional(due) : std::nullopt;
}

std::optional<std::span<const HeldRow>> inspect_rows(Transaction& transaction, Ordering ordering,
                                                     std::int64_t after, std::int64_t last,
                                                     std::size_t limit, Duration lease_ttl) {
    std::span<const HeldRow> rows;
    const bool ok = transaction.run([&] {
        execute(inspect_statement,
                {ordering_value(ordering), ttl_value(lease_ttl), Int64GetDatum(after),
                 Int64GetDatum(last), limit_value(limit)},
                Access::read);
        rows = held();
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<std::span<const HeldRow>> held_deferred_rows(Transaction& transaction,
                                                           Ordering ordering, std::size_t limit,
                                                           Duration lease_ttl) {
    std::span<const HeldRow> rows;
    const bool ok = transaction.run([&] {
        execute(held_deferred_statement,
                {ordering_value(ordering), ttl_value(lease_ttl), limit_value(limit)}, Access::read);
        rows = held();
    });
    return ok ? std::optional(rows) : std::nullopt;
}

std::optional<std::int64_t> read_floor(Transaction& transaction) {
    std::int64_t floor = 0;
    const bool ok = transaction.run([&] {
        execute(read_floor_statement, {}, Access::read);
        if (row_count() > 0) {
            floor = int64_column(0, 1);
        }
    });
    return ok ? std::optional(floor) : std::nullopt;
}

std::optional<std::int64_t> stored_settings_fingerprint(Transaction& transaction) {
    std::int64_t fingerprint = 0;
    const bool ok = transaction.run([&] {
        execute(fingerprint_statement,
                {oid_array(InvalidOid, MyDatabaseId), oid_array(InvalidOid, GetSessionUserId())},
                Access::read);
        fingerprint = int64_column(0, 1);
    });
    return ok ? std::optional(fingerprint) : std::nullopt;
}

}  // namespace outbox::postgres
