#include "postgres/log_guard.hpp"

#include <cstring>

#include "postgres/prelude.hpp"

extern "C" {
#include "access/xact.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

constexpr char SETTING[] = "outbox_drainer.broker_uri";

emit_log_hook_type previous_hook = nullptr;
TimestampTz secret_statement = 0;  // when it began; 0: none yet

bool statement_may_hold_secret() {
    if (secret_statement != 0 && secret_statement == GetCurrentStatementStartTimestamp()) {
        return true;
    }
    // One that fails before the setting is looked at: a syntax error, no permission.
    return debug_query_string != nullptr && strcasestr(debug_query_string, SETTING) != nullptr &&
           strstr(debug_query_string, "://") != nullptr;
}

bool is_change_of_uri(const ErrorData& line) {
    return line.message_id != nullptr && line.message != nullptr &&
           strcmp(line.message_id, "parameter \"%s\" changed to \"%s\"") == 0 &&
           strcasestr(line.message, SETTING) != nullptr;
}

/// The server quotes the file; what it has set by now is redacted.
void redact_change(ErrorData& line) {
    char* told = line.message;
    line.message = psprintf("parameter \"%s\" changed to \"%s\"", SETTING,
                            GetConfigOption(SETTING, false, false));
    explicit_bzero(told, strlen(told));
    pfree(told);
}

void guard_log(ErrorData* line) {
    if (is_change_of_uri(*line)) {
        redact_change(*line);
    }
    if (statement_may_hold_secret()) {
        line->hide_stmt = true;
        line->hide_ctx = true;
    }
    if (previous_hook != nullptr) {
        previous_hook(line);
    }
}

}  // namespace

void install_log_guard() {
    previous_hook = emit_log_hook;
    emit_log_hook = guard_log;
}

void keep_statement_out_of_log() {
    secret_statement = GetCurrentStatementStartTimestamp();
}

}  // namespace outbox::postgres
