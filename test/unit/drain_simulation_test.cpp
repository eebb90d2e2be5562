#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <memory>

#include "core/drain.hpp"
#include "drain_seed.hpp"
#include "drain_sim_database.hpp"
#include "drain_sim_process.hpp"

namespace outbox {
namespace {

using test::Dice;
using test::SimDatabase;
using test::SimLedger;
using test::SimProcess;

/// A world of two drainer slots, a table and a broker, in which all happens by chance: whatever the
/// order of events is, the promises hold after each step and everything ends published or failed.
class World {
  public:
    explicit World(std::uint64_t seed) : dice_(seed) {
        settings_.broker_uri = "amqp://one";
        settings_.batch_size = static_cast<std::int32_t>(dice_.between(1, 12));
        settings_.pipeline_depth = static_cast<std::int32_t>(dice_.between(1, 10));
        settings_.lease_ttl = Duration{dice_.between(2000, 8000)};
        settings_.poll_interval = Duration{dice_.between(50, 500)};
        settings_.confirm_timeout = Duration{dice_.between(500, 3000)};
        settings_.connect_timeout = Duration{1000};
        settings_.shutdown_timeout = Duration{1000};
        settings_.retry = {Duration{100}, 2, Duration{2000}};
        calm_ = dice_.chance(0.1);
        start(0);
    }

    void run(int steps) {
        for (int i = 0; i < steps && !::testing::Test::HasFailure(); i++) {
            step();
        }
    }

    // The storm is over: all is drained, nobody is killed, time goes by only as they ask for it.
    void finish() {
        while (!database_.open.empty()) {
            database_.end_writer(0, dice_.chance(0.5));
        }
        database_.down = false;
        for (int i = 0; (i == 0 || !all_ended()) && i < 20000 && !::testing::Test::HasFailure();
             i++) {
            start(0);
            for (auto& process : processes_) {
                if (process != nullptr) {
                    calm(*process);
                    serve(*process);
                }
            }
            advance();
        }
        for (const SimDatabase::Row& row : database_.rows) {
            EXPECT_TRUE(ended(row)) << "row " << row.seq << " is left, claimed by '" << row.token
                                    << "', deferred " << row.deferred;
            EXPECT_TRUE(!row.published || ledger.copies[row.seq] > 0) << "row " << row.seq;
        }
        stop_all();
        EXPECT_EQ(database_.claimed_by("slot"), 0U);
        EXPECT_LE(ledger.duplicates(), ledger.may_be_sent_again);
    }

    SimLedger ledger;
    std::size_t crashes = 0;
    std::size_t row_count() const { return database_.rows.size(); }

  private:
    void start(std::size_t slot) {
        if (processes_[slot] != nullptr && !processes_[slot]->exited) {
            return;
        }
        processes_[slot] = std::make_unique<SimProcess>(database_, ledger, dice_, settings_,
                                                        static_cast<int>(slot), ++generation_);
        if (!calm_) {
            processes_[slot]->transaction_failure = dice_.chance(0.3) ? 0.3 : 0.01;
            processes_[slot]->publish_failure = 0.002;
        }
    }

    void step() {
        if (dice_.chance(0.15) && database_.rows.size() < 400) {
            database_.produce(dice_);
            wake();
        }
        for (auto& process : processes_) {
            if (process != nullptr && now_ >= process->stalled_until) {
                if (dice_.chance(0.4)) {
                    speak(*process);
                }
                process->run(now_, static_cast<int>(dice_.between(1, 30)));
            }
        }
        if (!calm_ && dice_.chance(0.03)) {
            disturb(dice_.below(processes_.size()));
        }
        if (processes_[0] == nullptr || processes_[0]->exited) {
            start(0);
        }
        if (dice_.chance(0.3)) {
            advance();
        } else {
            now_ += Duration{dice_.between(0, 5)};
        }
    }

    void wake() {
        for (auto& process : processes_) {
            if (process != nullptr) {
                process->drain.woken();
            }
        }
    }

    // The broker does something on this connection.
    void speak(SimProcess& process) {
        if (process.exited) {
            return;
        }
        if (process.connecting) {
            process.finish_connecting(now_, calm_ || dice_.chance(0.8));
        } else if (process.up && !process.silent && !process.unconfirmed.empty()) {
            process.answer(now_, true);
        }
    }

