#include "core/message.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/header_table.hpp"
#include "json_tokens.hpp"

namespace outbox {
namespace {

using test::JsonTokens;

constexpr MessageRules RULES{
    .default_exchange = "events", .max_message_bytes = 1024, .max_properties_bytes = 131064};

const Uuid ID{0x01, 0x89, 0x0a, 0x5d, 0xac, 0x96, 0x77, 0x4b,
              0xbc, 0xce, 0xb3, 0x02, 0x09, 0x9a, 0x80, 0x57};

Event small_event() {
    Event event;
    event.seq = 1;
    event.id = ID;
    event.source = "shop";
    event.event_type = "order.created";
    event.payload = "{}";
    event.content_type = "application/json";
    return event;
}

Message built(const Event& event, const MessageRules& rules = RULES) {
    Message message;
    const std::optional<Rejection> rejection = build_message(event, rules, message);
    EXPECT_FALSE(rejection) << rejection->code << ": " << rejection->detail;
    return message;
}

Rejection rejected(const Event& event, const MessageRules& rules = RULES) {
    Message message;
    const std::optional<Rejection> rejection = build_message(event, rules, message);
    EXPECT_TRUE(rejection);
    return rejection.value_or(Rejection{});
}

Rejection rejected_attributes(const std::string& text) {
    const JsonTokens tokens(text);
    EXPECT_TRUE(tokens.complete()) << text;
    Event event = small_event();
    event.attributes = tokens.json();
    return rejected(event);
}

const FieldValue* find(const Table& table, std::string_view name) {
    for (const auto& [key, field] : table) {
        if (key == name) {
            return &field;
        }
    }
    return nullptr;
}

template <class T>
const T* find_as(const Table& table, std::string_view name) {
    const FieldValue* field = find(table, name);
    return field == nullptr ? nullptr : std::get_if<T>(&field->value);
}

std::string names(const Table& table) {
    std::string all;
    for (const auto& [key, field] : table) {
        all += (all.empty() ? "" : " ") + key;
    }
    return all;
}

/// A header table written as text, to compare whole tables at once: type letter, then value.
std::string show(const FieldValue& field) {
    struct Show {
        std::string operator()(std::monostate) const { return "V"; }
        std::string operator()(bool b) const { return b ? "t1" : "t0"; }
        std::string operator()(std::int64_t i) const { return "l" + std::to_string(i); }
        std::string operator()(double d) const { return "d" + std::to_string(d); }
        std::string operator()(const std::string& s) const { return "S'" + s + "'"; }
        std::string operator()(const Table& table) const {
            std::string text = "F{";
            for (const auto& [key, field] : table) {
                text += key + ":" + show(field) + ";";
            }
            return text + "}";
        }
        std::string operator()(const Array& array) const {
            std::string text = "A[";
            for (const FieldValue& field : array) {
                text += show(field) + ";";
            }
            return text + "]";
        }
    };
    return std::visit(Show{}, field.value);
}

std::string show_attributes(const std::string& text) {
    const JsonTokens tokens(text);
    EXPECT_TRUE(tokens.complete()) << text;
    Event event = small_event();
    event.attributes = tokens.json();
    return show(FieldValue{built(event).headers});
}

TEST(Message, SmallestEventNeedsOnlyTypeAndPayload) {
    Event event;
    event.id = ID;
    event.event_type = "order.created";
    event.payload = "x";
    const Message message = built(event);
    EXPECT_EQ(message.exchange, "events");
    EXPECT_EQ(message.routing_key, "order.created");
    EXPECT_EQ(message.message_id, "msg_01h455vb4pex5vsknk084sn02q");
    EXPECT_EQ(message.type, "order.created");
    EXPECT_EQ(message.app_id, std::nullopt);
    EXPECT_EQ(message.body, "x");
    EXPECT_TRUE(message.persistent);
    EXPECT_TRUE(message.headers.empty());
    EXPECT_EQ(message.expiration, "");
    EXPECT_FALSE(message.timestamp || message.priority || message.correlation_id ||
                 message.reply_to || message.content_type || message.content_encoding);
}

TEST(Message, MapsEveryColumn) {
    const JsonTokens reference(R"({"registry":"main","id":7})");
    const JsonTokens attributes(R"({"tenant":"acme"})");
    Event event = small_event();
    event.message_id = "given-id";
    event.destination = "orders";
    event.routing_key = "eu.order";
    event.key = "order-17";
    event.content_encoding = "gzip";
    event.schema_version = 3;
    event.schema_reference = reference.json();
    event.attributes = attributes.json();
    event.source_event_id = "evt-9";
    event.source_position = 123456789012;
    event.occurred_at_us = 1700000000999999;
    event.causation_id = "cause";
    event.correlation_id = "corr";
    event.reply_to = "answers";
    event.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    event.tracestate = "a=b";
    event.priority = 9;
    event.expiration_ms = 60000;
    const Message message = built(event);
    EXPECT_EQ(message.exchange, "orders");
    EXPECT_EQ(message.routing_key, "eu.order");
    EXPECT_EQ(message.message_id, "given-id");
    EXPECT_EQ(message.correlation_id, "corr");
    EXPECT_EQ(message.reply_to, "answers");
    EXPECT_EQ(message.type, "order.created");
    EXPECT_EQ(message.app_id, "shop");
    EXPECT_EQ(message.content_type, "application/json");
    EXPECT_EQ(message.content_encoding, "gzip");
    EXPECT_EQ(message.timestamp, 1700000000U);
    EXPECT_EQ(message.priority, 9);
    EXPECT_EQ(message.expiration, "60000");
    EXPECT_EQ(show(FieldValue{message.headers}),
              "F{tenant:S'acme';"
              "traceparent:S'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';"
              "tracestate:S'a=b';"
              "outbox-id:S'01890a5d-ac96-774b-bcce-b302099a8057';"
              "outbox-key:S'order-17';outbox-schema-version:l3;"
              "outbox-schema-reference:F{registry:S'main';id:l7;};"
              "outbox-source-event-id:S'evt-9';outbox-source-position:l123456789012;"
              "outbox-causation-id:S'cause';}");
}

TEST(Message, CanBeBuiltOverAnEarlierOne) {
    Event event = small_event();
    event.occurred_at_us = 5000000;
    event.priority = 1;
    event.expiration_ms = 1;
    event.key = "k";
    event.reply_to = "r";
    Message message;
    ASSERT_FALSE(build_message(event, RULES, message));
    ASSERT_FALSE(build_message(small_event(), RULES, message));
    EXPECT_FALSE(message.timestamp || message.priority || message.reply_to);
    EXPECT_EQ(message.expiration, "");
    EXPECT_TRUE(message.headers.empty());
}

TEST(Message, EmptyDestinationIsTheDefaultExchange) {
    Event event = small_event();
    event.destination = "";
    event.routing_key = "a-queue";
    EXPECT_EQ(built(event).exchange, "");
    EXPECT_EQ(built(event).routing_key, "a-queue");
}

TEST(Message, RoutingKeyAloneIsEnough) {
    Event event = small_event();
    event.event_type = std::nullopt;
    event.routing_key = "rk";
    EXPECT_EQ(built(event).routing_key, "rk");
    EXPECT_EQ(built(event).type, std::nullopt);
    event.routing_key = "";
    EXPECT_EQ(built(event).routing_key, "");
}

TEST(Message, WithoutTypeAndRoutingKeyIsRejected) {
    Event event = small_event();
    event.event_type = std::nullopt;
    EXPECT_EQ(rejected(event).code, "missing_event_type");
}

TEST(Message, ShortStringsTake255BytesAndNoMore) {
    struct Column {
        const char* code;
        std::optional<std::string_view> Event::*member;
    };
    const std::string fits(255, 'x');
    const std::string too_long(256, 'x');
    for (const Column& column : {Column{"exchange_too_long", &Event::destination},
                                 Column{"routing_key_too_long", &Event::routing_key},
                                 Column{"message_id_too_long", &Event::message_id},
                                 Column{"content_type_too_long", &Event::content_type},
                                 Column{"content_encoding_too_long", &Event::content_encoding},
                                 Column{"correlation_id_too_long", &Event::correlation_id},
                                 Column{"reply_to_too_long", &Event::reply_to},
                                 Column{"routing_key_too_long", &Event::event_type}}) {
        Event event = small_event();
        event.*column.member = fits;
        built(event);
        event.*column.member = too_long;
        const Rejection rejection = rejected(event);
        EXPECT_EQ(rejection.code, column.code);
        EXPECT_NE(rejection.detail.find("256 bytes long, the limit is 255"), std::string::npos)
            << rejection.detail;
    }
}

TEST(Message, TypeAndSourceAreShortStringsToo) {
    const std::string too_long(256, 'x');
    Event event = small_event();
    event.routing_key = "rk";
    event.event_type = too_long;
    EXPECT_EQ(rejected(event).code, "event_type_too_long");
    event = small_event();
    event.source = too_long;
    EXPECT_EQ(rejected(event).code, "source_too_long");
    EXPECT_EQ(rejected(event).detail, "column source is 256 bytes long, the limit is 255");
}

TEST(Message, NamesTheSettingWhenTheDefaultExchangeIsTooLong) {
    const std::string too_long(256, 'x');
    MessageRules rules = RULES;
    rules.default_exchange = too_long;
    EXPECT_EQ(rejected(small_event(), rules).detail,
              "setting outbox_drainer.exchange is 256 bytes long, the limit is 255");
}

TEST(Message, CountsBytesNotCharacters) {
    std::string text;
    for (int i = 0; i < 128; ++i) {
        text += "\xc3\xa9";
    }
    Event event = small_event();
    event.routing_key = text;
    EXPECT_EQ(rejected(event).code, "routing_key_too_long");
}

TEST(Message, PriorityIsOneByte) {
    Event event = small_event();
    for (const std::int16_t fits : {std::int16_t{0}, std::int16_t{255}}) {
        event.priority = fits;
        EXPECT_EQ(built(event).priority, fits);
    }
    for (const std::int16_t bad : {std::int16_t{-1}, std::int16_t{256}, std::int16_t{32767}}) {
        event.priority = bad;
        EXPECT_EQ(rejected(event).code, "invalid_priority");
        EXPECT_EQ(rejected(event).detail,
                  "column priority must be from 0 to 255, it is " + std::to_string(bad));
    }
}

TEST(Message, ExpirationIsWhatTheBrokerTakes) {
    Event event = small_event();
    event.expiration_ms = 0;
    EXPECT_EQ(built(event).expiration, "0");
    event.expiration_ms = 315360000000;
    EXPECT_EQ(built(event).expiration, "315360000000");
    for (const std::int64_t bad :
         {std::int64_t{-1}, std::int64_t{315360000001}, std::numeric_limits<std::int64_t>::max()}) {
        event.expiration_ms = bad;
        EXPECT_EQ(rejected(event).code, "invalid_expiration");
    }
}

TEST(Message, TimestampIsInWholeSecondsSince1970) {
    Event event = small_event();
    event.occurred_at_us = 0;
    EXPECT_EQ(built(event).timestamp, 0U);
    event.occurred_at_us = 1999999;
    EXPECT_EQ(built(event).timestamp, 1U);
    for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()}) {
        event.occurred_at_us = bad;
        EXPECT_EQ(rejected(event).code, "invalid_occurred_at");
    }
}

