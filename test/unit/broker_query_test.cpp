#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "core/broker_uri.hpp"

namespace outbox {
namespace {

BrokerUri parsed(const std::string& text) {
    const auto result = parse_broker_uri(text);
    if (const auto* error = std::get_if<UriError>(&result)) {
        ADD_FAILURE() << text << ": " << error->reason;
        return {};
    }
    return std::get<BrokerUri>(result);
}

TlsOptions tls_of(const std::string& query) {
    return parsed("amqps://host" + query).tls.value_or(TlsOptions{});
}

TEST(BrokerQuery, PlainUriAsksForNothing) {
    const BrokerUri uri = parsed("amqp://host");
    EXPECT_FALSE(uri.tls);
    EXPECT_EQ(uri.auth, AuthMechanism::plain);
    EXPECT_FALSE(uri.heartbeat);
    EXPECT_FALSE(uri.connect_timeout);
    EXPECT_EQ(uri.channel_max, 0);
}

TEST(BrokerQuery, TlsVerifiesByDefault) {
    EXPECT_EQ(tls_of(""), TlsOptions{});
    EXPECT_EQ(TlsOptions{}.mode, SslMode::verify_full);
    EXPECT_EQ(TlsOptions{}.min_version, TlsVersion::tls_1_2);
}

TEST(BrokerQuery, TakesTheNamesOfLibpqAndOfRabbitmq) {
    TlsOptions expected;
    expected.root_cert = "/etc/ca & co.pem";
    expected.cert = "client.pem";
    expected.key = "client=key.pem";
    EXPECT_EQ(
        tls_of("?sslrootcert=/etc/ca%20%26%20co.pem&sslcert=client.pem&sslkey=client=key.pem"),
        expected);
    EXPECT_EQ(
        tls_of("?cacertfile=/etc/ca%20%26%20co.pem&certfile=client.pem&keyfile=client%3Dkey.pem"),
        expected);
    EXPECT_EQ(
        tls_of("?keyfile=client=key.pem&sslcert=client.pem&cacertfile=/etc/ca%20%26%20co.pem"),
        expected);
}

TEST(BrokerQuery, VerifiesAsMuchAsIsAsked) {
    struct Case {
        const char* query;
        SslMode mode;
    };
    for (const Case& c : {
             Case{"?sslmode=require", SslMode::require},
             Case{"?sslmode=verify-ca", SslMode::verify_ca},
             Case{"?sslmode=verify-full", SslMode::verify_full},
             Case{"?sslmode=require&sslrootcert=ca.pem", SslMode::require},
             Case{"?verify=verify_none", SslMode::require},
             Case{"?verify=verify_peer", SslMode::verify_full},
             Case{"?verify=verify_none&sslmode=require", SslMode::require},
             Case{"?sslmode=verify-full&verify=verify_peer", SslMode::verify_full},
             Case{"?verify=verify_peer&sslmode=verify-ca", SslMode::verify_ca},
         }) {
        EXPECT_EQ(tls_of(c.query).mode, c.mode) << c.query;
    }
}

TEST(BrokerQuery, TakesTheRest) {
    EXPECT_EQ(tls_of("?ssl_min_protocol_version=TLSv1.3").min_version, TlsVersion::tls_1_3);
    EXPECT_EQ(tls_of("?ssl_min_protocol_version=tlsv1.2").min_version, TlsVersion::tls_1_2);
    EXPECT_EQ(tls_of("?server_name_indication=rabbit.example").server_name, "rabbit.example");

    const BrokerUri uri = parsed(
        "amqp://host/v?heartbeat=600&connection_timeout=100&channel_max=3&auth_mechanism=PLAIN");
    EXPECT_EQ(uri.heartbeat, Duration{600000});
    EXPECT_EQ(uri.connect_timeout, Duration{100});
    EXPECT_EQ(uri.channel_max, 3);
    EXPECT_EQ(uri.vhost, "v");
    EXPECT_EQ(parsed("amqp://host?channel_max=0").channel_max, 0);
    EXPECT_EQ(parsed("amqp://host?channel_max=65535").channel_max, 65535);
}

TEST(BrokerQuery, LogsInByCertificate) {
    const BrokerUri uri =
        parsed("amqps://shop@host?auth_mechanism=external&sslcert=c.pem&sslkey=k.pem");
    EXPECT_EQ(uri.auth, AuthMechanism::external);
    EXPECT_EQ(uri.user, "shop");
}

struct Refused {
    const char* text;
    const char* reason;  // a part of it
};

const Refused REFUSED[] = {
    {"amqp://h?heartbeat", "no = and value"},
    {"amqp://h?&heartbeat=5", "no = and value"},
    {"amqp://h?=5", "no parameter whose name is not shown"},
    {"amqp://h?colour=red", "no parameter \"colour\""},
    {"amqp://h?frame_max=5", "no parameter \"frame_max\""},
    {"amqp://h?Heartbeat=5", "no parameter \"Heartbeat\""},
    {"amqp://h?heart%62eat=5", "no parameter whose name is not shown"},
    {"amqp://h?heartbeat=5&heartbeat=5", "given twice"},
    {"amqps://h?sslrootcert=a&cacertfile=b", "given twice"},
    {"amqps://h?sslrootcert=", "is empty"},
    {"amqps://h?server_name_indication=", "must be a host name"},
    {"amqps://h?sslcert=%zz&sslkey=k", "the parameter \"sslcert\" contains a %"},
    {"amqps://h?sslcert=a%00b&sslkey=k", "the parameter \"sslcert\" contains %00"},
    {"amqps://h?sslcert=a b&sslkey=k", "space"},
    {"amqps://h?sslcert=a@b&sslkey=k", "%40"},

    {"amqp://h?password=x", "outbox_drainer.password_file"},
    {"amqps://h?password=x", "outbox_drainer.password_file"},
    {"amqps://h?sslpassword=x", "outbox_drainer.password_file"},
    {"amqps://h?passfile=x", "outbox_drainer.password_file"},

    {"amqp://h?sslmode=disable", "needs amqps://"},
    {"amqp://h?sslmode=verify-full", "needs amqps://"},
    {"amqp://h?verify=verify_none", "needs amqps://"},
    {"amqp://h?cacertfile=x", "needs amqps://"},
    {"amqp://h?sslcert=x&sslkey=y", "needs amqps://"},
    {"amqp://h?server_name_indication=x", "needs amqps://"},
    {"amqp://h?ssl_min_protocol_version=TLSv1.2", "needs amqps://"},
    {"amqps://h?sslmode=disable", "never falls back"},
    {"amqps://h?sslmode=allow", "never falls back"},
    {"amqps://h?sslmode=prefer", "never falls back"},
    {"amqps://h?sslmode=", "sslmode must be"},
    {"amqps://h?sslmode=VERIFY-FULL", "sslmode must be"},
    {"amqps://h?verify=maybe", "verify must be verify_peer or verify_none"},
    {"amqps://h?sslmode=verify-full&verify=verify_none", "sslmode and verify contradict"},
    {"amqps://h?sslmode=require&verify=verify_peer", "sslmode and verify contradict"},
    {"amqps://h?sslcert=a", "must be given together"},
    {"amqps://h?keyfile=a", "must be given together"},
    {"amqps://h?ssl_min_protocol_version=TLSv1", "not safe"},
    {"amqps://h?ssl_min_protocol_version=TLSv1.1", "not safe"},
    {"amqps://h?server_name_indication=disable", "cannot be disabled"},
    {"amqps://h?server_name_indication=a/b", "must be a host name"},
    {"amqps://h?server_name_indication=a%0ab", "must be a host name"},

    {"amqps://h?auth_mechanism=kerberos", "plain or external"},
    {"amqp://h?auth_mechanism=external", "needs amqps:// with sslcert"},
    {"amqps://h?auth_mechanism=external", "needs amqps:// with sslcert"},
    {"amqps://u:p@h?auth_mechanism=external&sslcert=c&sslkey=k", "no meaning"},

    {"amqp://h?heartbeat=0", "heartbeat must be a number from 1 to 600 (seconds)"},
    {"amqp://h?heartbeat=601", "heartbeat must be a number"},
    {"amqp://h?heartbeat=-1", "heartbeat must be a number"},
    {"amqp://h?heartbeat=+1", "heartbeat must be a number"},
    {"amqp://h?heartbeat=5s", "heartbeat must be a number"},
    {"amqp://h?heartbeat=", "heartbeat must be a number"},
    {"amqp://h?heartbeat=99999999999999999999", "heartbeat must be a number"},
    {"amqp://h?connection_timeout=99", "a number from 100 to 600000 (milliseconds)"},
    {"amqp://h?connection_timeout=600001", "a number from 100 to 600000 (milliseconds)"},
    {"amqp://h?channel_max=1", "0 (no limit) or at least 3"},
    {"amqp://h?channel_max=2", "0 (no limit) or at least 3"},
    {"amqp://h?channel_max=65536", "a number from 0 to 65535"},
};

TEST(BrokerQuery, RefusesTheRestWithTheReason) {
    for (const Refused& refused : REFUSED) {
        const auto result = parse_broker_uri(refused.text);
        const auto* error = std::get_if<UriError>(&result);
        ASSERT_NE(error, nullptr) << refused.text;
        EXPECT_NE(error->reason.find(refused.reason), std::string::npos)
            << refused.text << ": " << error->reason;
    }
}

TEST(BrokerQuery, ReasonsNeverRepeatAValue) {
    for (const char* name :
         {"sslmode", "verify", "ssl_min_protocol_version", "server_name_indication",
          "auth_mechanism", "heartbeat", "connection_timeout", "channel_max", "password",
          "sslpassword", "passfile", "unknown", "sslcert", "sslkey"}) {
        const std::string text = "amqps://h?" + std::string(name) + "=s3cret/";
        const auto result = parse_broker_uri(text);
        ASSERT_TRUE(std::holds_alternative<UriError>(result)) << text;
        EXPECT_EQ(std::get<UriError>(result).reason.find("s3cret"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace outbox
