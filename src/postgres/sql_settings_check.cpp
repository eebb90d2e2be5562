// outbox.setting_problems(), the part of outbox.settings_check() that looks at values.
#include <algorithm>
#include <iterator>

#include "postgres/prelude.hpp"

#include "core/broker_advice.hpp"
#include "core/broker_uri.hpp"
#include "postgres/broker_files.hpp"
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

struct Finding {
    const char* setting;
    char problem[1024];
};

/// What is wrong, without any object that owns memory.
struct Findings {
    int count;
    Finding list[32];

    void add(const char* setting, std::string_view problem) {
        if (count < static_cast<int>(std::size(list))) {
            Finding& finding = list[count++];
            finding.setting = setting;
            const std::size_t length = std::min(problem.size(), sizeof(finding.problem) - 1);
            memcpy(finding.problem, problem.data(), length);
        }
    }
};

void look_at_brokers(const DrainSettings& settings, Findings& findings) {
    if (settings.broker_uri.empty()) {
        findings.add("outbox_drainer.broker_uri", "not set: drainers are idle");
    }
    std::vector<BrokerUri> uris;
    auto parsed = parse_broker_list(settings.broker_uri);
    if (auto* list = std::get_if<std::vector<BrokerUri>>(&parsed)) {
        uris = std::move(*list);
    }
    for (const std::string& advice : broker_advice(uris, !settings.password_file.empty())) {
        findings.add("outbox_drainer.broker_uri", advice);
    }
    for (const std::string& problem : find_tls_file_problems(uris)) {
        findings.add("outbox_drainer.broker_uri", problem);
    }
    if (settings.password_file.empty()) {
        return;
    }
    if (uris.empty()) {
        uris.emplace_back();  // the file can be looked at nevertheless
    }
    for (const std::string& problem : find_password_file_problems(settings.password_file, uris)) {
        findings.add("outbox_drainer.password_file", problem);
    }
}

Findings look_at_settings() {
    Findings findings{};
    entry_point([&] {
        const DrainSettings settings = current_settings();
        look_at_brokers(settings, findings);
        if (const std::optional<std::string> problem = find_problem(settings)) {
            findings.add("outbox_drainer", *problem);
        }
    });
    return findings;
}

void put(ReturnSetInfo* result, const char* name, const char* problem) {
    Datum values[] = {CStringGetTextDatum(name), CStringGetTextDatum(problem)};
    bool nulls[] = {false, false};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

void put_problems(ReturnSetInfo* result) {
    const Findings findings = look_at_settings();
    for (int i = 0; i < findings.count; i++) {
        put(result, findings.list[i].setting, findings.list[i].problem);
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
