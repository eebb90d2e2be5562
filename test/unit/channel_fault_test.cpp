// What a broker's words about a closed channel tell. The texts are RabbitMQ's own (3.10).
#include "core/channel_fault.hpp"

#include <gtest/gtest.h>

namespace outbox::test {
namespace {

using Kind = ChannelFault::Kind;

TEST(ChannelFault, NamesAMissingExchange) {
    const ChannelFault fault =
        read_channel_fault(404, "NOT_FOUND - no exchange 'a b' in vhost '/'");
    EXPECT_EQ(fault.kind, Kind::missing_exchange);
    EXPECT_EQ(fault.exchange, "a b");
}

TEST(ChannelFault, ANameMayContainQuotes) {
    const ChannelFault fault =
        read_channel_fault(404, "NOT_FOUND - no exchange 'it's' in vhost 'x' in vhost '/'");
    EXPECT_EQ(fault.exchange, "it's' in vhost 'x");
}

TEST(ChannelFault, NamesAnExchangeThatRefuses) {
    for (const char* text :
         {"ACCESS_REFUSED - access to exchange 'e' in vhost '/' refused for user 'u'",
          "ACCESS_REFUSED - write access to exchange 'e' in vhost '/' refused for user 'u'",
          "ACCESS_REFUSED - cannot publish to internal exchange 'e' in vhost '/'",
          "ACCESS_REFUSED - access to topic 't.x' in exchange 'e' in vhost '/' refused for user "
          "'u'"}) {
        const ChannelFault fault = read_channel_fault(403, text);
        EXPECT_EQ(fault.kind, Kind::refused) << text;
        EXPECT_EQ(fault.exchange, "e") << text;
    }
}

TEST(ChannelFault, TheDefaultExchangeHasANameInChecksOfPermissions) {
    const ChannelFault fault = read_channel_fault(
        403, "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'");
    EXPECT_EQ(fault.exchange, "");
}

TEST(ChannelFault, LearnsASizeLimit) {
    for (const char* text :
         {"PRECONDITION_FAILED - message size 134217729 is larger than configured max size "
          "134217728",
          "PRECONDITION_FAILED - message size 134217729 is larger than max size 134217728"}) {
        const ChannelFault fault = read_channel_fault(406, text);
        EXPECT_EQ(fault.kind, Kind::too_large) << text;
        EXPECT_EQ(fault.size_limit, 134217728U) << text;
    }
}

TEST(ChannelFault, ALimitThatCannotBeReadIsNone) {
    for (const char* text : {"PRECONDITION_FAILED - message size 10 is larger than",
                             "PRECONDITION_FAILED - message size 10 is smaller than 20",
                             "PRECONDITION_FAILED - message size 10 is larger than max size 0",
                             "PRECONDITION_FAILED - message size "
                             "99999999999999999999999 is larger than configured max size 5"}) {
        const ChannelFault fault = read_channel_fault(406, text);
        EXPECT_EQ(fault.kind, Kind::content) << text;
        EXPECT_FALSE(fault.size_limit.has_value()) << text;
    }
}

TEST(ChannelFault, WhatNamesNothingIsAMatterOfContent) {
    EXPECT_EQ(
        read_channel_fault(406, "PRECONDITION_FAILED - fast reply consumer does not exist").kind,
        Kind::content);
    EXPECT_EQ(read_channel_fault(404, "NOT_FOUND - no exchange 'cut off at the end of the te").kind,
              Kind::content);
    const ChannelFault fault = read_channel_fault(403, "ACCESS_REFUSED");
    EXPECT_EQ(fault.kind, Kind::refused);
    EXPECT_FALSE(fault.exchange.has_value());
}

TEST(ChannelFault, OtherCodesAreNoMatterOfAMessage) {
    for (const std::uint16_t code : {320, 405, 504, 506, 541}) {
        EXPECT_EQ(read_channel_fault(code, "whatever").kind, Kind::other) << code;
    }
}

}  // namespace
}  // namespace outbox::test
