#include "core/settings.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <variant>

#include "core/broker_uri.hpp"
#include "core/text_limits.hpp"

namespace outbox {

namespace {

using Problem = std::optional<std::string>;

constexpr Duration MAX_HEARTBEAT{65535 * 1000};  // AMQP counts it in seconds, in 16 bits
constexpr Duration MIN_HEARTBEAT{1000};
// A lease must outlast three windows whose every message takes this long.
constexpr Duration TIME_PER_MESSAGE{100};
constexpr std::int64_t WINDOWS_PER_LEASE = 3;

std::string setting(std::string_view name) {
    return "outbox_drainer." + std::string(name);
}

/// A duration as it can be typed into the configuration: "5min", "30s", "1500ms".
std::string duration_text(Duration duration) {
    const std::int64_t ms = duration.count();
    if (ms != 0 && ms % 60000 == 0) {
        return std::to_string(ms / 60000) + "min";
    }
    if (ms != 0 && ms % 1000 == 0) {
        return std::to_string(ms / 1000) + "s";
    }
    return std::to_string(ms) + "ms";
}

std::string with_value(std::string_view name, Duration value) {
    return setting(name) + " (" + duration_text(value) + ")";
}

Problem find_number_problem(const DrainSettings& settings) {
    struct Number {
        std::string_view name;
        std::int64_t value;
        std::int64_t least;
    };
    const std::array numbers{
        Number{"batch_size", settings.batch_size, 1},
        Number{"batch_bytes", settings.batch_bytes, 1},
        Number{"pipeline_depth", settings.pipeline_depth, 1},
        Number{"max_message_bytes", settings.max_message_bytes, 1},
        Number{"lease_ttl", settings.lease_ttl.count(), 1},
        Number{"poll_interval", settings.poll_interval.count(), 1},
        Number{"confirm_timeout", settings.confirm_timeout.count(), 1},
        Number{"connect_timeout", settings.connect_timeout.count(), 1},
        Number{"retry_backoff_initial", settings.retry.initial.count(), 1},
        Number{"retry_backoff_max", settings.retry.max.count(), 1},
        Number{"heartbeat", settings.heartbeat.count(), 0},
        Number{"shutdown_timeout", settings.shutdown_timeout.count(), 0},
        Number{"max_attempts", settings.max_attempts, 0},
        Number{"publish_rate", settings.publish_rate, 0},
        Number{"retention", settings.retention.count(), 0},
        Number{"dead_retention", settings.dead_retention.count(), 0},
    };
    for (const Number& number : numbers) {
        if (number.value < number.least) {
            return setting(number.name) + " (" + std::to_string(number.value) +
                   (number.least == 0 ? ") must not be negative" : ") must be greater than zero");
        }
    }
    return std::nullopt;
}

Problem find_lease_problem(const DrainSettings& settings) {
    const Duration least = WINDOWS_PER_LEASE * settings.pipeline_depth * TIME_PER_MESSAGE;
    if (settings.lease_ttl < least) {
        return with_value("lease_ttl", settings.lease_ttl) + " must be at least " +
               duration_text(least) + ", which is 3 x 100 ms x " + setting("pipeline_depth") +
               " (" + std::to_string(settings.pipeline_depth) +
               "): raise lease_ttl or lower pipeline_depth";
    }
    if (settings.confirm_timeout > settings.lease_ttl / 2) {
        return with_value("confirm_timeout", settings.confirm_timeout) +
               " must be at most half of " + with_value("lease_ttl", settings.lease_ttl) +
               ": lower confirm_timeout or raise lease_ttl";
    }
    return std::nullopt;
}

Problem find_retry_problem(const Backoff& retry) {
    if (!std::isfinite(retry.multiplier) || retry.multiplier < 1) {
        return setting("retry_backoff_multiplier") + " (" + std::to_string(retry.multiplier) +
               ") must be a number of at least 1";
    }
    if (retry.initial > retry.max) {
        return with_value("retry_backoff_initial", retry.initial) + " must not be greater than " +
               with_value("retry_backoff_max", retry.max) +
               ": lower retry_backoff_initial or raise retry_backoff_max";
    }
    return std::nullopt;
}

Problem find_broker_problem(const DrainSettings& settings) {
    if (settings.heartbeat > MAX_HEARTBEAT ||
        (settings.heartbeat > Duration::zero() && settings.heartbeat < MIN_HEARTBEAT)) {
        return with_value("heartbeat", settings.heartbeat) +
               " must be 0 (off) or from 1 to 65535 seconds";
    }
    if (settings.exchange.size() > MAX_SHORT_STRING) {
        return setting("exchange") + " is " + std::to_string(settings.exchange.size()) +
               " bytes long, the limit is " + std::to_string(MAX_SHORT_STRING);
    }
    if (settings.broker_uri.empty()) {
        return std::nullopt;
    }
    const auto brokers = parse_broker_list(settings.broker_uri);
    if (const auto* error = std::get_if<UriError>(&brokers)) {
        return setting("broker_uri") + " cannot be used: " + error->reason;
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> find_problem(const DrainSettings& settings) {
    if (Problem problem = find_number_problem(settings)) {
        return problem;
    }
    if (Problem problem = find_lease_problem(settings)) {
        return problem;
    }
    if (Problem problem = find_retry_problem(settings.retry)) {
        return problem;
    }
    return find_broker_problem(settings);
}

}  // namespace outbox
