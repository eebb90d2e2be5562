#pragma once

#include <cstdint>

namespace outbox {

/// What a drainer is doing, as users see it in outbox.stat_drainer.
enum class DrainerState : std::uint32_t {
    starting,
    disabled,
    misconfigured,
    connecting,
    idle,
    publishing,
    blocked,
    backoff,
    paused,
    stopping,
};

/// The state's name in views and logs.
constexpr const char* to_string(DrainerState state) noexcept {
    switch (state) {
        case DrainerState::starting:
            return "starting";
        case DrainerState::disabled:
            return "disabled";
        case DrainerState::misconfigured:
            return "misconfigured";
        case DrainerState::connecting:
            return "connecting";
        case DrainerState::idle:
            return "idle";
        case DrainerState::publishing:
            return "publishing";
        case DrainerState::blocked:
            return "blocked";
        case DrainerState::backoff:
            return "backoff";
        case DrainerState::paused:
            return "paused";
        case DrainerState::stopping:
            return "stopping";
    }
    return "unknown";
}

}  // namespace outbox
