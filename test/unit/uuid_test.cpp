#include "core/uuid.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace outbox {
namespace {

using RandomBytes = std::array<std::uint8_t, 10>;

constexpr RandomBytes ZEROS{};
constexpr RandomBytes ONES{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

std::uint64_t timestamp_of(const Uuid& id) {
    std::uint64_t ms = 0;
    for (std::size_t i = 0; i < 6; ++i) {
        ms = ms << 8 | id[i];
    }
    return ms;
}

unsigned counter_of(const Uuid& id) {
    return (id[6] & 0x0fU) << 8 | id[7];
}

TEST(UuidV7, LaysOutTheFieldsAsTheRfcDoes) {
    // RFC 9562, appendix A.6: unix_ts_ms 017F22E279B0, rand_b 18C4DC0C0C07398F. Its rand_a CC3 has
    // the upper bit set, which is clear in the first id of a millisecond here.
    UuidV7Generator generator;
    const RandomBytes random{0x0c, 0xc3, 0x18, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f};
    EXPECT_EQ(to_string(generator.next(0x017f22e279b0, random)),
              "017f22e2-79b0-74c3-98c4-dc0c0c07398f");
}

TEST(UuidV7, SetsVersionAndVariantWhateverTheRandomBytes) {
    for (const RandomBytes& random : {ZEROS, ONES}) {
        UuidV7Generator generator;
        const Uuid id = generator.next(1700000000000, random);
        EXPECT_EQ(id[6] & 0xf0, 0x70);
        EXPECT_EQ(id[8] & 0xc0, 0x80);
        EXPECT_EQ(timestamp_of(id), 1700000000000U);
    }
}

TEST(UuidV7, StartsTheCounterInItsLowerHalf) {
    UuidV7Generator generator;
    EXPECT_EQ(counter_of(generator.next(1, ONES)), 0x7ffU);
    EXPECT_EQ(counter_of(generator.next(2, ZEROS)), 0U);
}

TEST(UuidV7, CountsWithinAMillisecond) {
    UuidV7Generator generator;
    const Uuid first = generator.next(5, ONES);
    const Uuid second = generator.next(5, ZEROS);  // smaller random bytes, larger id
    EXPECT_LT(first, second);
    EXPECT_EQ(timestamp_of(second), 5U);
    EXPECT_EQ(counter_of(second), counter_of(first) + 1);
}

TEST(UuidV7, KeepsTheOrderWhenTheClockGoesBack) {
    UuidV7Generator generator;
    const Uuid first = generator.next(1000, ZEROS);
    const Uuid second = generator.next(400, ZEROS);
    const Uuid third = generator.next(1001, ZEROS);
    EXPECT_LT(first, second);
    EXPECT_LT(second, third);
    EXPECT_EQ(timestamp_of(second), 1000U);
    EXPECT_EQ(timestamp_of(third), 1001U);
}

TEST(UuidV7, MovesTheMillisecondOnWhenTheCounterIsUsedUp) {
    UuidV7Generator generator;
    Uuid previous = generator.next(77, ZEROS);
    for (int i = 1; i < 4096; ++i) {
        const Uuid id = generator.next(77, ZEROS);
        ASSERT_LT(previous, id);
        ASSERT_EQ(timestamp_of(id), 77U);
        previous = id;
    }
    const Uuid overflow = generator.next(77, ONES);
    EXPECT_EQ(timestamp_of(overflow), 78U);
    EXPECT_EQ(counter_of(overflow), 0x7ffU);
    // The real clock reaches the borrowed millisecond: the order still holds.
    EXPECT_LT(overflow, generator.next(78, ZEROS));
}

TEST(UuidV7, IsStrictlyIncreasingUnderAnErraticClock) {
    UuidV7Generator generator;
    Uuid previous{};
    for (std::uint64_t i = 0; i < 100000; ++i) {
        const std::uint64_t ms = 1000000 + i / 5000 - i * 7919 % 13;
        const auto byte = static_cast<std::uint8_t>(i * 31);
        const Uuid id = generator.next(ms, {byte, byte, byte, byte});
        ASSERT_LT(previous, id) << "at step " << i;
        previous = id;
    }
}

TEST(UuidV7, ClampsAClockBeyond48Bits) {
    UuidV7Generator generator;
    EXPECT_EQ(timestamp_of(generator.next(~std::uint64_t{0}, ZEROS)), 0xffffffffffffU);
}

TEST(UuidText, ParsesWhatItPrints) {
    const std::string text = "01890a5d-ac96-774b-bcce-b302099a8057";
    const std::optional<Uuid> id = parse_uuid(text);
    ASSERT_TRUE(id);
    EXPECT_EQ((*id)[0], 0x01);
    EXPECT_EQ((*id)[15], 0x57);
    EXPECT_EQ(to_string(*id), text);
    EXPECT_EQ(parse_uuid("01890A5D-AC96-774B-BCCE-B302099A8057"), id);
}

TEST(UuidText, RefusesEverythingElse) {
    for (const char* text :
         {"", "01890a5d", "01890a5dac96774bbcceb302099a8057", "01890a5d-ac96-774b-bcce-b302099a805",
          "01890a5d-ac96-774b-bcce-b302099a80570", "01890a5d-ac96-774b-bcce-b302099a805g",
          "01890a5d-ac96-774b-bcce+b302099a8057", "01890a5-dac96-774b-bcce-b302099a8057",
          "{1890a5d-ac96-774b-bcce-b302099a805}", " 1890a5d-ac96-774b-bcce-b302099a8057"}) {
        EXPECT_FALSE(parse_uuid(text)) << text;
    }
}

TEST(TypeId, MatchesTheVectorsOfTheSpecification) {
    struct Vector {
        const char* uuid;
        const char* suffix;
    };
    for (const Vector& vector : {
             Vector{"00000000-0000-0000-0000-000000000000", "00000000000000000000000000"},
             Vector{"00000000-0000-0000-0000-000000000001", "00000000000000000000000001"},
             Vector{"00000000-0000-0000-0000-00000000000a", "0000000000000000000000000a"},
             Vector{"00000000-0000-0000-0000-000000000010", "0000000000000000000000000g"},
             Vector{"00000000-0000-0000-0000-000000000020", "00000000000000000000000010"},
             Vector{"ffffffff-ffff-ffff-ffff-ffffffffffff", "7zzzzzzzzzzzzzzzzzzzzzzzzz"},
             Vector{"0110c853-1d09-52d8-d73e-1194e95b5f19", "0123456789abcdefghjkmnpqrs"},
             Vector{"01890a5d-ac96-774b-bcce-b302099a8057", "01h455vb4pex5vsknk084sn02q"},
         }) {
        const std::optional<Uuid> id = parse_uuid(vector.uuid);
        ASSERT_TRUE(id) << vector.uuid;
        EXPECT_EQ(typeid_text("prefix", *id), std::string("prefix_") + vector.suffix);
    }
}

TEST(TypeId, SortsLikeTheId) {
    UuidV7Generator generator;
    std::string previous;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        const std::string text = typeid_text("msg", generator.next(1700000000000 + i / 10, ONES));
        ASSERT_LT(previous, text);
        previous = text;
    }
}

TEST(TypeId, PrefixIsOneTo63LowerCaseLetters) {
    EXPECT_TRUE(is_typeid_prefix("a"));
    EXPECT_TRUE(is_typeid_prefix("message"));
    EXPECT_TRUE(is_typeid_prefix(std::string(63, 'z')));
    for (const std::string& prefix :
         {std::string(), std::string(64, 'a'), std::string("Msg"), std::string("my_type"),
          std::string("_"), std::string("a1"), std::string("caf\xc3\xa9"), std::string("a b")}) {
        EXPECT_FALSE(is_typeid_prefix(prefix)) << prefix;
    }
}

}  // namespace
}  // namespace outbox
