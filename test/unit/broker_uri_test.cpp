#include "core/broker_uri.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace outbox {
namespace {

struct Accepted {
    const char* text;
    const char* host;
    int port;
    const char* user;
    const char* password;
    bool has_password;
    const char* vhost;
};

// The first eleven are the examples of the RabbitMQ URI specification, absent parts at their
// defaults.
const Accepted ACCEPTED[] = {
    {"amqp://user:pass@host:10000/vhost", "host", 10000, "user", "pass", true, "vhost"},
    {"amqp://user%61:%61pass@ho%61st:10000/v%2fhost", "hoast", 10000, "usera", "apass", true,
     "v/host"},
    {"amqp://", "localhost", 5672, "guest", "guest", false, "/"},
    {"amqp://:@/", "localhost", 5672, "", "", true, ""},
    {"amqp://user@", "localhost", 5672, "user", "guest", false, "/"},
    {"amqp://user:pass@", "localhost", 5672, "user", "pass", true, "/"},
    {"amqp://host", "host", 5672, "guest", "guest", false, "/"},
    {"amqp://:10000", "localhost", 10000, "guest", "guest", false, "/"},
    {"amqp:///vhost", "localhost", 5672, "guest", "guest", false, "vhost"},
    {"amqp://host/", "host", 5672, "guest", "guest", false, ""},
    {"amqp://host/%2F", "host", 5672, "guest", "guest", false, "/"},
    {"amqp://[::1]", "::1", 5672, "guest", "guest", false, "/"},
    {"amqp://[2001:db8::7]:5673/v", "2001:db8::7", 5673, "guest", "guest", false, "v"},
    {"amqp://u:p@[::ffff:10.0.0.1]:1", "::ffff:10.0.0.1", 1, "u", "p", true, "/"},
    {"amqp://[fe80::1%25eth0]", "fe80::1%eth0", 5672, "guest", "guest", false, "/"},
    {"AMQP://host:65535", "host", 65535, "guest", "guest", false, "/"},
    {"amqp://host:/v", "host", 5672, "guest", "guest", false, "v"},
    {"amqp://u:p%40%3a%2f%3F%2C%23%25@h", "h", 5672, "u", "p@:/?,#%", true, "/"},
    {"amqp://u:a:b@h", "h", 5672, "u", "a:b", true, "/"},
    {"amqp://u:p!$&'()*+;=-._~@h", "h", 5672, "u", "p!$&'()*+;=-._~", true, "/"},
    {"amqp://h/caf%C3%A9", "h", 5672, "guest", "guest", false, "caf\xc3\xa9"},
    {"amqp://10.1.2.3:5672/", "10.1.2.3", 5672, "guest", "guest", false, ""},
    {"amqps://host", "host", 5671, "guest", "guest", false, "/"},
    {"AMQPS://u:p@host:/v", "host", 5671, "u", "p", true, "v"},
    {"amqps://host:5672", "host", 5672, "guest", "guest", false, "/"},
    {"amqp://u:p@host?heartbeat=5", "host", 5672, "u", "p", true, "/"},
    {"amqp://host/?heartbeat=5", "host", 5672, "guest", "guest", false, ""},
    {"amqp://u:p%3F@host/v%3f?heartbeat=5", "host", 5672, "u", "p?", true, "v?"},
};

TEST(BrokerUri, AcceptsTheSpecification) {
    for (const Accepted& expected : ACCEPTED) {
        const auto result = parse_broker_uri(expected.text);
        const auto* uri = std::get_if<BrokerUri>(&result);
        ASSERT_NE(uri, nullptr) << expected.text << ": " << std::get<UriError>(result).reason;
        EXPECT_EQ(uri->host, expected.host) << expected.text;
        EXPECT_EQ(uri->port, expected.port) << expected.text;
        EXPECT_EQ(uri->user, expected.user) << expected.text;
        EXPECT_EQ(uri->password, expected.password) << expected.text;
        EXPECT_EQ(uri->has_password, expected.has_password) << expected.text;
        EXPECT_EQ(uri->vhost, expected.vhost) << expected.text;
        EXPECT_EQ(uri->has_user, std::string(expected.text).find('@') != std::string::npos)
            << expected.text;
        EXPECT_EQ(uri->tls.has_value(), expected.text[4] == 's' || expected.text[4] == 'S')
            << expected.text;
    }
}

struct Refused {
    const char* text;
    const char* reason;  // a part of it
};

const Refused REFUSED[] = {
    {"", "does not begin with amqp://"},
    {"localhost", "does not begin with amqp://"},
    {"localhost:5672", "does not begin with amqp://"},
    {"http://host", "does not begin with amqp://"},
    {"://host", "does not begin with amqp://"},
    {" amqp://host", "does not begin with amqp://"},
    {"amqpss://host", "does not begin with amqp://"},
    {"amqp:/host", "does not begin with amqp://"},
    {"amqp://u:a?b@h", "%3F"},
    {"amqp://u:1?sslcert=b@h", "%3F"},
    {"amqp://a,amqp://b", "%2C"},
    {"amqp://a,b", "%2C"},
    {"amqp://ho st", "space"},
    {"amqp://host\n", "control character"},
    {"amqp://host#x", "%23"},
    {"amqp://h%20ost", "the host contains"},
    {"amqp://host:0", "port"},
    {"amqp://host:65536", "port"},
    {"amqp://host:-1", "port"},
    {"amqp://host:+1", "port"},
    {"amqp://host:56x", "port"},
    {"amqp://host:999999999999999999999", "port"},
    {"amqp://::1", "brackets"},
    {"amqp://[::1", "no ]"},
    {"amqp://[::1]x", "follow an IPv6"},
    {"amqp://[]", "no IPv6 address"},
    {"amqp://[host]", "no IPv6 address"},
    {"amqp://[::1%0a]", "no IPv6 address"},
    {"amqp://[::1%25a%0ab]", "control character"},
    {"amqp://ho]st", "bracket"},
    {"amqp://host/a/b", "%2F"},
    {"amqp://host//", "%2F"},
    {"amqp://u:p@ss@host", "%40"},
    {"amqp://u:p/ss@host/v", "%2F"},
    {"amqp://u:1234/5@host", "%2F"},
    {"amqp://host/%", "two hexadecimal digits"},
    {"amqp://host/%2", "two hexadecimal digits"},
    {"amqp://host/%zz", "two hexadecimal digits"},
    {"amqp://host/%-1", "two hexadecimal digits"},
    {"amqp://u%:p@host", "the user name"},
    {"amqp://u:p%4@host", "the password"},
    {"amqp://u:p%00x@host", "%00"},
};

TEST(BrokerUri, RefusesTheRestWithTheReason) {
    for (const Refused& refused : REFUSED) {
        const auto result = parse_broker_uri(refused.text);
        const auto* error = std::get_if<UriError>(&result);
        ASSERT_NE(error, nullptr) << refused.text;
        EXPECT_NE(error->reason.find(refused.reason), std::string::npos)
            << refused.text << ": " << error->reason;
    }
}

TEST(BrokerUri, LimitsTheVhost) {
    EXPECT_TRUE(
        std::holds_alternative<BrokerUri>(parse_broker_uri("amqp://h/" + std::string(255, 'v'))));
    const auto result = parse_broker_uri("amqp://h/" + std::string(256, 'v'));
    ASSERT_TRUE(std::holds_alternative<UriError>(result));
    EXPECT_EQ(std::get<UriError>(result).reason, "the vhost is 256 bytes long, the limit is 255");
}

TEST(BrokerUri, ReasonsNeverQuoteASecret) {
    for (const char* text :
         {"amqp://u:s3cret/x@host/v", "amqp://u:s3cret", "amqp://u:s3cret@h@x",
          "amqp://u:s3cret%@h", "amqp://u:s3cret#@h", "amqp://u:x?s3cret@h", "amqp://u:1?s3cret",
          "amqp://u:1?a-s3cret=x", "amqp://u:s3,cret@h", "amqps://h?sslmode=s3cret",
          "amqps://h?verify=s3cret", "amqps://h?password=s3cret", "s3cret://h"}) {
        const auto result = parse_broker_uri(text);
        ASSERT_TRUE(std::holds_alternative<UriError>(result)) << text;
        EXPECT_EQ(std::get<UriError>(result).reason.find("s3cret"), std::string::npos) << text;
    }
}

struct Redacted {
    const char* text;
    const char* expected;
};

const Redacted REDACTED[] = {
    {"", ""},
    {"amqp://", "amqp://"},
    {"amqp://host:5672/v", "amqp://host:5672/v"},
    {"amqp://user@host", "amqp://user@host"},
    {"amqp://user:s3cret@host:5672/v%2fh", "amqp://user:****@host:5672/v%2fh"},
    {"amqp://user:@host", "amqp://user:****@host"},
    {"amqp://us3cret:us3cret@us3cret", "amqp://us3cret:****@us3cret"},
    {"AMQP://user:a:s3cret@host", "AMQP://user:****@host"},
    {"amqps://user:s3cret@host:5671/v", "amqps://user:****@host:5671/v"},
    {"amqp://user:s3cret@a, amqps://b:1 ,amqp://user:s3cret@b?heartbeat=5",
     "amqp://user:****@a, amqps://b:1 ,amqp://user:****@b?heartbeat=5"},
    {"amqp://s3cretuser:s3cret@a, amqp://b", "amqp://s3cretuser:****@a, amqp://b"},
    {"amqps://user:s3cret@host?sslmode=require", "amqps://user:****@host?sslmode=require"},
    // Refused texts: the login is hidden whole, the place is shown when it reads as one.
    {"amqps://user:s3cret@host:5671/v?x=1", "amqps://****@host:5671/v?****"},
    {"amqps://host/v?password=s3cret", "amqps://host/v?****"},
    {"amqps://user:1?password=s3cret", "amqps://user:1?****"},
    {"amqp://user:1?s3cret=a@host", "amqp://****@host"},
    {"amqp://user:s3%cret@a,amqp://user:1234", "amqp://****@****"},
    {"amqp://user:12,34", "amqp://****"},
    {"amqp://user:s3cret@a,", "amqp://****@****"},
    {"amqp://user:12,s3cret@host", "amqp://****@host"},
    {"amqps://host:5671/v", "amqps://host:5671/v"},
    {"amqps://user:s3cret@host/v?password=s3cret", "amqps://****@host/v?****"},
    {"amqp://user:s3cret@a,amqp://user:s3cret", "amqp://****@****"},
    {"amqp://user:p/s3cret@host/v", "amqp://****@host/v"},
    {"amqp://user:1234/s3cret@host", "amqp://****@host"},
    {"amqp://user:s3cret@x@host", "amqp://****@host"},
    {"amqp://user:x@y s3cret", "amqp://****@****"},
    {"amqp://user:s3cret", "amqp://****"},
    {"amqp://user:s3 cret@host", "amqp://****@host"},
    {"http://user:s3cret@host", "****@host"},
    {"user:s3cret@host", "****@host"},
    {"s3cret", "****"},
    {"user:s3cret", "****"},
    {"s3cret://host", "****"},
    {"s3cret@amqp://host", "****@****"},
    {"@@@", "****@"},
    {"amqp://@?s3cret", "amqp://****@?****"},
};

TEST(BrokerUri, RedactsSecretsOutOfAnything) {
    for (const Redacted& redacted : REDACTED) {
        EXPECT_EQ(redact_uri(redacted.text), redacted.expected) << redacted.text;
    }
}

TEST(BrokerList, KeepsTheOrder) {
    const auto result = parse_broker_list("amqp://a , amqps://b:1,amqp://c/v");
    ASSERT_TRUE(std::holds_alternative<std::vector<BrokerUri>>(result));
    const auto& list = std::get<std::vector<BrokerUri>>(result);
    ASSERT_EQ(list.size(), 3U);
    EXPECT_EQ(list[0].host, "a");
    EXPECT_TRUE(list[1].tls.has_value());
    EXPECT_EQ(list[2].vhost, "v");
    EXPECT_EQ(count_brokers("amqp://a,amqp://b"), 2U);
    EXPECT_EQ(count_brokers("rubbish"), 1U);
}

TEST(BrokerList, NamesTheUriThatIsWrong) {
    struct Case {
        const char* text;
        const char* reason;
    };
    for (const Case& c :
         {Case{"amqp://a,http://b", "in the 2nd of 2 URIs, it does not begin"},
          Case{"amqp://a,,amqp://b", "in the 2nd of 3 URIs, nothing is written"},
          Case{"amqp://a,", "in the 2nd of 2 URIs, nothing is written"},
          Case{",amqp://a", "in the 1st of 2 URIs, nothing is written"},
          Case{"amqp://a,amqp://b:x", "in the 2nd of 2 URIs, the port"},
          Case{"amqp://a,amqp://a,amqp://b/%", "in the 3rd of 3 URIs, the vhost"},
          // A comma in a password, whose first half reads as a port.
          Case{"amqp://u:12,34@h", "what follows the 1st comma does not begin"},
          Case{"amqp://a,amqp://u:1?s=2,3@h", "what follows the 2nd comma does not"},
          Case{"http://b", "it does not begin"}, Case{"", "it does not begin"}}) {
        const auto result = parse_broker_list(c.text);
        ASSERT_TRUE(std::holds_alternative<UriError>(result)) << c.text;
        EXPECT_EQ(std::get<UriError>(result).reason.find(c.reason), 0U)
            << std::get<UriError>(result).reason;
    }
    std::string many = "amqp://a";
    for (int i = 0; i < 16; i++) {
        many += ",amqp://a";
    }
    EXPECT_TRUE(std::holds_alternative<UriError>(parse_broker_list(many)));
}

TEST(BrokerUri, DisplayNameCarriesNoLogin) {
    struct Case {
        const char* text;
        const char* name;
    };
    for (const Case& c :
         {Case{"amqp://user:s3cret@host:1234/orders", "host:1234/orders"},
          Case{"amqp://", "localhost:5672//"}, Case{"amqp://host/", "host:5672/"},
          Case{"amqp://[::1]:1/v", "[::1]:1/v"}, Case{"amqps://h/v?heartbeat=1", "h:5671/v"},
          Case{"amqp://h/a%0A%25%C3%A9", "h:5672/a%0A%25%C3%A9"}}) {
        const auto result = parse_broker_uri(c.text);
        ASSERT_TRUE(std::holds_alternative<BrokerUri>(result)) << c.text;
        EXPECT_EQ(display_name(std::get<BrokerUri>(result)), c.name);
    }
}

}  // namespace
}  // namespace outbox
