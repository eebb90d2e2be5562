#include "core/exchange_book.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace outbox::test {
namespace {

using namespace std::chrono_literals;
using State = ExchangeBook::State;

TEST(ExchangeBook, TheDefaultExchangeNeedsNoQuestion) {
    const ExchangeBook book;
    EXPECT_EQ(book.state(""), State::exists);
    EXPECT_EQ(book.state("events"), State::unknown);
}

TEST(ExchangeBook, AsksOnceAndOneAfterTheOther) {
    ExchangeBook book;
    book.want("a");
    book.want("a");
    book.want("b");
    EXPECT_EQ(book.next_question(Time{1000}), "a");
    book.want("a");
    EXPECT_EQ(book.next_question(Time{1000}), std::nullopt) << "the answer is under way";
    EXPECT_EQ(book.asked_since(), Time{1000});
    EXPECT_FALSE(book.answered(Time{1001}, "a", true));
    EXPECT_EQ(book.state("a"), State::exists);
    EXPECT_EQ(book.next_question(Time{1001}), "b");
    EXPECT_FALSE(book.answered(Time{1002}, "b", std::nullopt));
    EXPECT_EQ(book.state("b"), State::exists) << "it is to be tried";
    EXPECT_EQ(book.next_question(Time{1002}), std::nullopt);
    EXPECT_FALSE(book.is_asking());
}

TEST(ExchangeBook, LooksForAMissingOneEveryFewSeconds) {
    ExchangeBook book;
    book.want("a");
    (void)book.next_question(Time{0});
    EXPECT_FALSE(book.answered(Time{0}, "a", false));
    EXPECT_EQ(book.state("a"), State::missing);
    ASSERT_TRUE(book.next_look().has_value());
    const Time look = *book.next_look();
    EXPECT_GE(look, 3s);
    EXPECT_LE(look, 4s);
    EXPECT_EQ(book.next_question(look - 1ms), std::nullopt);
    EXPECT_EQ(book.next_question(look), "a");
    EXPECT_FALSE(book.answered(look, "a", false));
    EXPECT_EQ(book.next_question(look + 4s), "a");
    EXPECT_TRUE(book.answered(look + 4s, "a", true)) << "it has come";
    EXPECT_EQ(book.next_look(), std::nullopt);
}

TEST(ExchangeBook, OneOfTooManyToBeWatchedIsAskedForWhenWhatWaitsForItComesDue) {
    ExchangeBook book;
    Random random(1);
    constexpr int MORE_THAN_ARE_WATCHED = 1001;
    std::string last;
    for (int i = 0; i < MORE_THAN_ARE_WATCHED; i++) {
        last = "x" + std::to_string(i);
        book.want(last);
        ASSERT_EQ(book.next_question(Time{0}), last);
        EXPECT_FALSE(book.answered(Time{0}, last, false));
        (void)book.hold_for(Time{0}, last, random);
    }
    EXPECT_EQ(book.next_question(Time{0}), std::nullopt) << "each was just asked for";
    (void)book.hold_for(Time{60000}, last, random);
    EXPECT_EQ(book.next_question(Time{60000}), last);
    EXPECT_TRUE(book.answered(Time{60000}, last, true)) << "what is held for it can go";
    EXPECT_EQ(book.state(last), State::exists);
}

TEST(ExchangeBook, AnotherConnectionIsAskedAtOnceForWhatWasMissing) {
    ExchangeBook book;
    for (const char* name : {"there", "missing"}) {
        book.want(name);
        (void)book.next_question(Time{0});
        (void)book.answered(Time{0}, name, std::string_view(name) == "there");
    }
    book.want("in between");
    (void)book.next_question(Time{0});
    book.forget();
    EXPECT_EQ(book.state("there"), State::unknown);
    EXPECT_EQ(book.state("missing"), State::unknown);
    EXPECT_FALSE(book.asked_since().has_value());
    EXPECT_EQ(book.next_question(Time{1}), "missing");
    EXPECT_TRUE(book.answered(Time{2}, "missing", true));
}

TEST(ExchangeBook, HoldsLongerTheLongerTheTroubleLasts) {
    ExchangeBook book;
    Random random(1);
    book.vanished(Time{0}, "a");
    EXPECT_GE(book.hold_for(Time{0}, "a", random), 2500ms);
    EXPECT_LE(book.hold_for(Time{0}, "a", random), 5s);
    EXPECT_GE(book.hold_for(Time{60s}, "a", random), 30s);
    EXPECT_LE(book.hold_for(Time{60s}, "a", random), 60s);
    EXPECT_LE(book.hold_for(Time{24h}, "a", random), 300s);
    book.vanished(Time{24h}, "a");
    EXPECT_GE(book.hold_for(Time{24h}, "a", random), 150s) << "it is the same trouble";
}

TEST(ExchangeBook, LooksForAMissingOneAsLongAsSomethingWaits) {
    ExchangeBook book;
    Random random(1);
    book.vanished(Time{0}, "a");
    Time now{0};
    const auto look_for = [&](Duration span) {
        int looks = 0;
        for (const Time end = now + span; now < end; now += 1s) {
            if (const auto name = book.next_question(now)) {
                (void)book.answered(now, *name, false);
                looks++;
            }
        }
        return looks;
    };
    EXPECT_GE(look_for(9min), 100);
    (void)book.hold_for(now, "a", random);
    EXPECT_GE(look_for(9min), 100);
    look_for(2min);
    EXPECT_EQ(look_for(10min), 0);
    EXPECT_EQ(book.next_look(), std::nullopt);
    EXPECT_EQ(book.state("a"), State::unknown);
}

TEST(ExchangeBook, TrustComesBackAndARelapseMakesItDearer) {
    ExchangeBook book;
    const auto passes_until_trusted = [&book] {
        int passes = 0;
        for (; book.is_distrusted("a"); passes++) {
            book.trial_passed("a");
        }
        return passes;
    };
    book.distrust(Time{0}, "a");
    const int first = passes_until_trusted();
    EXPECT_GT(first, 1);
    book.distrust(Time{0}, "a");
    book.trial_passed("a");
    book.distrust(Time{0}, "a");
    EXPECT_EQ(passes_until_trusted(), 2 * first) << "counted anew after each refusal";
}

TEST(ExchangeBook, OneThatComesAndGoesIsNotTrusted) {
    ExchangeBook book;
    book.vanished(Time{0}, "a");
    (void)book.answered(Time{4s}, "a", true);
    EXPECT_FALSE(book.is_distrusted("a"));
    book.vanished(Time{5s}, "a");
    (void)book.answered(Time{9s}, "a", true);
    EXPECT_TRUE(book.is_distrusted("a"));
}

TEST(ExchangeBook, ManyNamesTakeBoundedMemoryAndAreAskedForSlowly) {
    ExchangeBook book;
    for (int i = 0; i < 100000; i++) {
        book.vanished(Time{0}, "e" + std::to_string(i));
    }
    int known = 0;
    for (int i = 0; i < 100000; i++) {
        known += book.state("e" + std::to_string(i)) == State::missing ? 1 : 0;
    }
    EXPECT_LE(known, 10000);
    int asked = 0;
    for (Time now{0}; now < 60s; now += 10ms) {
        while (const auto name = book.next_question(now)) {
            (void)book.answered(now, *name, false);
            asked++;
        }
    }
    EXPECT_GT(asked, 0);
    EXPECT_LE(asked, 5000);
}

}  // namespace
}  // namespace outbox::test
