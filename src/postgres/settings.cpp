// The outbox_drainer.* settings.
#include "postgres/settings.hpp"

#include <climits>
#include <cstring>

#include "core/text_limits.hpp"
#include "postgres/broker_uri_setting.hpp"
#include "postgres/inject_fault.hpp"
#include "postgres/log_guard.hpp"

extern "C" {
#include "utils/guc.h"
}

namespace outbox::postgres {

namespace {

constexpr int SECOND = 1000;  // settings of time are in milliseconds
constexpr int MINUTE = 60 * SECOND;
constexpr int HOUR = 60 * MINUTE;
constexpr int MEGABYTE = 1024 * 1024;
constexpr int MAX_BROKER_BODY = 512 * MEGABYTE;
constexpr int WEEK_OF_SECONDS = 7 * 24 * 3600;
constexpr int MOST_WORKERS = 16;

// What the server writes into. All but allow_drop is set by superusers and read by drainers.
bool enabled = true;
char* password_file = nullptr;
char* exchange = nullptr;
char* databases = nullptr;
int worker_count = 1;
int batch_size = 0;
int batch_bytes = 0;
int lease_ttl = 0;
int pipeline_depth = 0;
int poll_interval = 0;
int confirm_timeout = 0;
int connect_timeout = 0;
int heartbeat = 0;  // seconds, as in AMQP
int shutdown_timeout = 0;
int retry_backoff_initial = 0;
double retry_backoff_multiplier = 1;
int retry_backoff_max = 0;
int max_attempts = 0;
int publish_rate = 0;
int retention = 0;  // seconds, since milliseconds would end at 24 days
int dead_retention = 0;
bool mandatory = false;
int missing_exchange = static_cast<int>(MissingExchange::hold);
int max_message_bytes = 0;
bool drop_allowed = false;

constexpr config_enum_entry missing_exchange_values[] = {
    {"hold", static_cast<int>(MissingExchange::hold), false},
    {"fail", static_cast<int>(MissingExchange::fail), false},
    {nullptr, 0, false},
};

bool check_exchange(char** value, void**, GucSource) {
    size_t length = *value == nullptr ? 0 : strlen(*value);
    if (length > MAX_SHORT_STRING) {
        GUC_check_errdetail("The name of an exchange has at most %zu bytes, this one has %zu.",
                            MAX_SHORT_STRING, length);
        return false;
    }
    return true;
}

struct TextSetting {
    const char* name;
    const char* summary;
    const char* description;
    char** variable;
    const char* initial;
    int flags = 0;
    GucStringCheckHook check = nullptr;
    GucContext context = PGC_SUSET;
};

void define(const TextSetting& s) {
    DefineCustomStringVariable(s.name, s.summary, s.description, s.variable, s.initial, s.context,
                               s.flags, s.check, nullptr, nullptr);
}

struct IntSetting {
    const char* name;
    const char* summary;
    const char* description;
    int* variable;
    int initial;
    int least;
    int most;
    int flags = 0;
    GucContext context = PGC_SUSET;
};

void define(const IntSetting& s) {
    DefineCustomIntVariable(s.name, s.summary, s.description, s.variable, s.initial, s.least,
                            s.most, s.context, s.flags, nullptr, nullptr, nullptr);
}

void define_switches() {
    DefineCustomBoolVariable(
        "outbox_drainer.enabled", "Whether drainers publish events.",
        "While this is off nothing is claimed; drainers stay and show the state \"disabled\".",
        &enabled, true, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("outbox_drainer.allow_drop",
                             "Whether DROP EXTENSION may lose events that have not been sent.",
                             nullptr, &drop_allowed, false, PGC_USERSET, 0, nullptr, nullptr,
                             nullptr);
}

void define_broker_settings() {
    define_broker_uri();
    define(TextSetting{
        .name = "outbox_drainer.password_file",
        .summary = "A file with the password for the broker.",
        .description =
            "Its only line is the password, or its lines are host:port:vhost:user:password. Read "
            "again at each connection. Only the server's operating system user should be "
            "able to read it. A relative path starts at the data directory.",
        .variable = &password_file,
        .initial = "",
        .flags = GUC_SUPERUSER_ONLY,
    });
    define(TextSetting{
        .name = "outbox_drainer.exchange",
        .summary = "The exchange for events whose destination is NULL.",
        .description = "Empty: the default exchange, whose routing key is the name of a queue.",
        .variable = &exchange,
        .initial = "events",
        .check = check_exchange,
    });
    DefineCustomBoolVariable(
        "outbox_drainer.mandatory",
        "Whether an event that the broker cannot route to any queue has failed.",
        "While this is off such an event is published, and the broker drops it.", &mandatory, false,
        PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "outbox_drainer.missing_exchange",
        "What becomes of an event whose exchange does not exist.",
        "hold: it waits, uncharged, until the exchange is there; fail: an attempt is spent.",
        &missing_exchange, static_cast<int>(MissingExchange::hold), missing_exchange_values,
        PGC_SUSET, 0, nullptr, nullptr, nullptr);
    define(IntSetting{
        .name = "outbox_drainer.publish_rate",
        .summary = "The most events that are published in a second.",
        .description = "Of one relay, by all its drainers together. Zero: no limit.",
        .variable = &publish_rate,
        .initial = 0,
        .least = 0,
        .most = 1000000,
    });
}

void define_launcher_settings() {
    define(TextSetting{
        .name = "outbox_drainer.databases",
        .summary = "The databases to drain, separated by commas.",
        .description = "Empty: every database that has the extension and allows connections.",
        .variable = &databases,
        .initial = "",
        .context = PGC_SIGHUP,
    });
    define(IntSetting{
        .name = "outbox_drainer.workers_per_database",
        .summary = "The number of drainers in each database.",
        .description =
            "Several share the outbox by key, so that they keep the order. Each takes one of "
            "max_worker_processes and a connection to the broker.",
        .variable = &worker_count,
        .initial = 1,
        .least = 1,
        .most = MOST_WORKERS,
        .context = PGC_SIGHUP,
    });
}

void define_batch_settings() {
    define(IntSetting{
        .name = "outbox_drainer.batch_size",
        .summary = "The most events that are claimed at once.",
        .description = nullptr,
        .variable = &batch_size,
        .initial = 1000,
        .least = 1,
        .most = 100000,
    });
    define(IntSetting{
        .name = "outbox_drainer.batch_bytes",
        .summary = "About the most payload that a drainer has in hand.",
        .description = "Bounds a drainer's memory; a single event that is larger is claimed alone.",
        .variable = &batch_bytes,
        .initial = 32 * MEGABYTE,
        .least = 1,
        .most = INT_MAX,
        .flags = GUC_UNIT_BYTE,
    });
    define(IntSetting{
        .name = "outbox_drainer.pipeline_depth",
        .summary = "The most messages that may be sent and not confirmed yet.",
        .description = "After a fault at most twice as many messages are sent again.",
        .variable = &pipeline_depth,
        .initial = 500,
        .least = 1,
        .most = 65535,
    });
    define(IntSetting{
        .name = "outbox_drainer.lease_ttl",
        .summary = "How long a claim holds if its drainer does not renew it.",
        .description = "At least 300 ms for each message of pipeline_depth.",
        .variable = &lease_ttl,
        .initial = 5 * MINUTE,
        .least = SECOND,
        .most = 24 * HOUR,
        .flags = GUC_UNIT_MS,
    });
    define(IntSetting{
        .name = "outbox_drainer.poll_interval",
        .summary = "How often a drainer looks for events that it was not woken for.",
        .description =
            "Finds what was restored, replicated or committed as a prepared transaction; also "
            "how soon ALTER DATABASE ... SET takes effect.",
        .variable = &poll_interval,
        .initial = SECOND,
        .least = 10,
        .most = HOUR,
        .flags = GUC_UNIT_MS,
    });
    define(IntSetting{
        .name = "outbox_drainer.max_message_bytes",
        .summary = "The largest payload that is sent.",
        .description = "A larger one is rejected. The broker has a limit too: keep this below it.",
        .variable = &max_message_bytes,
        .initial = 16 * MEGABYTE,
        .least = 1,
        .most = MAX_BROKER_BODY,
        .flags = GUC_UNIT_BYTE,
    });
}

void define_timeouts() {
    define(IntSetting{
        .name = "outbox_drainer.connect_timeout",
        .summary = "How long connecting to the broker may take.",
        .description = nullptr,
        .variable = &connect_timeout,
        .initial = 5 * SECOND,
        .least = 100,
        .most = 10 * MINUTE,
        .flags = GUC_UNIT_MS,
    });
    define(IntSetting{
        .name = "outbox_drainer.confirm_timeout",
        .summary = "How long a confirm may take before the connection is given up.",
        .description = nullptr,
        .variable = &confirm_timeout,
        .initial = 30 * SECOND,
        .least = 100,
        .most = HOUR,
        .flags = GUC_UNIT_MS,
    });
    define(IntSetting{
        .name = "outbox_drainer.heartbeat",
        .summary = "The AMQP heartbeat that is asked for.",
        .description = "A connection is given up when nothing has come for twice this time.",
        .variable = &heartbeat,
        .initial = 10,
        .least = 1,
        .most = 600,
        .flags = GUC_UNIT_S,
    });
    define(IntSetting{
        .name = "outbox_drainer.shutdown_timeout",
        .summary = "How long a drainer that is to stop waits for outstanding confirms.",
        .description = nullptr,
        .variable = &shutdown_timeout,
        .initial = 3 * SECOND,
        .least = 0,
        .most = 10 * MINUTE,
        .flags = GUC_UNIT_MS,
    });
}

void define_retry_settings() {
    define(IntSetting{
        .name = "outbox_drainer.retry_backoff_initial",
        .summary = "The delay after an event's first failure.",
        .description = nullptr,
        .variable = &retry_backoff_initial,
        .initial = SECOND,
        .least = 10,
        .most = HOUR,
        .flags = GUC_UNIT_MS,
    });
    define(IntSetting{
        .name = "outbox_drainer.retry_backoff_max",
        .summary = "The longest delay after a failure.",
        .description = nullptr,
        .variable = &retry_backoff_max,
        .initial = 5 * MINUTE,
        .least = 10,
        .most = 24 * HOUR,
        .flags = GUC_UNIT_MS,
    });
    DefineCustomRealVariable("outbox_drainer.retry_backoff_multiplier",
                             "What the delay is multiplied by after each further failure.", nullptr,
                             &retry_backoff_multiplier, 2, 1, 100, PGC_SUSET, 0, nullptr, nullptr,
                             nullptr);
    define(IntSetting{
        .name = "outbox_drainer.max_attempts",
        .summary = "After how many failures an event is dead.",
        .description =
            "Only what the broker says of that very event counts, never an outage. Zero: never.",
        .variable = &max_attempts,
        .initial = 20,
        .least = 0,
        .most = 1000000,
    });
}

void define_retention_settings() {
    define(IntSetting{
        .name = "outbox_drainer.retention",
        .summary = "How long published events are kept.",
        .description = "Zero: for ever.",
        .variable = &retention,
        .initial = WEEK_OF_SECONDS,
        .least = 0,
        .most = INT_MAX,
        .flags = GUC_UNIT_S,
    });
    define(IntSetting{
        .name = "outbox_drainer.dead_retention",
        .summary = "How long events are kept that ended dead, rejected or discarded.",
        .description = "Zero: for ever.",
        .variable = &dead_retention,
        .initial = 0,
        .least = 0,
        .most = INT_MAX,
        .flags = GUC_UNIT_S,
    });
}

// NULL stands for the empty text: before the settings are defined, and for a setting that has no
// value.
const char* text_of(const char* value) {
    return value == nullptr ? "" : value;
}

}  // namespace

// No setting needs a restart: all are defined the same way in a session of a server that has not
// preloaded the library.
void define_settings(bool) {
    define_switches();
    define_broker_settings();
    define_launcher_settings();
    define_batch_settings();
    define_timeouts();
    define_retry_settings();
    define_retention_settings();
    define_inject_fault();
    MarkGUCPrefixReserved("outbox_drainer");
    install_log_guard();
}

DrainSettings current_settings() {
    DrainSettings settings;
    settings.enabled = enabled;
    settings.broker_uri = broker_uri_with_passwords();
    settings.password_file = text_of(password_file);
    settings.exchange = text_of(exchange);
    settings.batch_size = batch_size;
    settings.batch_bytes = batch_bytes;
    settings.lease_ttl = Duration(lease_ttl);
    settings.pipeline_depth = pipeline_depth;
    settings.poll_interval = Duration(poll_interval);
    settings.confirm_timeout = Duration(confirm_timeout);
    settings.connect_timeout = Duration(connect_timeout);
    settings.heartbeat = std::chrono::seconds(heartbeat);
    settings.shutdown_timeout = Duration(shutdown_timeout);
    settings.retry.initial = Duration(retry_backoff_initial);
    settings.retry.multiplier = retry_backoff_multiplier;
    settings.retry.max = Duration(retry_backoff_max);
    settings.max_attempts = max_attempts;
    settings.publish_rate = publish_rate;
    settings.retention = std::chrono::seconds(retention);
    settings.dead_retention = std::chrono::seconds(dead_retention);
    settings.mandatory = mandatory;
    settings.missing_exchange = static_cast<MissingExchange>(missing_exchange);
    settings.max_message_bytes = max_message_bytes;
    return settings;
}

const char* databases_setting() {
    return text_of(databases);
}

int workers_per_database() {
    return worker_count;
}

bool allow_drop() {
    return drop_allowed;
}

int max_message_bytes_setting() {
    return max_message_bytes;
}

}  // namespace outbox::postgres
