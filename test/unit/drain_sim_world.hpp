#pragma once

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/drain.hpp"
#include "drain_seed.hpp"
#include "drain_sim_broker.hpp"
#include "drain_sim_database.hpp"
#include "drain_sim_process.hpp"

namespace outbox::test {

/// What may happen in a world.
struct SimWorldOptions {
    bool faults = true;         ///< of the database, the broker and the network
    bool failed_marks = true;   ///< transactions may fail, the database may be away
    bool crashes = true;        ///< of drainers and of the server
    bool killers = false;       ///< rows that kill whoever publishes them
    bool locks = false;         ///< operators lock rows and take their time
    bool hands = false;         ///< operators delete rows and take claims away
    bool requeues = false;      ///< operators revive rows that have ended
    bool discards = false;      ///< and end others, rather such as are waited for
    bool pauses = false;        ///< operators pause the relay
    bool reorders = false;      ///< operators change its ordering
    bool crowds = true;         ///< few rows of a group may be in hand
    bool small_batches = true;  ///< batch_bytes is a few rows
    bool late_commits = true;   ///< rows appear in another order than their numbers'
    bool poison = false;        ///< rows that the broker cannot take
    bool exchanges = false;     ///< come and go, and refuse
    bool limits = false;        ///< of the broker for the size of a message
    bool fail_missing = false;  ///< missing_exchange = fail
    std::size_t brokers = 1;
    bool scheduled = false;  ///< rows that are not to go before their time
    std::size_t drainers = 2;
    Ordering ordering = Ordering::per_key;
    bool single = false;             ///< drainers claim one row at a time
    std::optional<int> failing_key;  ///< the broker refuses all its messages
    Deviation deviation = Deviation::none;
};

/// A world of some drainer slots, a table, its operators and a broker, in which all happens by
/// chance: whatever the order of events is, the promises hold after each step and everything comes
/// to its end.
class SimWorld {
  public:
    SimWorld(std::uint64_t seed, const SimWorldOptions& options)
        : dice_(seed), options_(options), brokers_(options.brokers), processes_(options.drainers) {
        settings_.broker_uri = "amqp://one" + list_of_brokers();
        settings_.missing_exchange =
            options.fail_missing ? MissingExchange::fail : MissingExchange::hold;
        settings_.batch_size = static_cast<std::int32_t>(dice_.between(1, 12));
        settings_.batch_size = options.single ? 1 : settings_.batch_size;
        settings_.pipeline_depth = static_cast<std::int32_t>(dice_.between(1, 10));
        settings_.lease_ttl = Duration{dice_.between(2000, 8000)};
        settings_.poll_interval = Duration{dice_.between(50, 500)};
        settings_.confirm_timeout = Duration{dice_.between(500, 3000)};
        settings_.connect_timeout = Duration{1000};
        settings_.shutdown_timeout = Duration{1000};
        settings_.retry = {Duration{100}, 2, Duration{2000}};
        settings_.max_attempts = static_cast<std::int32_t>(
            dice_.chance(0.3) && !options.killers && !options.poison ? 0 : dice_.between(1, 4));
        settings_.publish_rate =
            static_cast<std::int32_t>(dice_.chance(0.3) ? dice_.between(20, 200) : 0);
        settings_.mandatory = dice_.chance(0.3);
        settings_.ordering = options.ordering;
        database_.ordering = options.ordering;
        database_.followers_at_once = dice_.chance(0.5) ? 64 : dice_.between(1, 5);
        rows_.keys = static_cast<std::size_t>(dice_.between(1, 8));
        rows_.sources = static_cast<std::size_t>(dice_.between(1, 3));
        rows_.writers = options.late_commits ? 5 : 1;
        rows_.killer = options.killers ? 0.01 : 0;
        rows_.scheduled = options.scheduled ? 0.05 : 0;
        rows_per_group_ = static_cast<std::size_t>(
            dice_.chance(0.5) || !options.crowds ? 64 : dice_.between(1, 5));
        // From dice of its own: the worlds of known seeds stay what they are.
        Dice dice(seed ^ 0x1ef7U);
        rows_to_leave_ =
            dice.chance(0.5) ? LeftRows::MOST : static_cast<std::size_t>(dice.between(0, 20));
        if (options.small_batches && dice.chance(0.3)) {
            settings_.batch_bytes = dice.between(1, 400);
        }
        floor_interval_ = Duration{dice_.between(0, 3000)};
        rows_.poison = options.poison ? 0.03 : 0;
        rows_.exchanges = options.exchanges ? static_cast<std::size_t>(dice_.between(1, 4)) : 1;
        held_at_once_ = static_cast<std::size_t>(dice_.chance(0.5) ? 100 : dice_.between(1, 5));
        if (options.failing_key.has_value()) {
            settings_.max_attempts = 0;
            rows_.sources = 1;
            rows_.keys = 4;
        }
        prepare_brokers();
        for (std::size_t slot = 0; slot < processes_.size(); slot++) {
            start(slot);
        }
    }

