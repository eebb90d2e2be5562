#include "postgres/signals.hpp"

#include <csignal>

extern "C" {
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

constexpr int TICK_MS = 500;

// Shared with signal handlers: plain words only.
volatile sig_atomic_t stop_flag = 0;
volatile sig_atomic_t cancel_flag = 0;
volatile sig_atomic_t in_transaction = 0;
volatile TimestampTz stop_deadline = 0;
volatile long shutdown_timeout_ms = 3000;

TimeoutId watchdog = MAX_TIMEOUTS;
bool ticking = false;

extern "C" void on_sigterm(int) {
    const int saved = errno;
    if (stop_flag == 0) {
        stop_deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), shutdown_timeout_ms);
        stop_flag = 1;
    }
    SetLatch(MyLatch);
    errno = saved;
}

extern "C" void on_sigint(int signal) {
    cancel_flag = 1;
    StatementCancelHandler(signal);
}

void on_tick() {
    if (in_transaction != 0 && stop_flag != 0 && GetCurrentTimestamp() >= stop_deadline) {
        die(SIGTERM);
    }
}

// The timer is left running over short pauses between transactions: starting and stopping it for
// each of them would cost two system calls. quiet_watchdog ends it before a wait.
void start_ticking() {
    if (!ticking && watchdog != MAX_TIMEOUTS) {
        const TimestampTz first = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TICK_MS);
        enable_timeout_every(watchdog, first, TICK_MS);
        ticking = true;
    }
}

}  // namespace

void install_drainer_signals() {
    pqsignal(SIGTERM, on_sigterm);
    pqsignal(SIGINT, on_sigint);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
}

bool stop_requested() {
    return stop_flag != 0;
}

void set_shutdown_timeout(Duration timeout) {
    shutdown_timeout_ms = timeout.count();
}

void enter_transaction() {
    start_ticking();
    in_transaction = 1;
}

void leave_transaction() {
    in_transaction = 0;
}

bool cancel_seen() {
    return cancel_flag != 0;
}

void forget_cancel() {
    cancel_flag = 0;
}

void register_watchdog() {
    watchdog = RegisterTimeout(USER_TIMEOUT, on_tick);
}

void quiet_watchdog() {
    if (ticking) {
        disable_timeout(watchdog, false);
        ticking = false;
    }
}

}  // namespace outbox::postgres
