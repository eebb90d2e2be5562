// outbox_drainer.broker_uri, whose passwords nobody may see.
#include "postgres/broker_uri_setting.hpp"

#include <cstdlib>
#include <cstring>

#include "postgres/prelude.hpp"

#include "core/broker_uri.hpp"
#include "postgres/guard.hpp"
#include "postgres/log_guard.hpp"

extern "C" {
#include "tcop/pquery.h"
#include "utils/guc.h"
}

namespace outbox::postgres {

namespace {

char* shown_uri = nullptr;       // redacted, for SHOW
const char* full_uri = nullptr;  // with its passwords; belongs to the server's "extra"

// Values of text settings are freed by the server, with the allocator it uses for them.
char* copy_for_guc(const char* text) {
#if PG_VERSION_NUM >= 160000
    return guc_strdup(LOG, text);
#else
    return strdup(text);
#endif
}

void free_guc(char* text) {
#if PG_VERSION_NUM >= 160000
    guc_free(text);
#else
    free(text);
#endif
}

/// What core says of a list of URIs, without any object that owns memory.
struct UriVerdict {
    bool valid;
    bool has_password;
    char reason[512];
    char* redacted;  ///< from malloc; NULL: out of memory
};

UriVerdict judge(const char* text) {
    UriVerdict verdict{};
    entry_point([&] {
        const std::variant<std::vector<BrokerUri>, UriError> parsed = parse_broker_list(text);
        if (const auto* error = std::get_if<UriError>(&parsed)) {
            strlcpy(verdict.reason, error->reason.c_str(), sizeof(verdict.reason));
        } else {
            verdict.valid = true;
            for (const BrokerUri& uri : std::get<std::vector<BrokerUri>>(parsed)) {
                verdict.has_password = verdict.has_password || uri.has_password;
            }
        }
        verdict.redacted = strdup(redact_uri(text).c_str());
    });
    return verdict;
}

// ALTER DATABASE, ALTER ROLE and SET leave the text in catalogs and statements that others can
// read. ALTER SYSTEM leaves it in statements too; the server gives it the source of the file that
// it writes, which is otherwise read only while no statement runs.
bool may_hold_password(GucSource source) {
    return source <= PGC_S_ARGV && ActivePortal == nullptr;
}

// The message is set here because the server's own would quote the value, password and all.
bool refuse(const UriVerdict& verdict, GucSource source) {
    if (!verdict.valid) {
        GUC_check_errmsg("invalid value for parameter \"outbox_drainer.broker_uri\"");
        GUC_check_errdetail("The broker URI cannot be used: %s.", verdict.reason);
        GUC_check_errhint(
            "It has the form amqp://user@host:port/vhost or amqps://...; several are separated by "
            "commas.");
        return true;
    }
    if (verdict.has_password && !may_hold_password(source)) {
        GUC_check_errmsg(
            "a broker URI with a password is accepted from the configuration file only");
        GUC_check_errdetail("Elsewhere other users could read the password.");
        GUC_check_errhint(
            "Leave the password out and put it into a file that outbox_drainer.password_file "
            "names.");
        return true;
    }
    return false;
}

bool out_of_memory() {
    GUC_check_errcode(ERRCODE_OUT_OF_MEMORY);
    GUC_check_errmsg("out of memory");
    return false;
}

/// Keeps the URI in `extra` and leaves the redacted text as the value: then whatever shows the
/// value, SHOW, pg_settings and its reset_val, the log, has no password to show.
bool check_broker_uri(char** value, void** extra, GucSource source) {
    if (*value == nullptr || **value == '\0') {
        return true;
    }
    UriVerdict verdict = judge(*value);
    if (verdict.redacted == nullptr) {
        return out_of_memory();
    }
    char* shown = copy_for_guc(verdict.redacted);
    free(verdict.redacted);
    if (shown == nullptr) {
        return out_of_memory();
    }
    char* full = *value;
    *value = shown;
    if (refuse(verdict, source)) {
        keep_statement_out_of_log();
        explicit_bzero(full, strlen(full));
        free_guc(full);
        return false;
    }
    *extra = full;
    return true;
}

void assign_broker_uri(const char*, void* extra) {
    full_uri = static_cast<const char*>(extra);
}

}  // namespace

void define_broker_uri() {
    DefineCustomStringVariable(
        "outbox_drainer.broker_uri",
        "The broker, as amqp://user@host:port/vhost, or several, separated by commas.",
        "Several are tried one after the other. amqps:// means TLS. A password may be part of it "
        "in the configuration file only, and is never shown; better put it into password_file. "
        "Without a URI drainers are idle.",
        &shown_uri, "", PGC_SUSET, GUC_SUPERUSER_ONLY, check_broker_uri, assign_broker_uri,
        nullptr);
}

const char* broker_uri_with_passwords() {
    return full_uri == nullptr ? "" : full_uri;
}

}  // namespace outbox::postgres
