// outbox.setting_problems(), the part of outbox.settings_check() that looks at values.
#include "postgres/prelude.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "core/broker_uri.hpp"
#include "postgres/guard.hpp"
#include "postgres/settings.hpp"
#include "postgres/shared_state.hpp"

extern "C" {
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
}

namespace outbox::postgres {

namespace {

/// What is known of the settings, without any object that owns memory.
struct Findings {
    bool uri_set;
    bool uri_has_password;
    char password_file[MAXPGPATH];
    char combination[512];  ///< empty: nothing wrong
};

Findings look_at_settings() {
    Findings findings{};
    entry_point([&] {
        DrainSettings settings = current_settings();
        findings.uri_set = !settings.broker_uri.empty();
        std::variant<BrokerUri, UriError> uri = parse_broker_uri(settings.broker_uri);
        if (const auto* parsed = std::get_if<BrokerUri>(&uri)) {
            findings.uri_has_password = parsed->has_password;
        }
        strlcpy(findings.password_file, settings.password_file.c_str(),
                sizeof(findings.password_file));
        if (std::optional<std::string> problem = find_problem(settings)) {
            strlcpy(findings.combination, problem->c_str(), sizeof(findings.combination));
        }
    });
    return findings;
}

/// What is wrong with the password file, in memory of the caller's context; NULL: nothing.
char* password_file_problem(const char* path) {
    struct stat status {};
    if (stat(path, &status) != 0) {
        return psprintf("cannot be read: %m");
    }
    if (!S_ISREG(status.st_mode)) {
        return pstrdup("is not a regular file");
    }
    if (access(path, R_OK) != 0) {
        return psprintf("cannot be read: %m");
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return psprintf("drainers refuse it, because its mode %04o lets others at it: chmod 0600",
                        static_cast<unsigned>(status.st_mode & 07777));
    }
    return nullptr;
}

void put(ReturnSetInfo* result, const char* name, const char* problem) {
    Datum values[] = {CStringGetTextDatum(name), CStringGetTextDatum(problem)};
    bool nulls[] = {false, false};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

void put_uri_problem(ReturnSetInfo* result, const Findings& findings) {
    if (!findings.uri_set) {
        put(result, "outbox_drainer.broker_uri", "not set: drainers are idle");
    } else if (findings.uri_has_password) {
        put(result, "outbox_drainer.broker_uri",
            "the configuration file holds the password, and PostgreSQL writes a setting that was "
            "changed "
            "there to the log at reload; better put the password into "
            "outbox_drainer.password_file");
    }
}

void put_problems(ReturnSetInfo* result) {
    Findings findings = look_at_settings();
    put_uri_problem(result, findings);
    if (findings.password_file[0] != '\0') {
        if (char* problem = password_file_problem(findings.password_file)) {
            put(result, "outbox_drainer.password_file", problem);
        }
    }
    if (findings.combination[0] != '\0') {
        put(result, "outbox_drainer", findings.combination);
    }
    if (shared_state() == nullptr) {
        put(result, "shared_preload_libraries",
            "outbox_drainer is not loaded: add it here and restart the server");
    }
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_setting_problems);

/// outbox.setting_problems() returns setof record
OBD_EXPORT Datum outbox_drainer_setting_problems(PG_FUNCTION_ARGS) {
    InitMaterializedSRF(fcinfo, 0);
    outbox::postgres::put_problems(reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    PG_RETURN_NULL();
}

}  // extern "C"