TEST(Message, BodyIsLimited) {
    const std::string body(1025, 'b');
    Event event = small_event();
    event.payload = std::string_view(body).substr(0, 1024);
    EXPECT_EQ(built(event).body.size(), 1024U);
    event.payload = body;
    EXPECT_EQ(rejected(event).code, "message_too_large");
    EXPECT_EQ(rejected(event).detail,
              "column payload is 1025 bytes long, the limit outbox_drainer.max_message_bytes is "
              "1024");
    event.payload = "";
    EXPECT_EQ(built(event).body, "");
}

TEST(Message, BodyMayHoldAnyByte) {
    Event event = small_event();
    event.payload = std::string_view("\0\xff\x80", 3);
    EXPECT_EQ(built(event).body.size(), 3U);
}

TEST(MessageHeaders, KeepEveryJsonType) {
    EXPECT_EQ(show_attributes(R"({"a":true,"b":false,"c":null,"d":"text","e":"","f":17})"),
              "F{a:t1;b:t0;c:V;d:S'text';e:S'';f:l17;}");
    EXPECT_EQ(show_attributes(R"({"n":{"x":{"y":[]},"z":{}},"l":[1,"two",[3.5,null],{"k":true}]})"),
              "F{n:F{x:F{y:A[];};z:F{};};l:A[l1;S'two';A[d3.500000;V;];F{k:t1;};];}");
    EXPECT_EQ(show_attributes("{}"), "F{}");
}

