#include "core/header_table.hpp"

#include <gtest/gtest.h>

#include "json_tokens.hpp"

namespace outbox {
namespace {

using test::JsonTokens;

std::optional<Rejection> build(const std::string& json, Table& out) {
    const JsonTokens tokens(json);
    EXPECT_TRUE(tokens.complete()) << json;
    return build_arguments(tokens.json(), out);
}

TEST(Arguments, KeepTheirTypesAndTheirOrder) {
    Table table;
    ASSERT_FALSE(build(R"({"x-queue-type": "quorum", "x-max-length": 10, "ratio": 0.5,
                          "lazy": true, "none": null, "list": [1, "two"], "inner": {"a": -1}})",
                       table));
    ASSERT_EQ(table.size(), 7U);
    EXPECT_EQ(table[0].first, "x-queue-type");
    EXPECT_EQ(std::get<std::string>(table[0].second.value), "quorum");
    EXPECT_EQ(std::get<std::int64_t>(table[1].second.value), 10);
    EXPECT_EQ(std::get<double>(table[2].second.value), 0.5);
    EXPECT_TRUE(std::get<bool>(table[3].second.value));
    EXPECT_TRUE(std::holds_alternative<std::monostate>(table[4].second.value));
    EXPECT_EQ(std::get<Array>(table[5].second.value).size(), 2U);
    EXPECT_EQ(std::get<std::int64_t>(std::get<Table>(table[6].second.value)[0].second.value), -1);
}

// What events may not use as attributes is no matter here.
TEST(Arguments, MayHaveReservedNames) {
    Table table;
    EXPECT_FALSE(build(R"({"outbox-key": "x", "CC": "y"})", table));
    EXPECT_EQ(table.size(), 2U);
}

TEST(Arguments, AreAnObject) {
    Table table{{"left", FieldValue{}}};
    for (const char* json : {"1", "[]", "\"x\"", "null"}) {
        const std::optional<Rejection> rejection = build(json, table);
        ASSERT_TRUE(rejection.has_value()) << json;
        EXPECT_EQ(rejection->code, "arguments_not_object");
        EXPECT_EQ(rejection->detail, "parameter arguments must be a JSON object");
    }
    EXPECT_FALSE(build("{}", table));
    EXPECT_TRUE(table.empty());
}

TEST(Arguments, ThatCannotBeSentAreNamed) {
    Table table;
    const std::string name(256, 'n');
    std::optional<Rejection> rejection = build("{\"" + name + "\": 1}", table);
    ASSERT_TRUE(rejection.has_value());
    EXPECT_EQ(rejection->code, "header_name_too_long");
    EXPECT_TRUE(rejection->detail.starts_with("parameter arguments has a key of 256 bytes"));
    rejection = build(R"({"n": 1e999})", table);
    ASSERT_TRUE(rejection.has_value());
    EXPECT_EQ(rejection->code, "number_out_of_range");
}

}  // namespace
}  // namespace outbox
