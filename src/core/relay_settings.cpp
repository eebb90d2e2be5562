#include "core/relay_settings.hpp"

namespace outbox {

namespace {

template <class T>
void set_if_given(T& setting, const std::optional<T>& value) {
    if (value) {
        setting = *value;
    }
}

}  // namespace

DrainSettings with_relay(const DrainSettings& server, const RelaySettings& relay) {
    DrainSettings settings = server;
    if (!relay.exists) {
        return settings;
    }
    settings.paused = relay.paused;
    settings.ordering = parse_ordering(relay.ordering).value_or(server.ordering);
    set_if_given(settings.exchange, relay.exchange);
    set_if_given(settings.mandatory, relay.mandatory);
    set_if_given(settings.batch_size, relay.batch_size);
    set_if_given(settings.max_attempts, relay.max_attempts);
    set_if_given(settings.retry.initial, relay.retry_backoff_initial);
    set_if_given(settings.retry.multiplier, relay.retry_backoff_multiplier);
    set_if_given(settings.retry.max, relay.retry_backoff_max);
    set_if_given(settings.retention, relay.retention);
    set_if_given(settings.dead_retention, relay.dead_retention);
    set_if_given(settings.publish_rate, relay.publish_rate);
    return settings;
}

}  // namespace outbox