TEST(MessageHeaders, IntegersStayIntegersAsLongAsTheyFit) {
    EXPECT_EQ(show_attributes(R"({"a":0,"b":-1,"c":9223372036854775807,"d":-9223372036854775808})"),
              "F{a:l0;b:l-1;c:l9223372036854775807;d:l-9223372036854775808;}");
    EXPECT_EQ(show_attributes(R"({"a":9223372036854775808,"b":1.0,"c":-2.5})"),
              "F{a:d9223372036854775808.000000;b:d1.000000;c:d-2.500000;}");
}

TEST(MessageHeaders, NumbersTooSmallForADoubleAreZero) {
    const std::string tiny = "0." + std::string(400, '0') + "1";
    EXPECT_EQ(show_attributes("{\"a\":" + tiny + ",\"b\":-" + tiny + "}"),
              "F{a:d0.000000;b:d-0.000000;}");
    const std::string long_fraction = "0.5" + std::string(2000, '0');
    EXPECT_EQ(show_attributes("{\"a\":" + long_fraction + "}"), "F{a:d0.500000;}");
}

TEST(MessageHeaders, NumbersTooLargeForADoubleAreRejected) {
    for (const std::string& number : {"1" + std::string(309, '0'), "-1" + std::string(400, '0'),
                                      "2" + std::string(308, '0') + ".5"}) {
        const Rejection rejection = rejected_attributes("{\"big\":" + number + "}");
        EXPECT_EQ(rejection.code, "number_out_of_range");
        EXPECT_NE(rejection.detail.find("key big"), std::string::npos);
        EXPECT_LT(rejection.detail.size(), 200U);
    }
    const Message message = [] {
        const JsonTokens tokens("{\"a\":1" + std::string(308, '0') + "}");
        Event event = small_event();
        event.attributes = tokens.json();
        return built(event);
    }();
    ASSERT_NE(find_as<double>(message.headers, "a"), nullptr);
    EXPECT_EQ(*find_as<double>(message.headers, "a"), 1e308);
}

