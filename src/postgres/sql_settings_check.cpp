// outbox.setting_problems(), the part of outbox.settings_check() that looks at values.
#include "postgres/prelude.hpp"

#include "core/broker_uri.hpp"
#include "postgres/guard.hpp"
#include "postgres/password_file.hpp"
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
    char password_file[256];  ///< empty: nothing wrong
    char combination[512];    ///< likewise
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
        if (!settings.password_file.empty()) {
            const auto password = read_password_file(settings.password_file);
            if (const auto* error = std::get_if<PasswordError>(&password)) {
                strlcpy(findings.password_file, error->reason.c_str(),
                        sizeof(findings.password_file));
            }
        }
        if (std::optional<std::string> problem = find_problem(settings)) {
            strlcpy(findings.combination, problem->c_str(), sizeof(findings.combination));
        }
    });
    return findings;
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
        put(result, "outbox_drainer.password_file", findings.password_file);
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
