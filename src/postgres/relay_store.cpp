// What a drainer writes to its relay, and calls for it.
#include "postgres/relay_store.hpp"

#include "postgres/statement.hpp"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

Statement pause_statement = {
    "WITH paused AS (UPDATE outbox.relay r SET paused_at = pg_catalog.clock_timestamp(),"
    " paused_by = 'outbox_drainer', pause_reason = $1"
    " WHERE r.name OPERATOR(pg_catalog.=) 'default' AND r.paused_at IS NULL RETURNING r.name)"
    " INSERT INTO outbox.operation (by, action, relay, detail)"
    " SELECT 'outbox_drainer', 'pause', p.name, pg_catalog.jsonb_build_object('reason', $1)"
    " FROM paused p",
    1,
    {TEXTOID},
    nullptr};

Statement on_dead_statement = {"SELECT outbox.call_on_dead($1)", 1, {INT8ARRAYOID}, nullptr};

Statement read_backlog_statement = {
    "SELECT b.pending OPERATOR(pg_catalog.+) b.publishing OPERATOR(pg_catalog.+) b.failed,"
    " EXISTS (SELECT FROM outbox.relay_state s WHERE s.relay OPERATOR(pg_catalog.=) 'default'"
    " AND s.backlog OPERATOR(pg_catalog.=) 0)"
    " FROM outbox.backlog('default') b",
    0,
    {},
    nullptr};

Statement write_backlog_statement = {
    "INSERT INTO outbox.relay_state (relay, backlog, backlog_at)"
    " VALUES ('default', $1, pg_catalog.clock_timestamp())"
    " ON CONFLICT (relay) DO UPDATE SET backlog = EXCLUDED.backlog, backlog_at = "
    "EXCLUDED.backlog_at",
    1,
    {INT8OID},
    nullptr};

}  // namespace

bool pause_relay(Transaction& transaction, const char* reason) {
    return transaction.run(
        [&] { execute(pause_statement, {CStringGetTextDatum(reason)}, Access::write); });
}

bool call_on_dead(Transaction& transaction, std::span<const std::int64_t> seqs) {
    return seqs.empty() || transaction.run([&] {
        execute(on_dead_statement, {bigint_array(seqs)}, Access::write);
    });
}

std::optional<Backlog> read_backlog(Transaction& transaction) {
    Backlog backlog;
    const bool ok = transaction.run([&] {
        execute(read_backlog_statement, {}, Access::read);
        backlog = {int64_column(0, 1), bool_column(0, 2)};
    });
    return ok ? std::optional(backlog) : std::nullopt;
}

bool write_backlog(Transaction& transaction, std::int64_t backlog) {
    return transaction.run(
        [&] { execute(write_backlog_statement, {Int64GetDatum(backlog)}, Access::write); });
}

}  // namespace outbox::postgres
