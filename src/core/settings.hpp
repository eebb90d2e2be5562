#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/backoff.hpp"
#include "core/time.hpp"

namespace outbox {

/// What a drainer runs by: a copy of the settings, taken at start and at each reload.
struct DrainSettings {
    bool enabled = true;
    std::string broker_uri;     ///< with its password, never shown; empty: not set
    std::string password_file;  ///< empty: not set
    std::string exchange = "events";
    std::int32_t batch_size = 1000;
    std::int64_t batch_bytes = 16 * 1024 * 1024;
    Duration lease_ttl{300000};
    std::int32_t pipeline_depth = 500;
    Duration poll_interval{1000};
    Duration confirm_timeout{30000};
    Duration connect_timeout{5000};
    Duration heartbeat{10000};
    Duration shutdown_timeout{3000};
    Backoff retry;
    std::int64_t max_message_bytes = 16 * 1024 * 1024;

    bool operator==(const DrainSettings&) const = default;
};

/// Why this combination of settings cannot work, in words for a user; nullopt when it can. Ranges
/// of single settings are checked where they are set.
std::optional<std::string> find_problem(const DrainSettings& settings);

}  // namespace outbox
