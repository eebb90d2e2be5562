#pragma once

#include <chrono>

namespace outbox {

/// A point on the caller's monotonic clock. core reads no clock: whoever drives it says what time
/// it is.
using Time = std::chrono::milliseconds;
using Duration = std::chrono::milliseconds;

}  // namespace outbox
