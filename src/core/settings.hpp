#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/backoff.hpp"
#include "core/ordering.hpp"
#include "core/time.hpp"

namespace outbox {

/// What becomes of an event whose exchange does not exist.
enum class MissingExchange : std::uint8_t {
    hold,  ///< it waits, uncharged, until the exchange is there
    fail,  ///< an attempt is spent
};

/// What a drainer runs by: the settings of the server with the relay's own over them, taken at
/// start, at each reload and when the relay was altered.
struct DrainSettings {
    bool enabled = true;
    bool paused = false;  ///< the relay is paused: nothing is claimed or published
    Ordering ordering = Ordering::per_key;
    std::string broker_uri;     ///< a list, with passwords, never shown; empty: not set
    std::string password_file;  ///< empty: not set
    std::string exchange = "events";
    std::int32_t batch_size = 1000;
    std::int64_t batch_bytes = 32 * 1024 * 1024;
    Duration lease_ttl{300000};
    std::int32_t pipeline_depth = 500;
    Duration poll_interval{1000};
    Duration confirm_timeout{30000};
    Duration connect_timeout{5000};
    Duration heartbeat{10000};
    Duration shutdown_timeout{3000};
    Backoff retry;
    std::int32_t max_attempts = 20;  ///< charged failures until an event is dead; 0: never
    std::int32_t publish_rate = 0;  ///< events a second at most, all drainers together; 0: no limit
    Duration retention{7 * 24 * 3600 * 1000LL};  ///< of published events; 0: for ever
    Duration dead_retention{0};                  ///< of events that ended otherwise; 0: for ever
    bool mandatory = false;
    MissingExchange missing_exchange = MissingExchange::hold;
    std::int64_t max_message_bytes = 16 * 1024 * 1024;

    bool operator==(const DrainSettings&) const = default;
};

/// Why this combination of settings cannot work, in words for a user; nullopt when it can. Ranges
/// of single settings are checked where they are set.
std::optional<std::string> find_problem(const DrainSettings& settings);

}  // namespace outbox
