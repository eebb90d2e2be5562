#include "core/password_lines.hpp"

#include <gtest/gtest.h>

#include <string>

namespace outbox {
namespace {

BrokerUri broker() {
    BrokerUri uri;
    uri.host = "rabbit.example";
    uri.port = 5671;
    uri.vhost = "/shop";
    uri.user = "app";
    return uri;
}

std::string password(std::string_view text, const BrokerUri& uri = broker()) {
    const auto found = find_password(text, uri);
    const auto* none = std::get_if<NoPassword>(&found);
    return none != nullptr ? "(" + none->reason + ")" : std::get<std::string>(found);
}

TEST(PasswordLines, OneLineIsThePassword) {
    EXPECT_EQ(password("s3cret"), "s3cret");
    EXPECT_EQ(password("s3cret\n"), "s3cret");
    EXPECT_EQ(password("s3cret\r\n\n"), "s3cret");
    EXPECT_EQ(password("\n  s3 cret#"), "  s3 cret#") << "blanks belong to it";
    EXPECT_EQ(password("a:b:c:d"), "a:b:c:d");
    EXPECT_EQ(password("#s3cret"), "#s3cret");
    EXPECT_EQ(password("back\\slash"), "back\\slash");
}

TEST(PasswordLines, TheFirstLineThatFitsIsTaken) {
    EXPECT_EQ(password("# brokers\n"
                       "other:5671:/shop:app:no\n"
                       "rabbit.example:5672:/shop:app:no\n"
                       "rabbit.example:5671:/:app:no\n"
                       "rabbit.example:5671:/shop:root:no\n"
                       "rabbit.example:*:/shop:app:yes\n"
                       "*:*:*:*:late\n"),
              "yes");
    EXPECT_EQ(password("*:*:*:*:any"), "any");
    EXPECT_EQ(password("*:*:*:*:any:with:colons"), "any:with:colons");
    EXPECT_EQ(password("*:*:*:*:a\\:b\\\\c\r\n"), "a:b\\c");
}

TEST(PasswordLines, AFieldMayHoldColons) {
    BrokerUri uri = broker();
    uri.host = "::1";
    EXPECT_EQ(password("\\:\\:1:5671:/shop:app:six", uri), "six");
}

TEST(PasswordLines, SaysWhatIsMissingAndQuotesNothing) {
    const std::string missing = password("other:1:/:u:s3cret\n\n");
    EXPECT_EQ(missing,
              "(has no line for host \"rabbit.example\", port 5671, vhost \"/shop\", user "
              "\"app\" (lines are host:port:vhost:user:password))");
    EXPECT_EQ(password(""), "(is empty)");
    EXPECT_EQ(password("\n\r\n"), "(is empty)");
    EXPECT_EQ(password(std::string_view("s3\0cret", 7)), "(contains a NUL byte)");
    EXPECT_EQ(password("s3cret\nmore").find("s3cret"), std::string::npos);
}

}  // namespace
}  // namespace outbox