    void run(int steps) {
        for (int i = 0; i < steps && !failed(); i++) {
            step();
            check_groups();
        }
    }

    // The storm is over: all is drained, nobody is killed, time goes by only as they ask for it.
    void finish() {
        if (failed()) {
            return;
        }
        calm_down();
        if (options_.exchanges && dice_.chance(0.5)) {
            go_on(now_ + Duration{150000});
        }
        find_exchanges();
        const auto rows = static_cast<std::int64_t>(database_.rows.size());
        const Time latest = now_ + Duration{300000 + 2000 * rows};
        go_on(now_ + Duration{45000});  // half a minute of it perhaps without a connection
        check_woken();
        go_on(latest);
        for (const SimRow& row : database_.rows) {
            EXPECT_TRUE(ended(row))
                << "row " << row.seq << " is left, claimed by '" << row.token << "', deferred "
                << row.next_attempt.has_value() << " waiting " << row.follows();
            EXPECT_TRUE(row.end != SimRow::End::published || ledger.copies[row.seq] > 0)
                << "row " << row.seq;
        }
        check_ends();
        stop_all();
        EXPECT_EQ(database_.claims(), 0U) << "stopped with claims";
        EXPECT_LE(ledger.duplicates(), ledger.may_be_sent_again);
    }

    /// Rows that are neither published nor visibly at another end.
    std::size_t lost() const {
        return static_cast<std::size_t>(
            std::count_if(database_.rows.begin(), database_.rows.end(), [this](const SimRow& row) {
                const auto copies = ledger.copies.find(row.seq);
                return !ended(row) || (row.end == End::published && row.visible() &&
                                       copies == ledger.copies.end());
            }));
    }

    /// Where failures go, if not to the test that runs.
    const ::testing::TestPartResultArray* failures = nullptr;
    SimLedger ledger;
    std::size_t crashes = 0;
    std::size_t killed = 0;
    const SimDatabase& database() const { return database_; }

  private:
    using End = SimRow::End;
    using Access = SimBroker::Access;

    bool failed() const {
        return failures != nullptr ? failures->size() > 0 : ::testing::Test::HasFailure();
    }

    std::string list_of_brokers() const {
        std::string more;
        for (std::size_t i = 1; i < brokers_.size(); i++) {
            more += ",amqp://more";
        }
        return more;
    }

    void prepare_brokers() {
        const double refusals = dice_.chance(0.3) ? 0 : 0.1;
        for (std::size_t i = 0; i < brokers_.size(); i++) {
            brokers_[i].index = i;
            brokers_[i].refusals = refusals;
            brokers_[i].failing_key = options_.failing_key;
            if (options_.limits && dice_.chance(0.7)) {
                brokers_[i].limit = static_cast<std::size_t>(dice_.between(20, 60));
            }
            for (int changes = options_.exchanges ? 3 : 0; changes > 0; changes--) {
                change_exchange(brokers_[i]);
            }
        }
    }

    void change_exchange(SimBroker& broker) {
        const std::size_t exchange = dice_.below(rows_.exchanges + 1);
        const std::uint64_t what = dice_.below(10);
        if (what < 4) {
            broker.set(exchange, SimBroker::Access::open);
        } else if (what == 4) {
            broker.set(exchange, SimBroker::Access::forbidden);
        } else if (what == 5 && exchange != 0) {
            broker.set(exchange, SimBroker::Access::internal);
        } else if (exchange != 0) {
            broker.set(exchange, SimBroker::Access::missing);
        }
    }

