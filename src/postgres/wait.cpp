#include "postgres/wait.hpp"

#include <algorithm>
#include <ctime>

extern "C" {
#include "storage/latch.h"
#include "utils/wait_event.h"
}

namespace outbox::postgres {

namespace {

constexpr Duration LONGEST_WAIT{3600000};

}  // namespace

bool wait_for(int fd, bool read, bool write, Duration timeout, PgError& error) noexcept {
    const long timeout_ms = std::clamp(timeout, Duration{0}, LONGEST_WAIT).count();
    int events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
    if (fd >= 0) {
        events |= (read ? WL_SOCKET_READABLE : 0) | (write ? WL_SOCKET_WRITEABLE : 0);
    }
    const bool use_socket = (events & WL_SOCKET_MASK) != 0;
    return pg_try(error, [=] {
        if (use_socket) {
            WaitLatchOrSocket(MyLatch, events, fd, timeout_ms, PG_WAIT_EXTENSION);
        } else {
            WaitLatch(MyLatch, events, timeout_ms, PG_WAIT_EXTENSION);
        }
        ResetLatch(MyLatch);
        // There is no statement here that a cancel could mean.
        QueryCancelPending = false;
        CHECK_FOR_INTERRUPTS();
    });
}

Duration monotonic_now() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return Duration{static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000};
}

}  // namespace outbox::postgres
