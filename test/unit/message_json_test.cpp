#include "core/message_json.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

Message small_message() {
    Message message;
    message.exchange = "events";
    message.routing_key = "a";
    message.message_id = "m";
    message.body = "b";
    return message;
}

TEST(MessageJson, LeavesOutWhatIsNotSet) {
    EXPECT_EQ(message_json(small_message(), false, true),
              R"({"exchange":"events","routing_key":"a","mandatory":false,)"
              R"("properties":{"delivery_mode":2,"message_id":"m"},"headers":{},)"
              R"("body_size":1,"body":"b"})");
}

TEST(MessageJson, ShowsEveryProperty) {
    Message message = small_message();
    message.correlation_id = "co";
    message.reply_to = "rt";
    message.type = "ty";
    message.app_id = "ap";
    message.content_type = "ct";
    message.content_encoding = "ce";
    message.timestamp = 1;
    message.priority = 0;
    message.expiration = "60";
    EXPECT_EQ(message_json(message, true, true),
              R"({"exchange":"events","routing_key":"a","mandatory":true,)"
              R"("properties":{"content_type":"ct","content_encoding":"ce","delivery_mode":2,)"
              R"("priority":0,"correlation_id":"co","reply_to":"rt","expiration":"60",)"
              R"("message_id":"m","timestamp":1,"type":"ty","app_id":"ap"},"headers":{},)"
              R"("body_size":1,"body":"b"})");
}

TEST(MessageJson, HeadersKeepTheirTypes) {
    Message message = small_message();
    Table inner;
    inner.emplace_back("x", FieldValue{});
    message.headers.emplace_back("b", FieldValue{true});
    message.headers.emplace_back("i", FieldValue{std::int64_t{-7}});
    message.headers.emplace_back("d", FieldValue{1.5});
    message.headers.emplace_back("s", FieldValue{std::string("q\"\\\n\x1f\xc3\xa9")});
    message.headers.emplace_back("a", FieldValue{Array{FieldValue{false}, FieldValue{inner}}});
    EXPECT_NE(message_json(message, false, true)
                  .find(R"("headers":{"b":true,"i":-7,"d":1.5,"s":"q\"\\\u000a\u001f)"
                        "\xc3\xa9"
                        R"(","a":[false,{"x":null}]},)"),
              std::string::npos);
}

TEST(MessageJson, BodyThatIsNoTextIsBase64) {
    const std::string_view all("\0\xff\x10\x83", 4);
    for (const auto& [length, text] : {std::pair(0, ""), std::pair(1, "AA=="), std::pair(2, "AP8="),
                                       std::pair(3, "AP8Q"), std::pair(4, "AP8Qgw==")}) {
        Message message = small_message();
        message.body = all.substr(0, static_cast<std::size_t>(length));
        const std::string json = message_json(message, false, false);
        EXPECT_NE(json.find("\"body_base64\":\"" + std::string(text) + "\"}"), std::string::npos)
            << json;
    }
}

TEST(MessageJson, RefusalHasCodeAndDetail) {
    EXPECT_EQ(refusal_json(Rejection{"code", "a \"b\""}),
              R"({"refused":{"error_code":"code","detail":"a \"b\""}})");
}

}  // namespace
}  // namespace outbox
