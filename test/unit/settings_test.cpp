#include "core/settings.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace outbox {
namespace {

using Change = std::function<void(DrainSettings&)>;

std::optional<std::string> problem_after(const Change& change) {
    DrainSettings settings;
    change(settings);
    return find_problem(settings);
}

TEST(Settings, DefaultsWork) {
    EXPECT_EQ(find_problem(DrainSettings{}), std::nullopt);
}

TEST(Settings, ValuesAtTheirLimitsWork) {
    const Change changes[] = {
        [](DrainSettings& s) { s.heartbeat = Duration{0}; },
        [](DrainSettings& s) { s.heartbeat = Duration{1000}; },
        [](DrainSettings& s) { s.heartbeat = Duration{65535000}; },
        [](DrainSettings& s) { s.shutdown_timeout = Duration{0}; },
        [](DrainSettings& s) { s.lease_ttl = Duration{150000}; },
        [](DrainSettings& s) { s.confirm_timeout = s.lease_ttl / 2; },
        [](DrainSettings& s) {
            s.retry = {Duration{5}, 1, Duration{5}};
        },
        [](DrainSettings& s) { s.exchange = ""; },
        [](DrainSettings& s) { s.exchange = std::string(255, 'x'); },
        [](DrainSettings& s) { s.broker_uri = "amqp://app@broker.example/orders"; },
        [](DrainSettings& s) { s.broker_uri = "amqps://a?sslmode=verify-ca, amqp://b"; },
        [](DrainSettings& s) { s.max_attempts = 0, s.publish_rate = 0; },
        [](DrainSettings& s) { s.retention = s.dead_retention = Duration{0}; },
        [](DrainSettings& s) { s.batch_size = 1, s.pipeline_depth = 1, s.batch_bytes = 1; },
    };
    for (const Change& change : changes) {
        EXPECT_EQ(problem_after(change), std::nullopt);
    }
}

TEST(Settings, RefusesValuesThatCannotWork) {
    struct Case {
        const char* name;
        Change change;
    };
    const Case cases[] = {
        {"batch_size", [](DrainSettings& s) { s.batch_size = 0; }},
        {"batch_size", [](DrainSettings& s) { s.batch_size = -1; }},
        {"batch_bytes", [](DrainSettings& s) { s.batch_bytes = 0; }},
        {"pipeline_depth", [](DrainSettings& s) { s.pipeline_depth = 0; }},
        {"max_message_bytes", [](DrainSettings& s) { s.max_message_bytes = 0; }},
        {"lease_ttl", [](DrainSettings& s) { s.lease_ttl = Duration{0}; }},
        {"poll_interval", [](DrainSettings& s) { s.poll_interval = Duration{-1}; }},
        {"confirm_timeout", [](DrainSettings& s) { s.confirm_timeout = Duration{0}; }},
        {"connect_timeout", [](DrainSettings& s) { s.connect_timeout = Duration{0}; }},
        {"retry_backoff_initial", [](DrainSettings& s) { s.retry.initial = Duration{0}; }},
        {"retry_backoff_max", [](DrainSettings& s) { s.retry.max = Duration{0}; }},
        {"heartbeat", [](DrainSettings& s) { s.heartbeat = Duration{-1}; }},
        {"heartbeat", [](DrainSettings& s) { s.heartbeat = Duration{999}; }},
        {"heartbeat", [](DrainSettings& s) { s.heartbeat = Duration{65535001}; }},
        {"shutdown_timeout", [](DrainSettings& s) { s.shutdown_timeout = Duration{-1}; }},
        {"max_attempts", [](DrainSettings& s) { s.max_attempts = -1; }},
        {"publish_rate", [](DrainSettings& s) { s.publish_rate = -1; }},
        {"retention", [](DrainSettings& s) { s.retention = Duration{-1}; }},
        {"dead_retention", [](DrainSettings& s) { s.dead_retention = Duration{-1}; }},
        {"retry_backoff_multiplier", [](DrainSettings& s) { s.retry.multiplier = 0.99; }},
        {"retry_backoff_multiplier", [](DrainSettings& s) { s.retry.multiplier = std::nan(""); }},
        {"retry_backoff_multiplier", [](DrainSettings& s) { s.retry.multiplier = INFINITY; }},
        {"exchange", [](DrainSettings& s) { s.exchange = std::string(256, 'x'); }},
        {"broker_uri", [](DrainSettings& s) { s.broker_uri = "http://broker"; }},
        {"broker_uri", [](DrainSettings& s) { s.broker_uri = "amqp://a,amqp://b:x"; }},
    };
    for (const Case& c : cases) {
        const std::optional<std::string> problem = problem_after(c.change);
        ASSERT_TRUE(problem) << c.name;
        EXPECT_TRUE(problem->starts_with("outbox_drainer." + std::string(c.name) + " "))
            << *problem;
    }
}

TEST(Settings, LeaseMustOutlastThreeWindows) {
    EXPECT_EQ(problem_after([](DrainSettings& s) { s.lease_ttl = Duration{149999}; }),
              "outbox_drainer.lease_ttl (149999ms) must be at least 150s, which is 3 x 100 ms x "
              "outbox_drainer.pipeline_depth (500): raise lease_ttl or lower pipeline_depth");
    // The product does not overflow.
    EXPECT_TRUE(problem_after(
        [](DrainSettings& s) { s.pipeline_depth = std::numeric_limits<std::int32_t>::max(); }));
}

TEST(Settings, ConfirmTimeoutMustFitTheLease) {
    EXPECT_EQ(problem_after([](DrainSettings& s) { s.confirm_timeout = Duration{150001}; }),
              "outbox_drainer.confirm_timeout (150001ms) must be at most half of "
              "outbox_drainer.lease_ttl (5min): lower confirm_timeout or raise lease_ttl");
}

TEST(Settings, FirstRetryMustNotExceedTheLast) {
    EXPECT_EQ(problem_after([](DrainSettings& s) { s.retry.initial = Duration{301000}; }),
              "outbox_drainer.retry_backoff_initial (301s) must not be greater than "
              "outbox_drainer.retry_backoff_max (5min): lower retry_backoff_initial or raise "
              "retry_backoff_max");
}

TEST(Settings, NeverShowsAPassword) {
    for (const char* uri :
         {"amqp://app:s3cret@host:port/", "amqp://app:s3/cret@host", "amqps://app:s3,cret@host",
          "amqps://app:s3cret@host?x=1", "amqp://app:s3%cret@host",
          "amqp://app:s3cret@host?heartbeat=0", "amqp://app:s3cret@a,amqp://app:s3cret@b:x",
          "amqp://app:1,s3cret@host"}) {
        const std::optional<std::string> problem =
            problem_after([uri](DrainSettings& s) { s.broker_uri = uri; });
        ASSERT_TRUE(problem) << uri;
        EXPECT_EQ(problem->find("cret"), std::string::npos) << *problem;
        EXPECT_EQ(problem->find("s3"), std::string::npos) << *problem;
    }
}

}  // namespace
}  // namespace outbox