TEST(MessageHeaders, NamesTake255BytesAndNoMore) {
    const std::string fits(255, 'k');
    const std::string too_long(256, 'k');
    EXPECT_EQ(show_attributes("{\"" + fits + "\":1}"), "F{" + fits + ":l1;}");
    EXPECT_EQ(show_attributes("{\"n\":[{\"" + fits + "\":1}]}"), "F{n:A[F{" + fits + ":l1;};];}");
    for (const std::string& text :
         {"{\"" + too_long + "\":1}", "{\"n\":[{\"" + too_long + "\":1}]}"}) {
        const Rejection rejection = rejected_attributes(text);
        EXPECT_EQ(rejection.code, "header_name_too_long");
        EXPECT_EQ(rejection.detail, "column attributes has a key of 256 bytes, the limit is 255: " +
                                        std::string(64, 'k') + "...");
    }
    EXPECT_EQ(show_attributes(R"({"":1})"), "F{:l1;}");
}

TEST(MessageHeaders, NeverCutACharacterInAMessage) {
    const Rejection rejection = rejected_attributes("{\"" + std::string(63, 'a') + "\xc3\xa9" +
                                                    std::string(300, 'b') + "\":1}");
    EXPECT_TRUE(rejection.detail.ends_with(": " + std::string(63, 'a') + "..."))
        << rejection.detail;
}

std::string nested(int levels, const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < levels; ++i) {
        text += open;
    }
    text += "1";
    for (int i = 0; i < levels; ++i) {
        text += close;
    }
    return text;
}

TEST(MessageHeaders, NestToALimit) {
    show_attributes(nested(MAX_HEADER_DEPTH, "{\"k\":", "}"));
    show_attributes("{\"a\":" + nested(MAX_HEADER_DEPTH - 1, "[", "]") + "}");
    for (const std::string& text : {nested(MAX_HEADER_DEPTH + 1, "{\"k\":", "}"),
                                    "{\"a\":" + nested(MAX_HEADER_DEPTH, "[", "]") + "}"}) {
        const Rejection rejection = rejected_attributes(text);
        EXPECT_EQ(rejection.code, "headers_too_deep");
        EXPECT_EQ(rejection.detail,
                  "column attributes is nested deeper than the limit of 64 levels");
    }
}