    void disturb(std::size_t slot) {
        start(slot);
        SimProcess& process = *processes_[slot];
        switch (dice_.below(10)) {
            case 0:
                crashes++;
                process.die();
                break;
            case 1:
                if (process.up) {
                    process.lose_connection(now_);
                }
                break;
            case 2:
                if (process.up) {
                    process.is_blocked = !process.is_blocked;
                    process.is_blocked ? process.drain.blocked() : process.drain.unblocked();
                }
                break;
            case 3:
                process.silent = !process.silent;
                break;
            case 4:
                database_.down = !database_.down;
                break;
            case 5:
                // Too long for its leases: others may take them over.
                process.stalled_until = now_ + Duration{dice_.between(100, 12000)};
                break;
            case 6:
                if (dice_.chance(0.3)) {
                    process.drain.stop(now_);
                }
                break;
            case 7:
                reconfigure(process);
                break;
            case 8:
                process.drain.set_misconfigured(dice_.chance(0.2));
                break;
            default:
                now_ += Duration{dice_.between(0, 3000)};
                break;
        }
    }

    void reconfigure(SimProcess& process) {
        DrainSettings settings = process.settings;
        settings.enabled = !dice_.chance(0.2);
        settings.poll_interval = Duration{dice_.between(50, 500)};
        if (dice_.chance(0.3)) {
            settings.broker_uri = dice_.chance(0.5) ? "amqp://one" : "amqp://two";
        }
        process.drain.configure(now_, settings);
        process.settings = settings;
    }

    void calm(SimProcess& process) {
        process.stalled_until = now_;
        process.transaction_failure = 0;
        process.publish_failure = 0;
        process.silent = false;
        process.drain.set_misconfigured(false);
        DrainSettings settings = process.settings;
        settings.enabled = true;
        process.drain.configure(now_, settings);
        process.settings = settings;
        if (process.is_blocked) {
            process.is_blocked = false;
            process.drain.unblocked();
        }
    }

    void serve(SimProcess& process) {
        if (process.exited) {
            return;
        }
        if (process.connecting) {
            process.finish_connecting(now_, true);
        }
        process.run(now_, 1000);
        while (process.up && !process.unconfirmed.empty() && dice_.chance(0.9)) {
            process.answer(now_, false);
        }
    }

    // On to the moment that somebody waits for.
    void advance() {
        Time next = now_ + Duration{1000};
        for (const auto& process : processes_) {
            if (process != nullptr && !process->exited) {
                next = std::min(next, std::max(process->wait_until, process->stalled_until));
            }
        }
        now_ = std::max(now_, next);
    }

    bool ended(const SimDatabase::Row& row) const {
        return !row.committed || row.published || (row.bad && row.attempts > 0);
    }
    bool all_ended() const {
        return std::all_of(database_.rows.begin(), database_.rows.end(),
                           [this](const SimDatabase::Row& row) { return ended(row); }) &&
               std::all_of(processes_.begin(), processes_.end(), [this](const auto& process) {
                   return process == nullptr || !process->exited ||
                          database_.claimed_by(process->owner) == 0;
               });
    }

    void stop_all() {
        const auto each_running = [this](auto&& what) {
            for (auto& process : processes_) {
                if (process != nullptr && !process->exited) {
                    what(*process);
                }
            }
        };
        each_running([this](SimProcess& process) { process.drain.stop(now_); });
        const Time latest = now_ + Duration{2100};
        while (now_ <= latest && !::testing::Test::HasFailure()) {
            each_running([this](SimProcess& process) { serve(process); });
            advance();
        }
        each_running([](SimProcess&) { ADD_FAILURE() << "does not stop"; });
    }

    Dice dice_;
    Time now_{1000000};
    DrainSettings settings_;
    bool calm_ = false;
    SimDatabase database_;
    std::array<std::unique_ptr<SimProcess>, 2> processes_;
    int generation_ = 0;
};

TEST(DrainSimulation, KeepsThePromisesWhateverHappens) {
    const std::uint64_t base = test::base_seed();
    std::size_t rows = 0;
    SimLedger sum;
    std::size_t duplicates = 0;
    std::size_t crashes = 0;
    for (int i = 0; i < test::scaled(300); i++) {
        const std::uint64_t seed = base + static_cast<std::uint64_t>(i);
        SCOPED_TRACE(test::rerun_hint(seed));
        World world(seed);
        world.run(2500);
        world.finish();
        ASSERT_FALSE(HasFailure());
        rows += world.row_count();
        crashes += world.crashes;
        duplicates += world.ledger.duplicates();
        sum.faults += world.ledger.faults;
        sum.stale_marks += world.ledger.stale_marks;
        sum.reaped += world.ledger.reaped;
        sum.may_be_sent_again += world.ledger.may_be_sent_again;
    }
    std::cout << rows << " rows, " << sum.faults << " faults, " << crashes << " crashes, "
              << sum.stale_marks << " stale marks, " << sum.reaped << " leases taken over, "
              << duplicates << " duplicates of at most " << sum.may_be_sent_again << "\n";
    EXPECT_GT(sum.stale_marks, 0U) << "the worlds are too calm to mean anything";
    EXPECT_GT(duplicates, 0U);
}

}  // namespace
}  // namespace outbox
