// What outbox.relay says of the relay that is drained.
#include "postgres/relay_settings.hpp"

#include "postgres/statement.hpp"

namespace outbox::postgres {

namespace {

// Milliseconds, rounded up so that the shortest time is not none. Centuries are as good as for
// ever, and their sum with the time of day must not overflow. (least() alone would make a NULL the
// limit.)
#define MILLISECONDS(column)                                                                \
    "CASE WHEN r." column                                                                   \
    " IS NOT NULL THEN least(1e13, pg_catalog.ceil(pg_catalog.date_part('epoch', r." column \
    ") OPERATOR(pg_catalog.*) 1000))::pg_catalog.int8 END"

Statement read_relay_statement = {
    "SELECT r.ordering, r.exchange, r.mandatory, r.batch_size::pg_catalog.int8,"
    " r.max_attempts::pg_catalog.int8, " MILLISECONDS("retry_backoff_initial") ","
    " r.retry_backoff_multiplier, " MILLISECONDS("retry_backoff_max") ","
    " " MILLISECONDS("retention") ", " MILLISECONDS("dead_retention") ","
    " r.publish_rate::pg_catalog.int8, r.serialize_producers, r.on_dead,"
    " r.paused_at IS NOT NULL"
    " FROM outbox.relay r WHERE r.name OPERATOR(pg_catalog.=) 'default'",
    0,
    {InvalidOid, InvalidOid, InvalidOid, InvalidOid},
    nullptr};

/// The columns as plain data; texts live in the transaction's memory.
struct RelayRow {
    bool exists = false;
    std::string_view ordering;
    std::optional<std::string_view> exchange;
    std::optional<bool> mandatory;
    std::optional<std::int64_t> batch_size;
    std::optional<std::int64_t> max_attempts;
    std::optional<std::int64_t> retry_backoff_initial;
    std::optional<double> retry_backoff_multiplier;
    std::optional<std::int64_t> retry_backoff_max;
    std::optional<std::int64_t> retention;
    std::optional<std::int64_t> dead_retention;
    std::optional<std::int64_t> publish_rate;
    bool serialize_producers = false;
    std::string_view on_dead;
    bool paused = false;
};
static_assert(std::is_trivially_destructible_v<RelayRow>);

bool is_null(int number) {
    bool null = false;
    (void)column(0, number, &null);
    return null;
}

std::optional<std::int64_t> optional_int64(int number) {
    return is_null(number) ? std::nullopt : std::optional(int64_column(0, number));
}

std::optional<double> optional_float8(int number) {
    bool null = false;
    const Datum value = column(0, number, &null);
    return null ? std::nullopt : std::optional(DatumGetFloat8(value));
}

void take_row(RelayRow& row) {
    int next = 1;
    row.exists = true;
    row.ordering = text_column(0, next++);
    row.exchange = is_null(next) ? std::nullopt : std::optional(text_column(0, next));
    next++;
    row.mandatory = is_null(next) ? std::nullopt : std::optional(bool_column(0, next));
    next++;
    row.batch_size = optional_int64(next++);
    row.max_attempts = optional_int64(next++);
    row.retry_backoff_initial = optional_int64(next++);
    row.retry_backoff_multiplier = optional_float8(next++);
    row.retry_backoff_max = optional_int64(next++);
    row.retention = optional_int64(next++);
    row.dead_retention = optional_int64(next++);
    row.publish_rate = optional_int64(next++);
    row.serialize_producers = bool_column(0, next++);
    row.on_dead = text_column(0, next++);
    row.paused = bool_column(0, next++);
}

std::optional<std::int32_t> int32_of(std::optional<std::int64_t> value) {
    return value ? std::optional(static_cast<std::int32_t>(*value)) : std::nullopt;
}

std::optional<Duration> duration_of(std::optional<std::int64_t> milliseconds) {
    return milliseconds ? std::optional(Duration{*milliseconds}) : std::nullopt;
}

RelaySettings settings_of(const RelayRow& row) {
    RelaySettings relay;
    relay.exists = row.exists;
    relay.ordering = row.ordering;
    if (row.exchange) {
        relay.exchange = std::string(*row.exchange);
    }
    relay.mandatory = row.mandatory;
    relay.batch_size = int32_of(row.batch_size);
    relay.max_attempts = int32_of(row.max_attempts);
    relay.retry_backoff_initial = duration_of(row.retry_backoff_initial);
    relay.retry_backoff_multiplier = row.retry_backoff_multiplier;
    relay.retry_backoff_max = duration_of(row.retry_backoff_max);
    relay.retention = duration_of(row.retention);
    relay.dead_retention = duration_of(row.dead_retention);
    relay.publish_rate = int32_of(row.publish_rate);
    relay.serialize_producers = row.serialize_producers;
    relay.on_dead = row.on_dead;
    relay.paused = row.paused;
    return relay;
}

}  // namespace

std::optional<RelaySettings> read_relay(Transaction& transaction) {
    RelayRow row;
    const bool ok = transaction.run([&] {
        execute(read_relay_statement, {}, Access::read);
        if (row_count() > 0) {
            take_row(row);
        }
    });
    return ok ? std::optional(settings_of(row)) : std::nullopt;
}

}  // namespace outbox::postgres
