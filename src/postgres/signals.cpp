#include "postgres/signals.hpp"

#include <algorithm>
#include <csignal>
#include <ctime>

extern "C" {
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
}

namespace outbox::postgres {

namespace {

// How often a transaction that outlives the deadline is told to die: the one that hangs then, or
// one that begins later.
constexpr long REPEAT_MS = 500;

// Shared with signal handlers: plain words only.
volatile sig_atomic_t stop_flag = 0;
volatile sig_atomic_t cancel_flag = 0;
volatile sig_atomic_t in_transaction = 0;
volatile long shutdown_timeout_ms = 3000;

// A timer of the system, and not one of the server's: those cannot be started by a signal's
// handler, so one of them would have to run before there is anything to stop.
timer_t watchdog;
volatile sig_atomic_t has_watchdog = 0;

timespec to_timespec(long ms) {
    return {ms / 1000, ms % 1000 * 1000000};
}

// May be called by a signal's handler.
void start_watchdog() {
    if (has_watchdog != 0) {
        // A time of zero would stop the timer.
        const long timeout_ms = shutdown_timeout_ms;
        const itimerspec when{to_timespec(REPEAT_MS), to_timespec(std::max(timeout_ms, 1L))};
        timer_settime(watchdog, 0, &when, nullptr);
    }
}

extern "C" void on_sigterm(int) {
    const int saved = errno;
    if (stop_flag == 0) {
        stop_flag = 1;
        start_watchdog();
    }
    SetLatch(MyLatch);
    errno = saved;
}

extern "C" void on_sigint(int signal) {
    cancel_flag = 1;
    StatementCancelHandler(signal);
}

extern "C" void on_watchdog(int) {
    const int saved = errno;
    if (in_transaction != 0) {
        die(SIGTERM);
    }
    errno = saved;
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
    pqsignal(SIGUSR2, on_watchdog);
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR2;
    if (timer_create(CLOCK_MONOTONIC, &event, &watchdog) != 0) {
        ereport(ERROR, (errcode(ERRCODE_SYSTEM_ERROR),
                        errmsg("outbox_drainer: could not create a timer: %m")));
    }
    has_watchdog = 1;
}

}  // namespace outbox::postgres
