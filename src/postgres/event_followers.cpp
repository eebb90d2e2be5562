// Groups in the deferred lane: rows are put behind others of their group, and called when the group
// is free.
#include "postgres/event_sql.hpp"
#include "postgres/event_store.hpp"
#include "postgres/statement.hpp"

extern "C" {
#include "catalog/pg_type.h"
}

namespace outbox::postgres {

namespace {

// The first part names no column of a partial index: one that was empty when its statistics were
// taken would look like the cheaper way to any row.
Statement lock_holders_statement = {
    "WITH locked AS MATERIALIZED (SELECT h.seq, h.next_attempt_at, h.published_at, h.dead_at"
    " FROM outbox.event h WHERE h.seq OPERATOR(pg_catalog.=) ANY ($1) FOR SHARE SKIP LOCKED)"
    " SELECT l.seq FROM locked l WHERE l.next_attempt_at IS NOT NULL AND l.published_at IS NULL"
    " AND l.dead_at IS NULL ORDER BY l.seq",
    1,
    {INT8ARRAYOID},
    nullptr};

Statement lock_statement = {
    "WITH locked AS MATERIALIZED (SELECT e.seq FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) FOR NO KEY UPDATE SKIP LOCKED)"
    " SELECT l.seq FROM locked l ORDER BY l.seq",
    1,
    {INT8ARRAYOID},
    nullptr};

Statement defer_statement = {
    "WITH free AS MATERIALIZED (SELECT e.seq FROM outbox.event e"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) AND e.claimed_by IS NULL"
    " AND e.published_at IS NULL AND e.dead_at IS NULL"
    " FOR NO KEY UPDATE SKIP LOCKED)"
    " UPDATE outbox.event e SET next_attempt_at = 'infinity'"
    " WHERE " SEQ_IN("free") " RETURNING e.seq",
    1,
    {INT8ARRAYOID},
    nullptr};

// clang-format off
// A group is free when the lowest row that holds it is one that waits. Then the lowest of those that
// wait are due, all at one time, so that they are taken in the order of their numbers. Rows are read
// from the group's place in the index on, and compared outside: see HOLDER in event_walk.cpp.
#define RELEASE_FOLLOWERS(group_columns, known_group, from_group, order, same_group) \
    "WITH freed AS MATERIALIZED (SELECT DISTINCT " group_columns " FROM outbox.event g" \
    " WHERE g.seq OPERATOR(pg_catalog.=) ANY ($1) AND " known_group ")," \
    " waiting AS MATERIALIZED (SELECT f.seq FROM freed g" \
    " CROSS JOIN LATERAL (SELECT h.source, h.key, h.next_attempt_at, h.claimed_by" \
    " FROM outbox.event h WHERE " HOLDS("h") " AND " from_group " ORDER BY " order " LIMIT 1) first" \
    " CROSS JOIN LATERAL (SELECT h.source, h.key, h.seq, h.next_attempt_at, h.claimed_by" \
    " FROM outbox.event h WHERE " HOLDS("h") " AND " from_group " ORDER BY " order " LIMIT $2) f" \
    " WHERE " same_group("first") " AND " same_group("f") \
    " AND first.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' AND first.claimed_by IS NULL" \
    " AND f.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' AND f.claimed_by IS NULL)," \
    " free AS MATERIALIZED (SELECT e.seq FROM waiting w CROSS JOIN LATERAL" \
    " (SELECT x.seq FROM outbox.event x WHERE x.seq OPERATOR(pg_catalog.=) w.seq" \
    " AND x.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' AND x.claimed_by IS NULL" \
    " FOR NO KEY UPDATE SKIP LOCKED) e)" \
    " UPDATE outbox.event e SET next_attempt_at = pg_catalog.now()" \
    " WHERE " SEQ_IN("free") " RETURNING e.seq"

#define SAME_SOURCE(row) row ".source OPERATOR(pg_catalog.=) g.source"
#define SAME_KEY(row) SAME_SOURCE(row) " AND " row ".key OPERATOR(pg_catalog.=) g.key"
#define FROM_KEY \
    "ROW(h.source, h.key, h.seq) OPERATOR(pg_catalog.>=)" \
    " ROW(g.source, g.key, (-9223372036854775808)::pg_catalog.int8)"
#define FROM_SOURCE \
    "ROW(h.source, h.seq) OPERATOR(pg_catalog.>=)" \
    " ROW(g.source, (-9223372036854775808)::pg_catalog.int8)"
// clang-format on

Statement release_key_followers_statement = {
    RELEASE_FOLLOWERS("g.source, g.key", "g.key IS NOT NULL", FROM_KEY, "h.source, h.key, h.seq",
                      SAME_KEY),
    2,
    {INT8ARRAYOID, INT8OID},
    nullptr};
Statement release_source_followers_statement = {
    RELEASE_FOLLOWERS("g.source", "true", FROM_SOURCE, "h.source, h.seq", SAME_SOURCE),
    2,
    {INT8ARRAYOID, INT8OID},
    nullptr};

// clang-format off
// Skip scans: the lowest row of one group after the other.
Statement waiting_keys_statement = {
    "WITH RECURSIVE head AS ((SELECT h.source, h.key, h.seq, h.next_attempt_at, h.claimed_by"
    " FROM outbox.event h WHERE " HOLDS("h") " AND h.key IS NOT NULL"
    " AND ROW(h.source, h.key) OPERATOR(pg_catalog.>) ROW(coalesce((SELECT b.source FROM outbox.event b"
    " WHERE b.seq OPERATOR(pg_catalog.=) $1), ''), coalesce((SELECT b.key FROM outbox.event b"
    " WHERE b.seq OPERATOR(pg_catalog.=) $1), '')) ORDER BY h.source, h.key, h.seq LIMIT 1)"
    " UNION ALL SELECT n.* FROM head g CROSS JOIN LATERAL"
    " (SELECT h.source, h.key, h.seq, h.next_attempt_at, h.claimed_by FROM outbox.event h"
    " WHERE " HOLDS("h") " AND h.key IS NOT NULL"
    " AND ROW(h.source, h.key) OPERATOR(pg_catalog.>) ROW(g.source, g.key)"
    " ORDER BY h.source, h.key, h.seq LIMIT 1) n)"
    " SELECT g.seq, " KEY_HASH("g") ", g.next_attempt_at OPERATOR(pg_catalog.=) 'infinity'"
    " AND g.claimed_by IS NULL FROM head g LIMIT $2",
    2,
    {INT8OID, INT8OID},
    nullptr};
Statement waiting_sources_statement = {
    "WITH RECURSIVE head AS ((SELECT h.source, h.seq, h.next_attempt_at, h.claimed_by"
    " FROM outbox.event h WHERE " HOLDS("h")
    " AND h.source OPERATOR(pg_catalog.>) coalesce((SELECT b.source FROM outbox.event b"
    " WHERE b.seq OPERATOR(pg_catalog.=) $1), '') ORDER BY h.source, h.seq LIMIT 1)"
    " UNION ALL SELECT n.* FROM head g CROSS JOIN LATERAL"
    " (SELECT h.source, h.seq, h.next_attempt_at, h.claimed_by FROM outbox.event h"
    " WHERE " HOLDS("h") " AND h.source OPERATOR(pg_catalog.>) g.source"
    " ORDER BY h.source, h.seq LIMIT 1) n)"
    " SELECT g.seq, " SOURCE_HASH("g") ", g.next_attempt_at OPERATOR(pg_catalog.=) 'infinity'"
    " AND g.claimed_by IS NULL FROM head g LIMIT $2",
    2,
    {INT8OID, INT8OID},
    nullptr};
// clang-format on

// Source by source, as the waiting rows without a key are few among those with one.
Statement lock_keyless_statement = {
    "WITH RECURSIVE source AS ((SELECT h.source FROM outbox.event h WHERE " HOLDS("h")
    " ORDER BY h.source, h.seq LIMIT 1)"
    " UNION ALL SELECT n.source FROM source s CROSS JOIN LATERAL"
    " (SELECT h.source FROM outbox.event h WHERE " HOLDS("h")
    " AND h.source OPERATOR(pg_catalog.>) s.source ORDER BY h.source, h.seq LIMIT 1) n),"
    " waiting AS MATERIALIZED (SELECT w.seq FROM source s CROSS JOIN LATERAL"
    " (SELECT h.seq, h.next_attempt_at FROM outbox.event h WHERE " HOLDS("h")
    " AND h.source OPERATOR(pg_catalog.=) s.source AND h.key IS NULL ORDER BY h.seq LIMIT $1) w"
    " WHERE w.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' LIMIT $1)"
    " SELECT e.seq FROM waiting w CROSS JOIN LATERAL"
    " (SELECT x.seq FROM outbox.event x WHERE x.seq OPERATOR(pg_catalog.=) w.seq"
    " AND x.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' AND x.claimed_by IS NULL"
    " FOR NO KEY UPDATE SKIP LOCKED) e",
    1,
    {INT8OID},
    nullptr};

Statement lock_waiting_statement = {
    "SELECT e.seq FROM outbox.event e"
    " WHERE e.next_attempt_at OPERATOR(pg_catalog.=) 'infinity' AND e.claimed_by IS NULL"
    " AND e.next_attempt_at IS DISTINCT FROM e.available_at"
    " ORDER BY e.next_attempt_at, e.seq LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED",
    1,
    {INT8OID},
    nullptr};

Statement call_statement = {
    "UPDATE outbox.event e SET next_attempt_at = pg_catalog.now()"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1)",
    1,
    {INT8ARRAYOID},
    nullptr};