TEST(MessageHeaders, AbsurdDepthDoesNotExhaustTheStack) {
    std::vector<JsonToken> tokens;
    for (int i = 0; i < 1000000; ++i) {
        tokens.push_back({JsonToken::Kind::begin_object, {}});
        tokens.push_back({JsonToken::Kind::key, "k"});
    }
    Event event = small_event();
    event.attributes = tokens;
    EXPECT_EQ(rejected(event).code, "headers_too_deep");
}

TEST(MessageHeaders, AttributesMustBeAnObject) {
    for (const char* text : {"[]", "[{\"a\":1}]", "\"text\"", "17", "true", "null"}) {
        EXPECT_EQ(rejected_attributes(text).code, "attributes_not_object") << text;
    }
}

TEST(MessageHeaders, ReservedPrefixIsRefusedAtTheTopOnly) {
    const Rejection rejection = rejected_attributes(R"({"outbox-key":"mine"})");
    EXPECT_EQ(rejection.code, "reserved_header");
    EXPECT_EQ(rejection.detail,
              "column attributes has the key outbox-key, but the prefix outbox- is reserved");
    EXPECT_EQ(rejected_attributes(R"({"a":1,"outbox-":1})").code, "reserved_header");
    EXPECT_EQ(show_attributes(R"({"outbox":1,"x-outbox-a":2,"n":{"outbox-key":3}})"),
              "F{outbox:l1;x-outbox-a:l2;n:F{outbox-key:l3;};}");
}

TEST(MessageHeaders, WhatTheBrokerReadsPassesThrough) {
    EXPECT_EQ(show_attributes(R"({"CC":["a","b"],"BCC":[],"x-delay":5000})"),
              "F{CC:A[S'a';S'b';];BCC:A[];x-delay:l5000;}");
}

TEST(MessageHeaders, RoutingHeadersThatCloseTheChannelAreRejected) {
    for (const char* text :
         {R"({"CC":"a"})", R"({"BCC":null})", R"({"CC":{"a":1}})", R"({"BCC":1})"}) {
        EXPECT_EQ(rejected_attributes(text).code, "invalid_routing_header") << text;
    }
    EXPECT_EQ(show_attributes(R"({"cc":"a","n":{"CC":"a"}})"), "F{cc:S'a';n:F{CC:S'a';};}");
}

TEST(MessageHeaders, TraceColumnsBeatAttributes) {
    const JsonTokens attributes(R"({"traceparent":"from-attribute","a":1,"tracestate":"s"})");
    Event event = small_event();
    event.attributes = attributes.json();
    EXPECT_EQ(show(FieldValue{built(event).headers}),
              "F{traceparent:S'from-attribute';a:l1;tracestate:S's';}");
    event.traceparent = "from-column";
    EXPECT_EQ(show(FieldValue{built(event).headers}),
              "F{a:l1;tracestate:S's';traceparent:S'from-column';}");
    event.tracestate = "t";
    EXPECT_EQ(show(FieldValue{built(event).headers}),
              "F{a:l1;traceparent:S'from-column';tracestate:S't';}");
}

TEST(MessageHeaders, EnvelopeIsSentOnlyWhenSet) {
    Event event = small_event();
    EXPECT_EQ(names(built(event).headers), "");
    event.message_id = "m";
    EXPECT_EQ(names(built(event).headers), "outbox-id");
    event.schema_version = 0;
    event.source_position = -1;
    EXPECT_EQ(show(FieldValue{built(event).headers}),
              "F{outbox-id:S'01890a5d-ac96-774b-bcce-b302099a8057';outbox-schema-version:l0;"
              "outbox-source-position:l-1;}");
}

TEST(MessageHeaders, AReplaySaysSoAndKeepsTheMessageId) {
    Event event = small_event();
    const std::string message_id = built(event).message_id;
    event.replay_job = 17;
    EXPECT_EQ(show(FieldValue{built(event).headers}), "F{outbox-replay:l17;}");
    EXPECT_EQ(built(event).message_id, message_id);
}