    void start(std::size_t slot) {
        if (processes_[slot] != nullptr && !processes_[slot]->exited) {
            return;
        }
        if (processes_[slot] != nullptr) {
            killed += processes_[slot]->killed;
        }
        SimShellOptions options;
        options.settings = settings_;
        options.worker = static_cast<int>(slot);
        options.generation = ++generation_;
        options.rows_per_group = rows_per_group_;
        options.rows_to_leave = rows_to_leave_;
        options.floor_interval = floor_interval_;
        options.held_at_once = held_at_once_;
        options.deviation = options_.deviation;
        options.meanwhile = [this](Time now) { meanwhile(now); };
        processes_[slot] =
            std::make_unique<SimProcess>(database_, ledger, dice_, std::move(options), brokers_);
        processes_[slot]->configure(now_, settings_);
        if (options_.faults && options_.failed_marks) {
            processes_[slot]->transaction_failure = dice_.chance(0.3) ? 0.3 : 0.01;
        }
        processes_[slot]->publish_failure = options_.faults ? 0.002 : 0;
    }

    void step() {
        if (dice_.chance(0.15) && database_.rows.size() < 400) {
            database_.produce(dice_, now_, rows_);
            wake();
        }
        for (auto& process : processes_) {
            if (process != nullptr && now_ >= process->stalled_until) {
                if (dice_.chance(0.6)) {
                    speak(*process);
                }
                process->run(now_, static_cast<int>(dice_.between(1, 30)));
                pass_wakes();
            }
        }
        if (options_.exchanges && dice_.chance(0.02)) {
            change_exchange(brokers_[dice_.below(brokers_.size())]);
        }
        if (options_.faults && dice_.chance(0.03)) {
            disturb(dice_.below(processes_.size()));
        }
        operate(now_);
        for (std::size_t slot = 0; slot < processes_.size(); slot++) {
            if (processes_[slot]->exited && (slot == 0 || dice_.chance(0.05))) {
                start(slot);
            }
        }
        if (dice_.chance(0.3)) {
            advance();
        } else {
            now_ += Duration{dice_.between(0, 5)};
        }
    }

    void wake() {
        for (auto& process : processes_) {
            process->wake();
        }
    }
    void pass_wakes() {
        for (auto& process : processes_) {
            if (std::exchange(process->wakes_others, false)) {
                wake();
            }
        }
    }

    // At most one message of a group is on its way, whoever sent it.
    void check_groups() {
        std::set<std::uint64_t> groups;
        for (const auto& process : processes_) {
            for (Channel channel : {Channel::main, Channel::trial}) {
                for (const SimMessage& message : process->link.end(channel).sent) {
                    EXPECT_TRUE(!message.group.has_value() || groups.insert(*message.group).second)
                        << "row " << message.seq << " is the second of its group on its way";
                }
            }
        }
    }

    // The broker does something on this connection.
    void speak(SimProcess& process) {
        if (process.exited) {
            return;
        }
        if (process.connecting) {
            const SimBroker& broker = process.broker_to_try();
            if (!broker.hears_nobody) {
                process.finish_connecting(now_,
                                          broker.up && (!options_.faults || dice_.chance(0.8)));
            }
        } else if (process.up && !process.silent) {
            for (std::int64_t i = dice_.between(1, 8); i > 0; i--) {
                process.link.work();
            }
            for (std::int64_t i = dice_.between(0, 4); i > 0; i--) {
                process.hear(now_);
            }
        }
    }

    void disturb(std::size_t slot) {
        SimProcess& process = *processes_[slot];
        switch (dice_.below(13)) {
            case 0:
                if (options_.crashes) {
                    crashes++;
                    process.die();
                }
                break;
            case 1:
                if (process.up) {
                    process.lose_connection(now_);
                }
                break;
            case 2:
                if (process.up) {
                    process.link.block(!process.link.blocked);
                }
                break;
            case 3:
                process.silent = !process.silent;
                break;
            case 4:
                database_.down = options_.failed_marks && !database_.down;
                break;
            case 5:
                // Too long for its leases.
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
            case 9:
                if (options_.crashes && dice_.chance(0.1)) {
                    restart_server();
                }
                break;
            case 10:
                disturb_broker(brokers_[dice_.below(brokers_.size())]);
                break;
            case 11:
                if (process.up && dice_.chance(0.3)) {
                    process.link.talk_nonsense();
                }
                break;
            default:
                now_ += Duration{dice_.between(0, 3000)};
                break;
        }
        pass_wakes();
    }

    void disturb_broker(SimBroker& broker) {
        if (dice_.chance(0.3)) {
            broker.hears_nobody = !broker.hears_nobody;
            return;
        }
        broker.up = !broker.up;
        for (auto& process : processes_) {
            if (!broker.up && process->up && &process->link.broker() == &broker) {
                process->lose_connection(now_);
            }
        }
    }

