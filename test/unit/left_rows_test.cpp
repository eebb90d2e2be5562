#include "core/left_rows.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "drain_bench.hpp"

namespace outbox {
namespace {

using Seqs = std::vector<std::int64_t>;
using test::Bench;

std::vector<LeftRow> of(std::uint64_t group, const Seqs& seqs) {
    std::vector<LeftRow> rows;
    for (std::int64_t seq : seqs) {
        rows.push_back({group, seq});
    }
    return rows;
}

TEST(LeftRows, AsManyAreChosenAsAreMissingInHand) {
    Bench bench;
    bench.connect();
    bench.groups = {7, 7, 7, 8};
    bench.claim(4);
    LeftRows left;
    left.passed({}, 0, of(7, {10, 12, 14, 16}));
    left.passed({}, 0, of(8, {11, 13, 15, 17, 19}));
    const LeftRows::Chosen chosen = left.choose(bench.drain, {.rows = 4}, 100);
    EXPECT_EQ(chosen.seqs, (Seqs{11, 13, 15})) << "7 has more than half of four, 8 has one";
    EXPECT_EQ(chosen.rest, (std::map<std::uint64_t, std::int64_t>{{7, 10}, {8, 17}}));
}

TEST(LeftRows, NoMoreAreChosenThanThereIsRoomForTheLowestFirst) {
    Bench bench;
    LeftRows left;
    left.passed({}, 0, of(7, {10, 12, 14, 16}));
    left.passed({}, 0, of(8, {11, 13}));
    left.passed({}, 0, of(9, {20}));
    const LeftRows::Chosen chosen = left.choose(bench.drain, {.rows = 3}, 4);
    EXPECT_EQ(chosen.seqs, (Seqs{10, 11, 12, 13}));
    EXPECT_EQ(chosen.rest, (std::map<std::uint64_t, std::int64_t>{{7, 14}, {9, 20}}));
    EXPECT_TRUE(chosen.more);
    const LeftRows::Chosen all = left.choose(bench.drain, {.rows = 3}, 6);
    EXPECT_EQ(all.seqs, (Seqs{10, 11, 12, 13, 14, 20}));
    EXPECT_EQ(all.rest, (std::map<std::uint64_t, std::int64_t>{{7, 16}}));
    EXPECT_FALSE(all.more) << "7 may have no more";
    left.passed(chosen, 12, {});
    EXPECT_EQ(left.lowest(), 13) << "it was chosen and not shown";
}

TEST(LeftRows, AGroupWaitsUntilHalfOfItsBytesHaveGone) {
    Bench bench;
    bench.connect();
    bench.payload.assign(10, 'x');
    bench.groups = {7, 7};
    bench.claim(2);
    LeftRows left;
    left.passed({}, 0, of(7, {10, 12}));
    EXPECT_EQ(left.choose(bench.drain, {.rows = 64, .bytes = 39}, 100).seqs, (Seqs{}));
    EXPECT_EQ(left.choose(bench.drain, {.rows = 64, .bytes = 40}, 100).seqs, (Seqs{10, 12}));
}

TEST(LeftRows, ThoseOfBucketsThatAreGivenAwayAreForgotten) {
    LeftRows left;
    left.passed({}, 0, of(7, {10, 12}));
    left.passed({}, 0, of(8 + BUCKETS, {11}));
    left.keep(mask_of(8));
    EXPECT_EQ(left.lowest(), 11);
    EXPECT_EQ(left.size(), 1U);
    EXPECT_FALSE(left.contains(7, 12));
}

TEST(LeftRows, WhatWasShownIsLeftNoMoreUnlessItIsLeftAgain) {
    Bench bench;
    LeftRows left;
    left.passed({}, 0, of(7, {10, 12, 14, 16}));
    const LeftRows::Chosen chosen = left.choose(bench.drain, {.rows = 3}, 100);
    ASSERT_EQ(chosen.seqs, (Seqs{10, 12, 14}));
    left.passed(chosen, 12, of(7, {12, 20}));
    EXPECT_EQ(left.size(), 4U);
    EXPECT_FALSE(left.contains(7, 10)) << "it was shown";
    EXPECT_TRUE(left.contains(7, 12)) << "shown and left again";
    EXPECT_TRUE(left.contains(7, 14)) << "not read in this pass";
    EXPECT_TRUE(left.contains(7, 20));
    EXPECT_EQ(left.lowest(), 12);
}

TEST(LeftRows, ARowThatAppearsLateTakesItsPlace) {
    Bench bench;
    LeftRows left;
    left.passed({}, 0, of(7, {10, 14}));
    left.passed({}, 0, of(7, {12}));
    left.passed({}, 0, of(7, {12}));
    EXPECT_EQ(left.size(), 3U) << "each is known once";
    EXPECT_EQ(left.choose(bench.drain, {.rows = 3}, 100).seqs, (Seqs{10, 12, 14}));
}

TEST(LeftRows, TheLastOfAGroupTakesTheGroupWithIt) {
    Bench bench;
    LeftRows left;
    left.passed({}, 0, of(7, {10}));
    left.passed({}, 0, of(8, {11}));
    EXPECT_EQ(left.lowest(), 10);
    left.passed(left.choose(bench.drain, {.rows = 3}, 100), 10, {});
    EXPECT_EQ(left.groups(), (std::vector<std::uint64_t>{8}));
    left.passed(left.choose(bench.drain, {.rows = 3}, 100), 11, {});
    EXPECT_EQ(left.lowest(), std::nullopt);
    EXPECT_EQ(left.room(), LeftRows::MOST);
}

}  // namespace
}  // namespace outbox
