#include "core/claim_token.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace outbox {
namespace {

const Incarnation SELF{.system_identifier = 7412345678901234567U,
                       .timeline = 3,
                       .server_start = 785000000123456,
                       .slot = 5,
                       .generation = 12};

template <class Change>
Incarnation changed(Change change) {
    Incarnation other = SELF;
    change(other);
    return other;
}

TEST(ClaimToken, HasItsForm) {
    const Incarnation incarnation{.system_identifier = 0xabc,
                                  .timeline = 1,
                                  .server_start = 0x10,
                                  .slot = 0,
                                  .generation = 2};
    EXPECT_EQ(make_token(incarnation, 255), "obd1:abc:1:10:0:2:ff");
}

TEST(ClaimToken, ParsesWhatItMakes) {
    for (const std::uint64_t counter :
         {std::uint64_t{0}, std::uint64_t{1}, std::numeric_limits<std::uint64_t>::max()}) {
        const std::optional<TokenParts> parts = parse_token(make_token(SELF, counter));
        ASSERT_TRUE(parts);
        EXPECT_EQ(*parts, (TokenParts{SELF, counter}));
    }
}

TEST(ClaimToken, LargestFitsItsLimitAndIsPlainAscii) {
    const std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
    const Incarnation incarnation{.system_identifier = max,
                                  .timeline = std::numeric_limits<std::uint32_t>::max(),
                                  .server_start = max,
                                  .slot = std::numeric_limits<int>::max(),
                                  .generation = max};
    const std::string token = make_token(incarnation, max);
    EXPECT_LE(token.size(), MAX_TOKEN_LENGTH);
    EXPECT_EQ(token.find_first_not_of("obd1:0123456789abcdef"), std::string::npos);
    EXPECT_EQ(parse_token(token), (TokenParts{incarnation, max}));
}

TEST(ClaimToken, EveryClaimHasItsOwn) {
    EXPECT_NE(make_token(SELF, 1), make_token(SELF, 2));
    EXPECT_NE(make_token(SELF, 1), make_token(changed([](Incarnation& i) { ++i.generation; }), 1));
}

TEST(ClaimToken, SaysUnderWhatSuspicionItWasMade) {
    EXPECT_EQ(parse_token(make_token(SELF, 7))->suspicion, 0U);
    EXPECT_EQ(parse_token(make_token(SELF, 7, 1))->suspicion, 1U);
    EXPECT_EQ(parse_token(make_token(SELF, 7, 500))->suspicion, 500U);
    EXPECT_EQ(parse_token(make_token(SELF, 7, 1000000))->suspicion, MAX_SUSPICION);
    EXPECT_EQ(parse_token(make_token(SELF, 7, 500))->counter, 7U);
}

TEST(ClaimToken, RefusesEveryOtherForm) {
    for (const char* token :
         {"",
          "obd1",
          "obd1:",
          "worker-17",
          "obd2:abc:1:10:0:2:ff",
          "OBD1:abc:1:10:0:2:ff",
          "obd1:abc:1:10:0:2",
          "obd1:abc:1:10:0:2:ff:0",  // says nothing, and so is not written
          "obd1:abc:1:10:0:2:ff:10000",
          "obd1:abc:1:10:0:2:ff:1:1",
          "obd1:abc:1:10:0:2:ff:",
          "obd1:abc:1:10:0:2:",
          "obd1::1:10:0:2:ff",
          "obd1:ABC:1:10:0:2:ff",
          "obd1:0abc:1:10:0:2:ff",
          "obd1:-1:1:10:0:2:ff",
          "obd1:0x1:1:10:0:2:ff",
          "obd1:abc:1:10:0:2:fg",
          " obd1:abc:1:10:0:2:ff",
          "obd1:abc:1:10:0:2:ff ",
          "obd1:10000000000000000:1:10:0:2:ff",  // 65 bits
          "obd1:abc:100000000:10:0:2:ff",        // timeline of 33 bits
          "obd1:abc:1:10:80000000:2:ff",         // slot beyond int
          "obd1:abc:1:10:0:2:"
          "0000000000000000000000000000000000000000000000000000000000000000000000000000ff"}) {
        EXPECT_FALSE(parse_token(token)) << token;
        EXPECT_EQ(classify_token(token, SELF), TokenOwner::foreign) << token;
    }
}

TEST(ClaimToken, ItsOwnIsMineWhateverTheCounter) {
    EXPECT_EQ(classify_token(make_token(SELF, 0), SELF), TokenOwner::mine);
    EXPECT_EQ(classify_token(make_token(SELF, 1000000), SELF), TokenOwner::mine);
}

TEST(ClaimToken, AnotherServerIsDead) {
    for (const Incarnation& other :
         {changed([](Incarnation& i) { ++i.system_identifier; }),
          changed([](Incarnation& i) { ++i.timeline; }),
          changed([](Incarnation& i) { --i.server_start; }), changed([](Incarnation& i) {
              ++i.server_start;
              ++i.slot;
          })}) {
        EXPECT_EQ(classify_token(make_token(other, 1), SELF), TokenOwner::dead);
    }
}

TEST(ClaimToken, AnotherGenerationOfTheSlotIsDead) {
    EXPECT_EQ(classify_token(make_token(changed([](Incarnation& i) { --i.generation; }), 1), SELF),
              TokenOwner::dead);
    EXPECT_EQ(classify_token(make_token(changed([](Incarnation& i) { ++i.generation; }), 1), SELF),
              TokenOwner::dead);
}

TEST(ClaimToken, AnotherSlotOfThisServerIsForSharedMemoryToJudge) {
    EXPECT_EQ(classify_token(make_token(changed([](Incarnation& i) { ++i.slot; }), 1), SELF),
              TokenOwner::live_other_slot);
    EXPECT_EQ(classify_token(make_token(changed([](Incarnation& i) {
                                            i.slot = 0;
                                            i.generation = 99;
                                        }),
                                        1),
                             SELF),
              TokenOwner::live_other_slot);
}

}  // namespace
}  // namespace outbox
