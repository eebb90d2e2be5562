// Faults on purpose, for tests of what becomes of events when a drainer dies at the worst moment.
#include "postgres/inject_fault.hpp"

#ifdef OUTBOX_DRAINER_INJECT

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "postgres/log.hpp"

extern "C" {
#include "storage/pmsignal.h"
#include "utils/guc.h"
}

namespace outbox::postgres {

namespace {

constexpr int PHASES = static_cast<int>(Phase::inside_release) + 1;
constexpr int MAX_LABEL = 32;
// In the data directory, which is every process's current one.
constexpr const char* HOLD_FILE = "outbox_drainer.hold";
constexpr const char* INJECTED_FILE = "outbox_drainer.injected.%s";
constexpr int HOLD_STEP_MS = 5;
constexpr int LONGEST_HOLD_MS = 60000;

enum class Fault : std::uint8_t { none, kill, terminate, cancel, hold };

struct FaultName {
    const char* name;
    Fault fault;
};
constexpr FaultName FAULTS[] = {{"kill", Fault::kill},
                                {"terminate", Fault::terminate},
                                {"cancel", Fault::cancel},
                                {"hold", Fault::hold}};

/// "D5:kill:2", taken apart.
struct Wanted {
    int phase = -1;
    Fault fault = Fault::none;
};

char* inject_fault = nullptr;
Wanted wanted;
bool spent = false;  ///< happened already, in this process or in one before it

int read_phase(const char*& text) {
    int phase = -1;
    int length = 0;
    if (sscanf(text, "D%2d:%n", &phase, &length) != 1 || length == 0 || text[1] == '-' ||
        text[1] == '+' || phase < 0 || phase >= PHASES) {
        return -1;
    }
    text += length;
    return phase;
}

Fault read_fault(const char*& text) {
    for (const FaultName& candidate : FAULTS) {
        const std::size_t length = strlen(candidate.name);
        if (strncmp(text, candidate.name, length) == 0 &&
            (text[length] == '\0' || text[length] == ':')) {
            text += length;
            return candidate.fault;
        }
    }
    return Fault::none;
}

// It becomes part of a file's name.
bool is_label(const char* text) {
    const std::size_t length = strlen(text);
    return length > 0 && length <= MAX_LABEL &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
               length;
}

void* allocate_extra(std::size_t size) {
#if PG_VERSION_NUM >= 160000
    return guc_malloc(LOG, size);
#else
    return malloc(size);
#endif
}

bool check_inject_fault(char** value, void** extra, GucSource) {
    if (*value == nullptr || **value == '\0') {
        return true;
    }
    const char* rest = *value;
    Wanted parsed;
    parsed.phase = read_phase(rest);
    parsed.fault = parsed.phase < 0 ? Fault::none : read_fault(rest);
    if (parsed.fault == Fault::none || (*rest == ':' && !is_label(rest + 1))) {
        GUC_check_errdetail(
            "It has the form phase:fault or phase:fault:label. Phases are D0 (idle), D1 (inside "
            "the claim), D2 (claimed), D3 (connected), D4 (some sent), D5 (all sent), D6 (some "
            "acked), D7 (all acked), D8 (inside the mark), D9 (marked), D10 (inside the mark of "
            "failed events) and D11 (inside the release); faults are kill, terminate, cancel and "
            "hold; a label has letters, digits, _ and -, at most %d.",
            MAX_LABEL);
        return false;
    }
    *extra = allocate_extra(sizeof(Wanted));
    if (*extra == nullptr) {
        return false;
    }
    memcpy(*extra, &parsed, sizeof(parsed));
    return true;
}

void assign_inject_fault(const char*, void* extra) {
    wanted = extra == nullptr ? Wanted{} : *static_cast<const Wanted*>(extra);
    spent = false;
}

// Each value happens once, whoever comes first, also when the server restarts meanwhile.
bool take_turn() {
    char path[MAXPGPATH];
    snprintf(path, sizeof(path), INJECTED_FILE, inject_fault);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) {
        close(fd);
    }
    spent = true;
    return fd >= 0;
}

void hold() {
    for (int held = 0;
         held < LONGEST_HOLD_MS && access(HOLD_FILE, F_OK) == 0 && PostmasterIsAlive();
         held += HOLD_STEP_MS) {
        pg_usleep(HOLD_STEP_MS * 1000L);
    }
}

}  // namespace

void define_inject_fault() {
    DefineCustomStringVariable(
        "outbox_drainer.inject_fault", "Where in its cycle a drainer fails, and how.",
        "For tests of consumers: phase:fault, or phase:fault:label to have the same again. Each "
        "value happens once.",
        &inject_fault, "", PGC_SUSET, GUC_SUPERUSER_ONLY | GUC_NOT_IN_SAMPLE, check_inject_fault,
        assign_inject_fault, nullptr);
}

bool is_armed(Phase phase) noexcept {
    return wanted.phase == static_cast<int>(phase) && !spent;
}

void inject(Phase phase, bool here) noexcept {
    if (!here || !is_armed(phase) || !take_turn()) {
        return;
    }
    char message[128];
    snprintf(message, sizeof(message), "outbox_drainer: reached D%d, inject_fault is \"%s\"",
             wanted.phase, inject_fault);
    log_line(message);
    switch (wanted.fault) {
        case Fault::kill:
            kill(getpid(), SIGKILL);
            break;
        case Fault::terminate:
            kill(getpid(), SIGTERM);
            break;
        case Fault::cancel:
            kill(getpid(), SIGINT);
            break;
        case Fault::hold:
            hold();
            break;
        case Fault::none:
            break;
    }
}

}  // namespace outbox::postgres

#endif