// The rows that a statement with one array of numbers gave.
std::optional<std::span<const std::int64_t>> change(Transaction& transaction, Statement& statement,
                                                    std::span<const std::int64_t> seqs) {
    std::span<const std::int64_t> hit;
    const bool ok = transaction.run([&] {
        execute(statement, {bigint_array(seqs)}, Access::write);
        hit = returned_seqs();
    });
    return ok ? std::optional(hit) : std::nullopt;
}

}  // namespace

std::optional<std::span<const std::int64_t>> lock_rows(Transaction& transaction,
                                                       std::span<const std::int64_t> seqs) {
    return change(transaction, lock_statement, seqs);
}

std::optional<std::span<const std::int64_t>> lock_holders(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs) {
    return change(transaction, lock_holders_statement, seqs);
}

std::optional<std::span<const std::int64_t>> defer_rows(Transaction& transaction,
                                                        std::span<const std::int64_t> seqs) {
    return change(transaction, defer_statement, seqs);
}

std::optional<std::size_t> release_followers(Transaction& transaction, Ordering ordering,
                                             std::span<const std::int64_t> seqs) {
    if (ordering != Ordering::per_key && ordering != Ordering::per_source) {
        return 0;
    }
    Statement& statement = ordering == Ordering::per_key ? release_key_followers_statement
                                                         : release_source_followers_statement;
    std::size_t count = 0;
    const bool ok = transaction.run([&] {
        execute(statement, {bigint_array(seqs), Int64GetDatum(FOLLOWERS_AT_ONCE)}, Access::write);
        count = row_count();
    });
    return ok ? std::optional(count) : std::nullopt;
}

