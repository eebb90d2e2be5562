#include "core/broker_advice.hpp"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace outbox {
namespace {

std::vector<std::string> advice(const std::string& text, bool has_password_file = false) {
    const auto parsed = parse_broker_list(text);
    EXPECT_TRUE(std::holds_alternative<std::vector<BrokerUri>>(parsed)) << text;
    return broker_advice(std::get<std::vector<BrokerUri>>(parsed), has_password_file);
}

bool begins(const std::vector<std::string>& found, const std::string& start) {
    return found.size() == 1 && found.front().starts_with(start);
}

TEST(BrokerAdvice, NothingToSay) {
    EXPECT_EQ(broker_advice({}, true), std::vector<std::string>{});
    for (const char* text :
         {"amqp://", "amqps://shop@rabbit.example", "amqp://shop@rabbit.example",
          "amqp://shop@LOCALHOST", "amqps://shop@a?sslmode=verify-ca&sslrootcert=ca.pem",
          "amqps://shop@a?sslmode=require&sslrootcert=ca.pem"}) {
        EXPECT_EQ(advice(text), std::vector<std::string>{}) << text;
    }
    for (const char* host : {"localhost", "localhost.", "a.localhost", "127.0.0.1", "127.1.2.3",
                             "[::1]", "[::ffff:127.0.0.1]"}) {
        EXPECT_EQ(advice("amqp://shop@" + std::string(host), true), std::vector<std::string>{})
            << host;
    }
    EXPECT_EQ(advice("amqps://shop@rabbit.example", true), std::vector<std::string>{});
    EXPECT_EQ(advice("amqps://h?auth_mechanism=external&sslcert=c&sslkey=k"),
              std::vector<std::string>{});
}

TEST(BrokerAdvice, PasswordsInClear) {
    for (const char* host :
         {"rabbit.example", "10.0.0.1", "127.example", "[::2]", "localhost.example"}) {
        EXPECT_TRUE(begins(advice("amqp://shop@" + std::string(host), true),
                           "password and events are sent without encryption to "))
            << host;
    }
    EXPECT_EQ(advice("amqp://a@localhost,amqp://b@one,amqps://c@two,amqp://d@three/v", true),
              std::vector<std::string>{"password and events are sent without encryption to "
                                       "one:5672//, three:5672/v: better use amqps://"});
    const std::vector<std::string> both = advice("amqp://shop:s3cret@rabbit.example");
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[0].find("s3cret") + both[1].find("s3cret"), 2 * std::string::npos);
}

TEST(BrokerAdvice, PasswordsInTheConfigurationFile) {
    EXPECT_TRUE(begins(advice("amqps://one@a,amqps://shop:s3cret@two,amqps://b:s3cret@c"),
                       "the configuration file holds a password"));
}

TEST(BrokerAdvice, CertificatesThatSayLittle) {
    EXPECT_TRUE(begins(advice("amqps://shop@h?sslmode=require"),
                       "the certificate is not checked of h:5671//"));
    EXPECT_TRUE(begins(advice("amqps://shop@h?verify=verify_none&cacertfile=system"),
                       "the certificate is not checked of h:5671//"));
    EXPECT_TRUE(begins(advice("amqps://shop@h?sslmode=verify-ca"), "any certificate of a public"));
    EXPECT_TRUE(begins(advice("amqps://shop@h?sslmode=verify-ca&sslrootcert=system"),
                       "any certificate of a public"));
}

TEST(BrokerAdvice, GuestFromElsewhere) {
    EXPECT_TRUE(begins(advice("amqp://rabbit.example"), "the user is guest for rabbit.example"));
    EXPECT_TRUE(begins(advice("amqps://guest@rabbit.example"), "the user is guest"));
}

}  // namespace
}  // namespace outbox
