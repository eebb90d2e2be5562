#include "core/tag_tracker.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "drain_seed.hpp"

namespace outbox {
namespace {

using Rows = std::vector<std::size_t>;

// Opens tags 1 to n for rows 101 to 100 + n.
TagTracker opened(std::uint64_t n) {
    TagTracker tracker;
    for (std::uint64_t tag = 1; tag <= n; tag++) {
        EXPECT_TRUE(tracker.open(tag, 100 + tag));
    }
    return tracker;
}

Rows settle(TagTracker& tracker, std::uint64_t tag, bool multiple) {
    Rows rows;
    EXPECT_TRUE(tracker.settle(tag, multiple, rows));
    return rows;
}

void expect_refused(TagTracker& tracker, std::uint64_t tag, bool multiple) {
    const std::size_t before = tracker.open_count();
    Rows rows{7};
    EXPECT_FALSE(tracker.settle(tag, multiple, rows)) << "tag " << tag;
    EXPECT_EQ(rows, Rows{7});
    EXPECT_EQ(tracker.open_count(), before);
}

TEST(TagTracker, SettlesOneTag) {
    TagTracker tracker = opened(3);
    EXPECT_EQ(settle(tracker, 2, false), Rows{102});
    EXPECT_EQ(tracker.open_count(), 2U);
    EXPECT_EQ(tracker.oldest(), 101U);
}

TEST(TagTracker, MultipleSettlesOnlyWhatIsStillOpen) {
    TagTracker tracker = opened(8);
    EXPECT_EQ(settle(tracker, 6, false), Rows{106});
    EXPECT_EQ(settle(tracker, 8, false), Rows{108});
    EXPECT_EQ(settle(tracker, 4, true), (Rows{101, 102, 103, 104}));
    EXPECT_EQ(settle(tracker, 7, true), (Rows{105, 107}));
    EXPECT_EQ(tracker.open_count(), 0U);
}

TEST(TagTracker, MultipleMayNameASettledTag) {
    TagTracker tracker = opened(4);
    EXPECT_EQ(settle(tracker, 3, false), Rows{103});
    EXPECT_EQ(settle(tracker, 3, true), (Rows{101, 102}));
    EXPECT_EQ(tracker.oldest(), 104U);
}

TEST(TagTracker, MultipleOfZeroSettlesAll) {
    TagTracker tracker = opened(4);
    EXPECT_EQ(settle(tracker, 2, false), Rows{102});
    EXPECT_EQ(settle(tracker, 0, true), (Rows{101, 103, 104}));
    EXPECT_TRUE(tracker.open(5, 105));
    EXPECT_EQ(settle(tracker, 0, true), Rows{105});
}

TEST(TagTracker, RefusesWhatWasNeverSent) {
    TagTracker tracker = opened(3);
    expect_refused(tracker, 4, false);
    expect_refused(tracker, 4, true);
    expect_refused(tracker, 0, false);
    expect_refused(tracker, UINT64_MAX, true);
    EXPECT_EQ(settle(tracker, 3, true), (Rows{101, 102, 103}));
}

TEST(TagTracker, RefusesASecondConfirm) {
    TagTracker tracker = opened(3);
    EXPECT_EQ(settle(tracker, 2, false), Rows{102});
    expect_refused(tracker, 2, false);
    EXPECT_EQ(settle(tracker, 1, false), Rows{101});
    expect_refused(tracker, 1, false);
    expect_refused(tracker, 2, false);
}

TEST(TagTracker, RefusesAConfirmBeforeTheFirstMessage) {
    TagTracker tracker;
    expect_refused(tracker, 1, false);
    expect_refused(tracker, 1, true);
}

TEST(TagTracker, TagsComeWithoutAHole) {
    TagTracker tracker;
    EXPECT_FALSE(tracker.open(0, 100));
    EXPECT_FALSE(tracker.open(2, 102));
    EXPECT_TRUE(tracker.open(1, 101));
    EXPECT_FALSE(tracker.open(1, 101));
    EXPECT_FALSE(tracker.open(3, 103));
    EXPECT_EQ(settle(tracker, 1, false), Rows{101});
    EXPECT_FALSE(tracker.open(1, 101));
    EXPECT_TRUE(tracker.open(2, 102));
    EXPECT_EQ(tracker.open_count(), 1U);
}

TEST(TagTracker, ResetReturnsTheOpenRowsAndStartsAgainAtOne) {
    TagTracker tracker = opened(5);
    EXPECT_EQ(settle(tracker, 2, true), (Rows{101, 102}));
    EXPECT_EQ(settle(tracker, 4, false), Rows{104});
    EXPECT_EQ(tracker.reset(), (Rows{103, 105}));
    EXPECT_EQ(tracker.open_count(), 0U);
    expect_refused(tracker, 3, false);
    EXPECT_EQ(tracker.reset(), Rows{});
    EXPECT_TRUE(tracker.open(1, 201));
    EXPECT_EQ(tracker.oldest(), 201U);
}

// The plainest thing that does the same: every open tag in a map.
class Model {
  public:
    bool open(std::uint64_t tag, std::size_t row) {
        if (tag != next_) {
            return false;
        }
        open_[next_++] = row;
        return true;
    }