TEST(MessageHeaders, SchemaReferenceKeepsItsTypeAndItsLimits) {
    const JsonTokens text(R"("urn:schema:7")");
    Event event = small_event();
    event.schema_reference = text.json();
    EXPECT_EQ(show(FieldValue{built(event).headers}),
              "F{outbox-schema-reference:S'urn:schema:7';}");
    const JsonTokens deep(nested(MAX_HEADER_DEPTH + 1, "[", "]"));
    event.schema_reference = deep.json();
    EXPECT_EQ(rejected(event).detail,
              "column schema_reference is nested deeper than the limit of 64 levels");
}

TEST(MessageHeaders, BrokenTokenSequencesAreRejected) {
    using Kind = JsonToken::Kind;
    const std::vector<std::vector<JsonToken>> sequences = {
        {{Kind::begin_object, {}}},
        {{Kind::end_object, {}}},
        {{Kind::key, "a"}},
        {{Kind::begin_object, {}}, {Kind::key, "a"}},
        {{Kind::begin_object, {}}, {Kind::key, "a"}, {Kind::end_object, {}}},
        {{Kind::begin_object, {}}, {Kind::string, "a"}, {Kind::end_object, {}}},
        {{Kind::begin_object, {}}, {Kind::end_object, {}}, {Kind::end_object, {}}},
        {{Kind::begin_array, {}}, {Kind::null, {}}},
        {{Kind::begin_array, {}}, {Kind::key, "a"}, {Kind::end_array, {}}},
        {{Kind::begin_array, {}}, {Kind::end_object, {}}},
    };
    for (const std::vector<JsonToken>& sequence : sequences) {
        Event event = small_event();
        event.attributes = sequence;
        EXPECT_EQ(rejected(event).code, "malformed_json");
    }
    for (const char* number : {"", "-", "1x", "NaN", "Infinity", "inf", "."}) {
        const std::vector<JsonToken> tokens = {{Kind::begin_object, {}},
                                               {Kind::key, "a"},
                                               {Kind::number, number},
                                               {Kind::end_object, {}}};
        Event event = small_event();
        event.attributes = tokens;
        EXPECT_EQ(rejected(event).code, "number_out_of_range") << number;
    }
}

TEST(EncodedSize, CountsWhatGoesOnTheWire) {
    EXPECT_EQ(encoded_size(Table{}), 4U);
    const auto size_of = [](FieldValue value) {
        Table table;
        table.emplace_back("abc", std::move(value));
        return encoded_size(table) - 4 - 1 - 3 - 1;  // less table length, name and type
    };
    EXPECT_EQ(size_of(FieldValue{}), 0U);
    EXPECT_EQ(size_of(FieldValue{true}), 1U);
    EXPECT_EQ(size_of(FieldValue{std::int64_t{1}}), 8U);
    EXPECT_EQ(size_of(FieldValue{1.5}), 8U);
    EXPECT_EQ(size_of(FieldValue{std::string("four")}), 8U);
    EXPECT_EQ(size_of(FieldValue{Table{}}), 4U);
    EXPECT_EQ(size_of(FieldValue{Array{}}), 4U);
    Array array(3);
    array[1].value = std::string("x");
    EXPECT_EQ(size_of(FieldValue{array}), 4U + 1 + (1 + 5) + 1);
}

TEST(Properties, FillTheFrameToTheLastByte) {
    Event event = small_event();
    event.message_id = "m-1";
    event.correlation_id = "corr";
    event.reply_to = "r";
    event.content_encoding = "gzip";
    event.occurred_at_us = 1;
    event.priority = 1;
    event.expiration_ms = 1000;
    const std::size_t fixed = 14;
    const std::size_t properties =
        (1 + 16) + (1 + 4) + 1 + 1 + (1 + 4) + (1 + 1) + (1 + 4) + (1 + 3) + 8 + (1 + 13) + (1 + 4);
    const std::size_t headers = 4 + (1 + 9 + 1 + 4 + 36);  // outbox-id
    MessageRules rules = RULES;
    rules.max_properties_bytes = fixed + properties + headers;
    built(event, rules);
    --rules.max_properties_bytes;
    const Rejection rejection = rejected(event, rules);
    EXPECT_EQ(rejection.code, "headers_too_large");
    EXPECT_NE(rejection.detail.find(std::to_string(fixed + properties + headers)),
              std::string::npos);
    EXPECT_NE(rejection.detail.find(std::to_string(rules.max_properties_bytes)), std::string::npos);
}

