#include "core/password_lines.hpp"

#include <gtest/gtest.h>

#include <string>
#include <variant>

namespace outbox {
namespace {

BrokerUri broker(const std::string& text = "amqp://shop@rabbit.example:5673/orders") {
    const auto parsed = parse_broker_uri(text);
    EXPECT_TRUE(std::holds_alternative<BrokerUri>(parsed)) << text;
    return std::get<BrokerUri>(parsed);
}

/// The password, or "!" and the reason.
std::string found(std::string_view text, const BrokerUri& uri = broker()) {
    auto result = find_password(text, uri);
    if (const auto* error = std::get_if<NoPassword>(&result)) {
        return "!" + error->reason;
    }
    return std::get<std::string>(result);
}

TEST(PasswordLines, OneLineIsThePasswordAsItIs) {
    for (const char* password : {"s3cret", " s3cret ", "  s3 cret#", "back\\slash", "a:b:c:d",
                                 "\\:", "a\\", "#s3cret", "*", "p\xc3\xa4ss", "a\\:b:c:d:e"}) {
        EXPECT_EQ(found(password), password);
        EXPECT_EQ(found(std::string(password) + "\n"), password);
        EXPECT_EQ(found(std::string(password) + "\r\n"), password);
        EXPECT_EQ(found("\n" + std::string(password) + "\n \n\n"), password);
    }
}

TEST(PasswordLines, TheFirstLineThatFitsCounts) {
    EXPECT_EQ(found("rabbit.example:5673:orders:shop:right\n"), "right");
    EXPECT_EQ(found("rabbit.example:5673:orders:shop:right"), "right");
    EXPECT_EQ(found("# rabbit.example:5673:orders:shop:wrong\r\n"
                    "\r\n"
                    "other.example:5673:orders:shop:wrong\r\n"
                    "rabbit.example:5672:orders:shop:wrong\r\n"
                    "rabbit.example:5673:order:shop:wrong\r\n"
                    "rabbit.example:5673:orders:shops:wrong\r\n"
                    "rabbit.example:5673:orders:shop:right\r\n"
                    "*:*:*:*:wrong\r\n"),
              "right");
    EXPECT_EQ(found("*:*:*:*:right\nrabbit.example:5673:orders:shop:wrong\n"), "right");
    EXPECT_EQ(found("*:5673:*:shop:right"), "right");
    EXPECT_EQ(found("Rabbit.EXAMPLE:*:*:*:right"), "right");
}

TEST(PasswordLines, EscapesAreTakenOff) {
    EXPECT_EQ(found("*:*:*:*:a\\:b\\\\c\\d"), "a:b\\cd");
    EXPECT_EQ(found("*:*:*:*:a:b:"), "a:b:");
    EXPECT_EQ(found("*:*:*:*:a\\"), "a\\");
    const BrokerUri odd = broker("amqp://u%3Ax%5C@[::1]/%2F");
    EXPECT_EQ(found("\\:\\:1:5672:/:u\\:x\\\\:right", odd), "right");
    // An escaped star is a star, and fields are not encoded as in a URI.
    EXPECT_EQ(found("\\*:*:*:*:wrong\n*:*:*:*:right", broker("amqp://x@*")), "wrong");
    EXPECT_EQ(found("\\*:*:*:*:wrong\n*:*:*:*:right"), "right");
    EXPECT_EQ(found("*:*:%2F:*:wrong\n*:*:/:*:right", broker("amqp://h")), "right");
    EXPECT_EQ(found("*:*::*:right", broker("amqp://h/")), "right");
}

TEST(PasswordLines, TheDefaultsOfTheUriCount) {
    EXPECT_EQ(found("localhost:5672:/:guest:right\n", broker("amqp://")), "right");
    EXPECT_EQ(found("localhost:5671:/:guest:right\n", broker("amqps://")), "right");
}

TEST(PasswordLines, WithoutALineThatFitsThePasswordOfTheUriCounts) {
    EXPECT_EQ(found("other:*:*:*:wrong\n", broker("amqp://u:own@h")), "own");
    EXPECT_EQ(found("h:*:*:*:right\n", broker("amqp://u:own@h")), "right");
    EXPECT_EQ(found("right\n", broker("amqp://u:own@h")), "right");
}

TEST(PasswordLines, SaysWhatIsMissing) {
    const std::string here = "host \"rabbit.example\", port 5673, vhost \"orders\", user \"shop\"";
    EXPECT_EQ(found("other:*:*:*:s3cret\n"),
              "!has no line for " + here + " (lines are host:port:vhost:user:password)");
    EXPECT_EQ(found("# the password\ns3cret\n"),
              "!has no line for " + here + " (line 2 is not host:port:vhost:user:password)");
    EXPECT_EQ(found("\nrabbit.example:5673:orders:shop:\n*:*:*:*:s3cret\n"),
              "!has no password in line 2, the first for " + here);
    // What a URI may name is not always fit for a log.
    EXPECT_EQ(found("a:*:*:*:s3cret\n", broker("amqp://a%0Ab@h/%C3%A4")),
              "!has no line for host \"h\", port 5672, vhost \"%C3%A4\", user \"a%0Ab\" (lines "
              "are host:port:vhost:user:password)");
    EXPECT_EQ(found(""), "!is empty");
    EXPECT_EQ(found("\r\n \t\n"), "!is empty");
    EXPECT_EQ(found(std::string_view("s3c\0ret", 7)), "!contains a NUL byte");
}

TEST(PasswordLines, ReasonsNeverRepeatALine) {
    for (const char* text : {"s3cret\ns3cret\n", "other:*:*:*:s3cret", "s3cret:*:*:*:s3cret",
                             "a:b:c:d:s3cret\ns3cret:x", "*:*:*:s3cret:s3cret\n#s3cret"}) {
        const std::string reason = found(text);
        ASSERT_EQ(reason.front(), '!') << text;
        EXPECT_EQ(reason.find("s3cret"), std::string::npos) << reason;
    }
}

}  // namespace
}  // namespace outbox
