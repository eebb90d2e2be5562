#include "core/relay_settings.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace outbox {
namespace {

RelaySettings default_relay() {
    RelaySettings relay;
    relay.exists = true;
    relay.ordering = "per_key";
    return relay;
}

DrainSettings unusual_server() {
    DrainSettings settings;
    settings.exchange = "of the server";
    settings.mandatory = true;
    settings.batch_size = 77;
    settings.max_attempts = 7;
    settings.retry = {Duration{11}, 1.5, Duration{12}};
    settings.retention = Duration{13};
    settings.dead_retention = Duration{14};
    settings.publish_rate = 15;
    return settings;
}

TEST(RelaySettings, ARelayWithNothingOfItsOwnRunsByTheServers) {
    EXPECT_EQ(with_relay(unusual_server(), default_relay()), unusual_server());
}

TEST(RelaySettings, ARelayThatIsGoneRunsByTheServers) {
    RelaySettings relay;
    relay.paused = true;
    relay.ordering = "stop_the_line";
    relay.batch_size = 1;
    EXPECT_EQ(with_relay(unusual_server(), relay), unusual_server());
}

TEST(RelaySettings, EachColumnOverridesItsSettingAndNoOther) {
    struct Case {
        const char* name;
        std::function<void(RelaySettings&)> change;
        std::function<void(DrainSettings&)> expected;
    };
    const Case cases[] = {
        {"ordering", [](RelaySettings& r) { r.ordering = "stop_the_line"; },
         [](DrainSettings& s) { s.ordering = Ordering::stop_the_line; }},
        {"paused", [](RelaySettings& r) { r.paused = true; },
         [](DrainSettings& s) { s.paused = true; }},
        {"exchange", [](RelaySettings& r) { r.exchange = ""; },
         [](DrainSettings& s) { s.exchange = ""; }},
        {"mandatory", [](RelaySettings& r) { r.mandatory = false; },
         [](DrainSettings& s) { s.mandatory = false; }},
        {"batch_size", [](RelaySettings& r) { r.batch_size = 2; },
         [](DrainSettings& s) { s.batch_size = 2; }},
        {"max_attempts", [](RelaySettings& r) { r.max_attempts = 0; },
         [](DrainSettings& s) { s.max_attempts = 0; }},
        {"retry_backoff_initial", [](RelaySettings& r) { r.retry_backoff_initial = Duration{3}; },
         [](DrainSettings& s) { s.retry.initial = Duration{3}; }},
        {"retry_backoff_multiplier", [](RelaySettings& r) { r.retry_backoff_multiplier = 1; },
         [](DrainSettings& s) { s.retry.multiplier = 1; }},
        {"retry_backoff_max", [](RelaySettings& r) { r.retry_backoff_max = Duration{4}; },
         [](DrainSettings& s) { s.retry.max = Duration{4}; }},
        {"retention", [](RelaySettings& r) { r.retention = Duration{0}; },
         [](DrainSettings& s) { s.retention = Duration{0}; }},
        {"dead_retention", [](RelaySettings& r) { r.dead_retention = Duration{5}; },
         [](DrainSettings& s) { s.dead_retention = Duration{5}; }},
        {"publish_rate", [](RelaySettings& r) { r.publish_rate = 0; },
         [](DrainSettings& s) { s.publish_rate = 0; }},
    };
    for (const Case& c : cases) {
        RelaySettings relay = default_relay();
        c.change(relay);
        DrainSettings expected = unusual_server();
        c.expected(expected);
        EXPECT_EQ(with_relay(unusual_server(), relay), expected) << c.name;
        EXPECT_NE(with_relay(unusual_server(), relay), unusual_server()) << c.name;
    }
}

TEST(RelaySettings, AnOrderingOfALaterVersionChangesNothing) {
    RelaySettings relay = default_relay();
    relay.ordering = "per_moon_phase";
    EXPECT_EQ(with_relay(unusual_server(), relay).ordering, Ordering::per_key);
}

TEST(RelaySettings, ACombinationThatCannotWorkIsFound) {
    RelaySettings relay = default_relay();
    relay.retry_backoff_initial = Duration{10000};
    relay.retry_backoff_max = Duration{1000};
    EXPECT_TRUE(find_problem(with_relay(DrainSettings{}, relay)));
}

}  // namespace
}  // namespace outbox