    void restart_server() {
        for (auto& process : processes_) {
            process->die();
        }
        database_.crash();
        for (const SimRow& row : database_.rows) {
            EXPECT_TRUE(row.committed_at != 0 || ledger.copies[row.seq] == 0)
                << "P3: row " << row.seq << " was published and has never been written";
        }
    }

    void reconfigure(SimProcess& process) {
        DrainSettings settings = settings_;
        settings.enabled = !dice_.chance(0.2);
        settings.poll_interval = Duration{dice_.between(50, 500)};
        if (dice_.chance(0.3)) {
            settings.broker_uri = dice_.chance(0.5) ? "amqp://one" : "amqp://two";
            settings.broker_uri += list_of_brokers();
        }
        process.configure(now_, settings);
    }

    // ---- Operators ----

    // In the middle of a drainer's transaction.
    void meanwhile(Time now) {
        if (dice_.chance(0.3) && database_.rows.size() < 400) {
            database_.produce(dice_, now, rows_);
        }
        database_.in_claim = true;
        for (int i = 0; i < 3; i++) {
            operate(now);
        }
        database_.in_claim = false;
    }

    void operate(Time now) {
        if (database_.rows.empty() || !dice_.chance(0.15)) {
            return;
        }
        SimRow& row = database_.rows[dice_.below(database_.rows.size())];
        switch (dice_.below(8)) {
            case 0:
            case 1:
                if (options_.locks) {
                    lock_or_unlock(row);
                }
                break;
            case 2:
                if (options_.hands && dice_.chance(0.3)) {
                    database_.remove(row.seq);
                }
                break;
            case 3:
                if (options_.hands && dice_.chance(0.3)) {
                    requeue_stuck(now);
                }
                break;
            case 4:
                if (options_.requeues && !row.bad && !row.killer &&
                    database_.requeue(row.seq, now)) {
                    ledger.charges[row.seq] = 0;
                    wake();
                }
                break;
            case 5:
                if (options_.discards) {
                    discard_a_head(row, now);
                }
                break;
            case 6:
                if (options_.pauses && dice_.chance(0.2)) {
                    database_.paused = !database_.paused;
                    database_.relay_version++;
                    wake();
                }
                resume(0.3);
                break;
            default:
                if (options_.reorders && dice_.chance(0.1)) {
                    database_.reorder(static_cast<Ordering>(dice_.below(4)));
                    wake();
                }
                break;
        }
    }

    void lock_or_unlock(SimRow& row) {
        if (row.locked || row.changing || !row.unended()) {
            for (SimRow& other : database_.rows) {
                other.locked = other.locked && !dice_.chance(0.5);
            }
        } else {
            row.locked = row.was_locked = true;
        }
    }

    // Rather one that others wait for.
    void discard_a_head(const SimRow& near, Time now) {
        for (std::size_t i = 0; i < database_.rows.size(); i++) {
            const std::size_t at = (static_cast<std::size_t>(near.seq) + i) % database_.rows.size();
            const SimRow& row = database_.rows[at];
            if (row.holds() && !row.follows() && dice_.chance(0.5)) {
                database_.discard(row.seq, now);
                wake();
                return;
            }
        }
        if (dice_.chance(0.1)) {
            database_.discard(near.seq, now);
        }
    }

    void requeue_stuck(Time now) {
        for (SimRow& row : database_.rows) {
            if (row.unended() && !row.token.empty() && database_.is_at_hand(row) &&
                now > row.leased_at + settings_.lease_ttl) {
                ledger.given_back_by_hand++;
                ledger.may_be_sent_again += ledger.sent.contains({row.token, row.seq}) ? 1 : 0;
                database_.give_back(row.seq);
            }
        }
        database_.release_headless(now);
        wake();
    }

    void resume(double chance) {
        if (database_.paused && dice_.chance(chance)) {
            database_.paused = false;
            database_.relay_version++;
            wake();
        }
    }

    // ---- After the storm ----

    void calm_down() {
        while (!database_.open.empty()) {
            database_.end_writer(0, dice_.chance(0.5));
        }
        database_.down = false;
        for (SimRow& row : database_.rows) {
            row.locked = false;
        }
        resume(1);
        options_.faults = false;
        options_.locks = options_.hands = options_.requeues = options_.discards = false;
        options_.pauses = options_.reorders = false;
        for (SimBroker& broker : brokers_) {
            calm(broker);
        }
        for (auto& process : processes_) {
            calm(*process);
        }
    }

