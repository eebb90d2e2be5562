#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/settings.hpp"

namespace outbox {

/// A relay's row in outbox.relay. What is nullopt there is left to the server's setting of the same
/// name.
struct RelaySettings {
    bool exists = false;   ///< false: there is no such row, and nothing below says anything
    std::string ordering;  ///< as in the table
    std::optional<std::string> exchange;
    std::optional<bool> mandatory;
    std::optional<std::int32_t> batch_size;
    std::optional<std::int32_t> max_attempts;
    std::optional<Duration> retry_backoff_initial;
    std::optional<double> retry_backoff_multiplier;
    std::optional<Duration> retry_backoff_max;
    std::optional<Duration> retention;
    std::optional<Duration> dead_retention;
    std::optional<std::int32_t> publish_rate;
    bool serialize_producers = false;
    std::string on_dead;  ///< a function's name; empty: none
    bool paused = false;

    bool operator==(const RelaySettings&) const = default;
};

/// What a drainer of this relay works by: the server's settings with the relay's own over them. The
/// combination may be one that cannot work: find_problem() says so.
DrainSettings with_relay(const DrainSettings& server, const RelaySettings& relay);

}  // namespace outbox
