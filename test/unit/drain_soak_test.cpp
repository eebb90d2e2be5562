// `make soak`: as many worlds of the simulation as one likes. The last line of the output is the
// same for the same seed and number of steps.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "drain_seed.hpp"
#include "drain_sim_kinds.hpp"
#include "drain_sim_world.hpp"

namespace outbox {
namespace {

struct Sum {
    std::uint64_t steps = 0;
    std::size_t worlds = 0;
    std::size_t failures = 0;
    std::size_t rows = 0;
    std::size_t lost = 0;
    std::size_t duplicates = 0;
    std::size_t faults = 0;
    std::size_t crashes = 0;
    std::size_t closes = 0;
    std::size_t events = 0;
};

std::string last_line;

// Zero without OUTBOX_SOAK_STEPS, when there is nothing to do.
std::uint64_t steps_wanted() {
    const char* text = std::getenv("OUTBOX_SOAK_STEPS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

void run_world(std::uint64_t seed, int steps, Sum& sum) {
    ::testing::TestPartResultArray failures;
    {
        const ::testing::ScopedFakeTestPartResultReporter reporter(
            ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
        test::SimWorld world(seed, test::any_world(seed));
        world.failures = &failures;
        world.run(steps);
        world.finish();
        sum.rows += world.database().rows.size();
        sum.lost += world.lost();
        sum.duplicates += world.ledger.duplicates();
        sum.faults += world.ledger.faults;
        sum.closes += world.ledger.closes;
        sum.events += world.ledger.events;
        sum.crashes += world.crashes;
    }
    sum.worlds++;
    sum.steps += static_cast<std::uint64_t>(steps);
    if (failures.size() > 0) {
        sum.failures++;
        ADD_FAILURE() << failures.GetTestPartResult(0).message() << "\n"
                      << "rerun this world alone: make soak SEED=" << seed << " STEPS=" << steps;
    }
}

TEST(DrainSoak, KeepsThePromisesForAsManyStepsAsAreWanted) {
    const std::uint64_t wanted = steps_wanted();
    if (wanted == 0) {
        GTEST_SKIP() << "for `make soak`";
    }
    const std::uint64_t base = test::base_seed();
    Sum sum;
    while (sum.steps < wanted && sum.failures < 10) {
        const std::uint64_t left = wanted - sum.steps;
        const int steps = left < test::STEPS ? static_cast<int>(left) : test::STEPS;
        run_world(base + sum.worlds, steps, sum);
    }
    last_line = "soak: seed " + std::to_string(base) + ", " + std::to_string(sum.steps) +
                " steps, " + std::to_string(sum.worlds) + " worlds, " + std::to_string(sum.rows) +
                " rows, " + std::to_string(sum.events) + " broker events, " +
                std::to_string(sum.faults) + " faults, " + std::to_string(sum.crashes) +
                " crashes, " + std::to_string(sum.closes) + " closes over a message, lost " +
                std::to_string(sum.lost) + ", duplicates " + std::to_string(sum.duplicates) +
                ", failures " + std::to_string(sum.failures);
}

}  // namespace
}  // namespace outbox

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    const int result = RUN_ALL_TESTS();
    if (!outbox::last_line.empty()) {
        std::cout << outbox::last_line << "\n";
    }
    return result;
}