    void calm(SimBroker& broker) {
        broker.up = true;
        broker.hears_nobody = false;
        broker.refusals = 0;
        broker.failing_key.reset();
        for (std::size_t i = 0; i < broker.exchanges.size(); i++) {
            if (broker.exchanges[i].access != Access::missing &&
                (settings_.max_attempts == 0 || dice_.chance(0.5))) {
                broker.set(i, Access::open);
            }
        }
    }

    void calm(SimProcess& process) {
        process.stalled_until = now_;
        process.transaction_failure = 0;
        process.publish_failure = 0;
        process.silent = false;
        process.drain.set_misconfigured(false);
        process.configure(now_, settings_);
        if (process.up) {
            process.link.block(false);
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
        if (process.up && dice_.chance(0.9)) {
            process.link.work_off();
            while (process.up && process.link.has_news()) {
                process.hear(now_);
            }
        }
    }

    // On to the moment that somebody waits for.
    void advance() {
        Time next = now_ + Duration{1000};
        for (const auto& process : processes_) {
            if (!process->exited) {
                next = std::min(next, std::max(process->wait_until, process->stalled_until));
            }
        }
        now_ = std::max(now_, next);
    }

    // Nobody does anything but the drainers and the broker.
    void go_on(Time until) {
        for (int i = 0; (i == 0 || !all_ended()) && now_ < until && !failed(); i++) {
            for (std::size_t slot = 0; slot < processes_.size(); slot++) {
                start(slot);
                calm(*processes_[slot]);
                serve(*processes_[slot]);
                pass_wakes();
            }
            check_groups();
            resume(1);
            advance();
        }
    }

    void find_exchanges() {
        for (SimBroker& broker : brokers_) {
            for (std::size_t i = 0; i < broker.exchanges.size(); i++) {
                if (broker.exchanges[i].access == Access::missing) {
                    broker.set(i, Access::open);
                }
            }
        }
    }

    // What waits for an exchange goes on by itself once it is there.
    void check_woken() const {
        for (const SimRow& row : database_.rows) {
            EXPECT_FALSE(row.holds() && row.next_attempt > now_ && row.next_attempt < NEVER &&
                         row.last_error.starts_with("held: exchange"))
                << "row " << row.seq << " waits for an exchange that is there: " << row.last_error;
        }
    }

    bool ended(const SimRow& row) const { return !row.unended(); }
    bool all_ended() const {
        return std::all_of(database_.rows.begin(), database_.rows.end(),
                           [this](const SimRow& row) { return ended(row); });
    }

    void check_ends() {
        for (const SimRow& row : database_.rows) {
            if (!row.visible()) {
                continue;
            }
            if (row.killer && row.end != End::discarded) {
                EXPECT_EQ(row.end, End::dead) << "row " << row.seq << " kills drainers";
            } else if (row.bad && row.end != End::discarded && !options_.fail_missing) {
                EXPECT_EQ(row.end, End::rejected) << row.seq;
            } else if (row.poison != Poison::none && row.end != End::discarded &&
                       row.end != End::rejected) {
                EXPECT_EQ(row.end, End::dead) << "row " << row.seq << " cannot be taken";
            }
            if (options_.killers && crashes == 0 && !row.killer) {
                EXPECT_FALSE(ledger.poisoned.contains(row.seq))
                    << "row " << row.seq << " is charged for what a neighbour did";
            }
        }
    }

    void stop_all() {
        const auto each_running = [this](auto&& what) {
            for (auto& process : processes_) {
                if (!process->exited) {
                    what(*process);
                }
            }
        };
        each_running([this](SimProcess& process) { process.drain.stop(now_); });
        const Time latest = now_ + Duration{2100};
        while (now_ <= latest && !failed()) {
            each_running([this](SimProcess& process) { serve(process); });
            advance();
        }
        each_running([](SimProcess&) { ADD_FAILURE() << "does not stop"; });
        killed += processes_[0]->killed;
    }

    Dice dice_;
    SimWorldOptions options_;
    Time now_{1000000};
    DrainSettings settings_;
    SimRowOptions rows_;
    std::size_t rows_per_group_ = 64;
    std::size_t rows_to_leave_ = LeftRows::MOST;
    Duration floor_interval_{};
    std::size_t held_at_once_ = 100;
    SimDatabase database_;
    std::vector<SimBroker> brokers_;
    std::vector<std::unique_ptr<SimProcess>> processes_;
    int generation_ = 0;
};

}  // namespace outbox::test
