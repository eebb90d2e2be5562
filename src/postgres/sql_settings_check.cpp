// outbox.setting_problems(), the part of outbox.settings_check() that looks at values.
#include "postgres/prelude.hpp"

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

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

/// What is known of the settings, without any object that owns memory. Texts are empty where
/// nothing is wrong.
struct Findings {
    bool uri_set;
    char uri[1024];
    char password_file[512];
    char combination[512];
};

/// Something that the drainer would meet when it connects.
std::string file_problem(const std::string& path, bool is_key) {
    struct stat status {};
    if (path.empty() || path == "system") {
        return "";
    }
    if (::access(path.c_str(), R_OK) != 0 || ::stat(path.c_str(), &status) != 0) {
        char buffer[128];
        return "file \"" + path +
               "\" cannot be read: " + ::strerror_r(errno, buffer, sizeof(buffer));
    }
    // libpq's rule for a private key.
    const mode_t others = status.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    if (is_key && (status.st_mode & others) != 0) {
        return "private key file \"" + path +
               "\" has group or world access: chmod 0600 (0640 where root owns it)";
    }
    return "";
}

bool is_local(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string uri_problem(const BrokerUri& uri, const DrainSettings& settings) {
    if (uri.has_password) {
        return "the configuration file holds the password, and PostgreSQL writes a setting that "
               "was "
               "changed there to the log at reload; better put the password into "
               "outbox_drainer.password_file";
    }
    if (!uri.tls.has_value() && !settings.password_file.empty() && !is_local(uri.host)) {
        return display_name(uri) +
               ": the password and all events travel in clear text; use amqps://";
    }
    if (!uri.tls.has_value()) {
        return "";
    }
    if (uri.tls->mode == SslMode::require && uri.tls->root_cert.empty()) {
        return display_name(uri) +
               ": sslmode=require (verify=verify_none) encrypts, but talks to whoever answers; use "
               "verify-full";
    }
    for (const auto& [path, is_key] :
         {std::pair{uri.tls->root_cert, false}, {uri.tls->cert, false}, {uri.tls->key, true}}) {
        if (std::string problem = file_problem(path, is_key); !problem.empty()) {
            return display_name(uri) + ": " + problem;
        }
    }
    return "";
}

void look_at_broker(const BrokerUri& uri, const DrainSettings& settings, Findings& findings) {
    if (findings.uri[0] == '\0') {
        strlcpy(findings.uri, uri_problem(uri, settings).c_str(), sizeof(findings.uri));
    }
    if (findings.password_file[0] == '\0' && !settings.password_file.empty() &&
        uri.auth == AuthMechanism::plain) {
        const auto password = read_password_file(settings.password_file, uri);
        if (const auto* error = std::get_if<PasswordError>(&password)) {
            strlcpy(findings.password_file, error->reason.c_str(), sizeof(findings.password_file));
        }
    }
}

Findings look_at_settings() {
    Findings findings{};
    entry_point([&] {
        const DrainSettings settings = current_settings();
        findings.uri_set = !settings.broker_uri.empty();
        const auto brokers = parse_broker_list(settings.broker_uri);
        if (const auto* list = std::get_if<std::vector<BrokerUri>>(&brokers)) {
            for (const BrokerUri& uri : *list) {
                look_at_broker(uri, settings, findings);
            }
        } else {
            look_at_broker(BrokerUri{}, settings, findings);
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
    } else if (findings.uri[0] != '\0') {
        put(result, "outbox_drainer.broker_uri", findings.uri);
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