    bool settle(std::uint64_t tag, bool multiple, Rows& rows) {
        if (!multiple) {
            const auto found = open_.find(tag);
            if (found == open_.end()) {
                return false;
            }
            rows.push_back(found->second);
            open_.erase(found);
            return true;
        }
        if (tag >= next_) {
            return false;
        }
        const std::uint64_t last = tag == 0 ? next_ : tag;
        while (!open_.empty() && open_.begin()->first <= last) {
            rows.push_back(open_.begin()->second);
            open_.erase(open_.begin());
        }
        return true;
    }

    Rows reset() {
        Rows rows;
        for (const auto& [tag, row] : open_) {
            rows.push_back(row);
        }
        open_.clear();
        next_ = 1;
        return rows;
    }

    std::uint64_t next() const { return next_; }
    const std::map<std::uint64_t, std::size_t>& open_tags() const { return open_; }

  private:
    std::uint64_t next_ = 1;
    std::map<std::uint64_t, std::size_t> open_;
};

// Some tag that a broker might name: mostly an open one, also settled, unknown and far ones.
std::uint64_t some_tag(test::Dice& dice, const Model& model) {
    if (!model.open_tags().empty() && dice.chance(0.7)) {
        auto tag = model.open_tags().begin();
        std::advance(tag, dice.below(model.open_tags().size()));
        return tag->first;
    }
    return dice.chance(0.02) ? UINT64_MAX - dice.below(3) : dice.below(model.next() + 3);
}

void compare_over(std::uint64_t seed) {
    test::Dice dice(seed);
    const std::size_t window = 1 + dice.below(60);
    TagTracker tracker;
    Model model;
    for (int step = 0; step < 2000; step++) {
        if (dice.chance(0.5) && model.open_tags().size() < window) {
            const std::uint64_t tag = dice.chance(0.95) ? model.next() : dice.below(99);
            const std::size_t row = dice.below(1000);
            ASSERT_EQ(tracker.open(tag, row), model.open(tag, row)) << test::rerun_hint(seed);
        } else if (dice.chance(0.003)) {
            ASSERT_EQ(tracker.reset(), model.reset()) << test::rerun_hint(seed);
        } else {
            const std::uint64_t tag = some_tag(dice, model);
            // With nothing sent yet there is no "all" that a 0 could mean.
            const bool multiple = dice.chance(0.3) && (tag != 0 || model.next() > 1);
            Rows rows;
            Rows expected;
            ASSERT_EQ(tracker.settle(tag, multiple, rows), model.settle(tag, multiple, expected))
                << "tag " << tag << " multiple " << multiple << ", " << test::rerun_hint(seed);
            ASSERT_EQ(rows, expected) << test::rerun_hint(seed);
        }
        ASSERT_EQ(tracker.open_count(), model.open_tags().size()) << test::rerun_hint(seed);
        if (!model.open_tags().empty()) {
            ASSERT_EQ(tracker.oldest(), model.open_tags().begin()->second)
                << test::rerun_hint(seed);
        }
    }
}

TEST(TagTracker, BehavesLikeANaiveModel) {
    const std::uint64_t seed = test::base_seed();
    for (int i = 0; i < test::scaled(300); i++) {
        compare_over(seed + static_cast<std::uint64_t>(i));
        if (HasFatalFailure()) {
            return;
        }
    }
}

}  // namespace
}  // namespace outbox