std::optional<std::span<const WaitingGroup>> waiting_groups(Transaction& transaction,
                                                            Ordering ordering, std::int64_t after,
                                                            std::size_t limit) {
    Statement& statement =
        ordering == Ordering::per_key ? waiting_keys_statement : waiting_sources_statement;
    std::span<const WaitingGroup> groups;
    const bool ok = transaction.run([&] {
        execute(statement, {Int64GetDatum(after), Int64GetDatum(static_cast<std::int64_t>(limit))},
                Access::read);
        const std::size_t count = row_count();
        auto* found = allocate<WaitingGroup>(count);
        for (std::size_t i = 0; i < count; i++) {
            found[i] = {int64_column(i, 1), static_cast<std::uint64_t>(int64_column(i, 2)),
                        bool_column(i, 3)};
        }
        SPI_freetuptable(SPI_tuptable);
        groups = {found, count};
    });
    return ok ? std::optional(groups) : std::nullopt;
}

std::optional<std::size_t> call_all_followers(Transaction& transaction, bool only_keyless,
                                              std::size_t limit) {
    Statement& statement = only_keyless ? lock_keyless_statement : lock_waiting_statement;
    std::size_t count = 0;
    // Mostly nothing waits: then nothing but a poll is to be seen in pg_stat_statements.
    const bool ok = transaction.run([&] {
        execute(statement, {Int64GetDatum(static_cast<std::int64_t>(limit))}, Access::write);
        const std::span<const std::int64_t> locked = returned_seqs();
        if (!locked.empty()) {
            execute(call_statement, {bigint_array(locked)}, Access::write);
            count = row_count();
        }
    });
    return ok ? std::optional(count) : std::nullopt;
}

}  // namespace outbox::postgres