TEST(Properties, OptionalOnesTakeNoRoom) {
    Event event;
    event.id = ID;
    event.event_type = "t";
    MessageRules rules = RULES;
    rules.max_properties_bytes = 14 + 1 + (1 + 30) + (1 + 1);  // delivery mode, message id, type
    built(event, rules);
    --rules.max_properties_bytes;
    EXPECT_EQ(rejected(event, rules).code, "headers_too_large");
}

/// What check_event says of an event whose payload and key are as large as they are in it; "" when
/// nothing.
std::string checked(const Event& event, const MessageRules& rules = RULES) {
    const StoredBytes stored{.payload = event.payload.size(),
                             .key = event.key.value_or(std::string_view()).size()};
    const std::optional<Rejection> rejection = check_event(event, stored, rules);
    return rejection ? rejection->code + ": " + rejection->detail : "";
}

TEST(Check, SaysWhatBuildingTheMessageWouldSay) {
    const std::string too_long(256, 'x');
    const std::string large(1025, 'x');
    const JsonTokens list("[]");
    const JsonTokens reserved(R"({"outbox-id":1})");
    std::vector<Event> events(9, small_event());
    events[0].event_type = std::nullopt;
    events[1].destination = too_long;
    events[2].content_type = too_long;
    events[3].priority = 256;
    events[4].expiration_ms = -1;
    events[5].occurred_at_us = -1;
    events[6].payload = large;
    events[7].attributes = list.json();
    events[8].attributes = reserved.json();
    for (const Event& event : events) {
        const Rejection rejection = rejected(event);
        EXPECT_EQ(checked(event), rejection.code + ": " + rejection.detail);
    }
    EXPECT_EQ(checked(small_event()), "");
}

// The short cut for events without JSON must never let one through that does not fit.
TEST(Check, AgreesWithTheMessageOnTheSizeOfProperties) {
    MessageRules rules = RULES;
    rules.max_properties_bytes = 10000;
    std::size_t refused = 0;
    for (std::size_t size = 0; size < 12000; size += 7) {
        const std::string text(size, 'x');
        for (auto member : {&Event::tracestate, &Event::causation_id, &Event::source_event_id}) {
            Event event = small_event();
            event.*member = text;
            Message message;
            const bool fits = !build_message(event, rules, message);
            EXPECT_EQ(checked(event, rules).empty(), fits) << size;
            refused += fits ? 0 : 1;
        }
    }
    EXPECT_GT(refused, 0U);
}

// Every bounded part of the message at its largest: what the short cut counts on.
TEST(Check, LargestBoundedPropertiesAreSmall) {
    const std::string longest(255, 'x');
    Event event = small_event();
    for (auto member :
         {&Event::message_id, &Event::destination, &Event::event_type, &Event::content_type,
          &Event::content_encoding, &Event::correlation_id, &Event::reply_to}) {
        event.*member = longest;
    }
    for (auto member : {&Event::key, &Event::traceparent, &Event::tracestate,
                        &Event::source_event_id, &Event::causation_id}) {
        event.*member = "";
    }
    event.source = longest;
    event.schema_version = 1;
    event.source_position = 1;
    event.occurred_at_us = 1;
    event.priority = 1;
    event.expiration_ms = 315360000000;
    MessageRules rules = RULES;
    rules.max_properties_bytes = 4096;
    built(event, rules);
}

TEST(Check, CountsThePayloadAndTheKeyAsTheyAreStored) {
    const Event event = small_event();
    EXPECT_FALSE(check_event(event, {.payload = 1024, .key = 1024}, RULES));
    EXPECT_EQ(check_event(event, {.payload = 1025}, RULES)->code, "message_too_large");
    EXPECT_EQ(check_event(event, {.key = 1025}, RULES)->detail,
              "column key is 1025 bytes long, the limit is 1024");
}

TEST(Check, TraceparentIsVersion00OfTheStandard) {
    Event event = small_event();
    event.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    EXPECT_EQ(checked(event), "");
    for (const char* bad : {"", "00", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
                            "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
                            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
                            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01",
                            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-"}) {
        event.traceparent = bad;
        EXPECT_TRUE(checked(event).starts_with("invalid_traceparent: ")) << bad;
        built(event);  // drainers send it: whoever gets it ignores it
    }
}

}  // namespace
}  // namespace outbox
