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
    "UPDATE outbox.relay r SET paused_at = pg_catalog.clock_timestamp(),"
    " paused_by = 'outbox_drainer', pause_reason = $1"
    " WHERE r.name OPERATOR(pg_catalog.=) 'default' AND r.paused_at IS NULL",
    1,
    {TEXTOID},
    nullptr};

Statement on_dead_statement = {"SELECT outbox.call_on_dead($1)", 1, {INT8ARRAYOID}, nullptr};

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

}  // namespace outbox::postgres
