#pragma once

#include <cstdint>

namespace outbox::postgres {

/// The places in the drain cycle where a test build (make INJECT=1) can be made to fail, by their
/// numbers D0 to D11 in outbox_drainer.inject_fault. In other builds none of this exists.
enum class Phase : std::uint8_t {
    idle,                ///< nothing is in hand
    inside_claim,        ///< rows are claimed, not committed
    claimed,             ///< the claim is committed, nothing of it sent
    connected,           ///< messages can be published
    some_sent,           ///< half of a window is with the broker, more is to come
    all_sent,            ///< nothing is known of what was sent
    some_acked,          ///< some confirms are there, none of them is written
    all_acked,           ///< all confirms are there, not all of them are written
    inside_mark,         ///< rows are marked as published, not committed
    marked,              ///< and committed
    inside_failed_mark,  ///< the same for rows that the broker refused
    inside_release,      ///< the same for rows that are given back
};

#ifdef OUTBOX_DRAINER_INJECT

void define_inject_fault();
/// Whether a fault is wanted at this phase and has not happened yet.
bool is_armed(Phase phase) noexcept;
/// Here the fault happens, if `here` and it is armed.
void inject(Phase phase, bool here = true) noexcept;

#else

inline void define_inject_fault() {}
constexpr bool is_armed(Phase) noexcept {
    return false;
}
inline void inject(Phase, bool = true) noexcept {}

#endif

}  // namespace outbox::postgres
