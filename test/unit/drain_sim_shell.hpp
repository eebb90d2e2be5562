#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drain_sim_claim.hpp"
#include "drain_sim_database.hpp"
#include "drain_sim_marks.hpp"

namespace outbox::test {

/// What a simulated shell looks like from outside its drain machine.
struct SimShellOptions {
    DrainSettings settings;
    int worker = 0;
    int generation = 0;
    std::size_t rows_per_group = 64;
    std::size_t rows_to_leave = LeftRows::MOST;
    Duration floor_interval{5000};
    std::size_t held_at_once = 100;  ///< deferred rows looked at in one step
    Deviation deviation = Deviation::none;
    std::function<void(Time)> meanwhile;  ///< others act in the middle of a transaction
};

/// The worker around Drain, as src/worker does it, against a model database and without a broker:
/// takes notice, shares buckets, takes back what dead drainers held, runs transactions, sweeps.
class SimShell {
  public:
    SimShell(SimDatabase& database, SimLedger& ledger, Dice& dice, SimShellOptions options)
        : slot_name(std::to_string(options.worker) + "/"),
          owner(slot_name + std::to_string(options.generation) + "/"),
          drain(options.settings, dice.below(1U << 30U)),
          database_(database),
          ledger_(ledger),
          dice_(dice),
          options_(std::move(options)),
          settings_(options_.settings),
          marks_(database, ledger, settings_, owner, options_.deviation),
          killer_jitter_(dice.below(1U << 30U)) {
        database_.alive.insert(owner);
        drain.hold_claims(true);
    }
    SimShell(const SimShell&) = delete;
    SimShell& operator=(const SimShell&) = delete;
    virtual ~SimShell() = default;

    void wake() { woken_ = true; }
    /// The server's settings; the relay's go over them.
    void configure(Time now, const DrainSettings& settings) {
        server_settings_ = settings;
        take_settings(now);
    }
    const DrainSettings& settings() const { return settings_; }

    std::string slot_name;
    std::string owner;  ///< what its tokens begin with
    Drain drain;
    bool exited = false;
    double transaction_failure = 0;
    std::set<std::int64_t> unsettled;  ///< answered, not written
    bool wakes_others = false;         ///< to be taken by the world

  protected:
    using End = SimRow::End;

    bool is(Deviation deviation) const { return options_.deviation == deviation; }

    void take_notice(Time now) {
        if (relay_version_ != database_.relay_version) {
            take_settings(now);
        }
        if (std::exchange(woken_, false)) {
            drain.woken();
            share_at_ = now;
        }
        if (!prepared_ && !drain.stopping()) {
            prepare(now);
        }
        if (prepared_ && (now >= share_at_ || buckets_ == 0 || reclaim_pending_)) {
            share_buckets(now);
        }
        if (prepared_ && !drain.stopping()) {
            sweep(now);
        }
    }

    void transact(Time& now) {
        forget_spent_payloads();
        const TransactionPlan plan = drain.plan();
        now += Duration{dice_.chance(0.002) ? dice_.between(1000, 6000) : dice_.between(0, 3)};
        if (plan.one_by_one) {
            transact_one_by_one(plan, now);
            return;
        }
        const bool fails_late = dice_.chance(transaction_failure / 2);
        Marked marked;
        std::optional<SimClaim> claim;
        std::optional<std::int64_t> floor;
        bool ok = begin() && write_plan(plan, now, marked);
        std::optional<std::int64_t> woken_to;
        if (ok && plan.wake_held.has_value() && !is(Deviation::never_wakes_held)) {
            woken_to = database_.wake_held(*plan.wake_held, now, options_.held_at_once);
        }
        floor = ok ? floor_if_due(now, marked.lost.empty()) : std::nullopt;
        const std::string token = owner + std::to_string(++claims_) +
                                  (plan.suspicion > 0 ? "/" + std::to_string(plan.suspicion) : "");
        if (ok && plan.claim > 0 && may_claim_now()) {
            claim.emplace(claim_context(plan, token, now), lane_);
            ok = claim->run();
        }
        if (!ok || fails_late) {
            database_.abort();
            drain.transaction_failed(now);
            return;
        }
        if (floor.has_value()) {
            write_floor(*floor);
        }
        pause_relay(plan.pause);
        commit();
        settle(marked);
        finish_claim(now, plan, token, claim, woken_to);
        look_again_at(marked);
        EXPECT_LE(database_.claimed_by(owner), drain.in_hand()) << "a claim is stranded";
    }

    void leave() {
        if (prepared_) {
            leave_buckets();
            const std::int64_t lowest = lowest_floor(database_.buckets);
            if (lowest != floor_written_ && begin()) {
                write_floor(lowest);
            }
        }
        if (drain.in_hand() == 0) {
            EXPECT_EQ(database_.claimed_by(owner), 0U) << "stopped with claims";
        }
    }

    // The process is gone, in good order or not.
    void bury() {
        exited = true;
        database_.alive.erase(owner);
        outbox::bury(database_.buckets, options_.worker);
        wakes_others = true;
    }

    SimDatabase& database_;
    SimLedger& ledger_;
    Dice& dice_;
    SimShellOptions options_;

  private:
    using Marked = SimMarked;

    void commit() { database_.commit(!is(Deviation::commits_not_flushed)); }
    bool begin() { return !database_.down && !dice_.chance(transaction_failure / 2); }
    Ordering ordering() const { return drain.settings().ordering; }

    // ---- drainer.cpp ----

    void take_settings(Time now) {
        relay_version_ = database_.relay_version;
        DrainSettings fresh = server_settings_.value_or(options_.settings);
        fresh.paused = database_.paused;
        fresh.ordering = database_.ordering;
        if (fresh.ordering != settings_.ordering) {
            sweep_at_ = now;
        }
        settings_ = fresh;
        drain.configure(now, settings_);
    }

    void prepare(Time now) {
        if (!begin()) {
            return;
        }
        take_settings(now);
        raise_floors(database_.buckets, database_.floor);
        start_lane(database_.floor);
        floor_written_ = database_.floor;
        sweep_at_ = now + Duration{10000};
        called_by_.reset();
        prepared_ = true;
    }

    void share_buckets(Time now) {
        share_at_ = now + Duration{100};
        const BucketShare share = step(
            database_.buckets, options_.worker,
            {.ordering = ordering(),
             .able = drain.is_able(),
             .idle = is(Deviation::gives_up_rows_in_hand) ? ALL_BUCKETS : ~drain.buckets_in_hand(),
             .floor = reached()});
        wakes_others = wakes_others || share.news;
        shared_ordering_ = ordering();
        if (share.taken.buckets != 0) {
            if (share.taken.floor < lane_.cursor() && !is(Deviation::keeps_lane_at_handover)) {
                start_lane(std::min(reached(), share.taken.floor));
            }
            reclaim_pending_ = true;
        }
        buckets_ = share.claimable;
        left_.keep(buckets_);
        drainers_sharing_ =
            static_cast<std::size_t>(BUCKETS / std::max(std::popcount(share.owned), 1));
        drain.share_with(share.owned == 0 ? 1 : drainers_sharing_);
        if (reclaim_pending_ && reclaim(now) && call_after_reorder(now)) {
            reclaim_pending_ = false;
            drain.woken();
        }
        drain.hold_claims(!prepared_ || buckets_ == 0 || reclaim_pending_);
    }

    // What waited for others by another ordering perhaps waits for nobody by this one.
    bool call_after_reorder(Time now) {
        if (called_by_ != ordering() && !is(Deviation::sweeps_late_after_reorder)) {
            if (!sweep_groups(now)) {
                return false;
            }
            called_by_ = ordering();
        }
        return true;
    }

    std::int64_t reached() const {
        const std::int64_t open = lane_.lowest_open();
        return std::min(
                   {open, drain.lowest_in_hand().value_or(open), left_.lowest().value_or(open)}) -
               1;
    }
    void start_lane(std::int64_t floor) {
        lane_ = FreshLane(floor);
        left_.clear();
    }

    void leave_buckets() {
        publish(database_.buckets, options_.worker, false, reached());
        outbox::bury(database_.buckets, options_.worker);
        wakes_others = true;
    }

    // ---- transact.cpp, marks.cpp ----

    bool may_claim_now() {
        if (ordering() != shared_ordering_) {
            share_at_ = Time{};
            return false;
        }
        return true;
    }

    SimClaimContext claim_context(const TransactionPlan& plan, const std::string& token, Time now) {
        const bool interrupted = options_.meanwhile && dice_.chance(0.3);
        return {.database = database_,
                .ledger = ledger_,
                .drain = drain,
                .now = now,
                .token = token,
                .room = plan.claim,
                .buckets = buckets_,
                .drainers_sharing = drainers_sharing_,
                .per_group = per_group(),
                .left = left_,
                .rows_to_leave =
                    options_.rows_to_leave - std::min(options_.rows_to_leave, left_.size()),
                .deviation = options_.deviation,
                .is_dead = [this](const std::string& token) { return is_dead(token); },
                .take_back =
                    [this, now](const std::vector<std::int64_t>& seqs) {
                        std::vector<std::int64_t> released;
                        return take_back(seqs, now, released);
                    },
                .meanwhile =
                    [this, interrupted, now] {
                        if (interrupted) {
                            options_.meanwhile(now);
                        }
                    }};
    }

    GroupLimits per_group() const {
        if (ordering() != Ordering::per_key) {
            return {};
        }
        return {options_.rows_per_group, static_cast<std::size_t>(settings_.batch_bytes) / 4};
    }

    bool write_plan(const TransactionPlan& plan, Time now, Marked& marked) {
        for (const BatchMarks& marks : plan.marks) {
            if (!marks_.write(marks, now, marked)) {
                return false;
            }
        }
        std::vector<std::int64_t> ended = plan.release_behind;
        if (is(Deviation::releases_early)) {
            ended = marked.hit;
        } else if (is(Deviation::never_releases)) {
            ended.clear();
        }
        follow_up(ended, now);
        return true;
    }

    void follow_up(const std::vector<std::int64_t>& ended, Time now) {
        if (ordering() == Ordering::per_key || ordering() == Ordering::per_source) {
            for (std::int64_t seq : ended) {
                database_.release_group(database_.row(seq), ordering(), now);
            }
        }
    }
    void pause_relay(const std::string& reason) {
        if (!reason.empty()) {
            database_.paused = true;
            database_.relay_version++;
        }
    }

    void settle(const Marked& marked) {
        ledger_.stale_marks += marked.lost.size();
        ledger_.given_back += marked.given_back.size();
        for (const auto* list : {&marked.hit, &marked.lost}) {
            for (std::int64_t seq : *list) {
                if (database_.row(seq).token.empty() || list == &marked.lost) {
                    unsettled.erase(seq);
                }
            }
        }
    }

    void look_again_at(const Marked& marked) {
        if (is(Deviation::forgets_given_back)) {
            return;
        }
        for (const auto* list : {&marked.given_back, &marked.lost}) {
            for (std::int64_t seq : *list) {
                lane_.add_hole(seq);
            }
        }
    }

    void finish_claim(Time now, const TransactionPlan& plan, const std::string& token,
                      std::optional<SimClaim>& claim, std::optional<std::int64_t> woken_to) {
        TransactionResult result;
        result.woken_to = woken_to;
        result.durable = !dice_.chance(0.01);
        result.token = token;
        if (claim.has_value()) {
            lane_ = std::move(claim->lane);
            if (claim->lane_read && !is(Deviation::forgets_left)) {
                left_.passed(claim->left, claim->shown_to, claim->order.left());
            }
            result.left = left_.groups();
            result.rows_per_group = per_group().rows;
            if (claim->lane_read && claim->complete) {
                blocked_groups_.clear();
            }
            for (const auto& [group, seq] : claim->order.blocked()) {
                blocked_groups_.insert(group);
            }
            result.followed = claim->order.followed();
            result.more = claim->more;
            result.next_due = claim->next_due;
            if (!claim->events.empty()) {
                result.claimed = memory_[drain.next_batch()] = std::move(claim->events);
            }
            EXPECT_LE(result.claimed.size(), plan.claim);
        }
        hand_over(now, result);
    }

    // From then on nobody may publish them (drain_sim_process.hpp).
    void forget_spent_payloads() {
        for (const Event* spent : drain.spent_payloads()) {
            const_cast<Event*>(spent)->payload_memory = &spent_payload_memory;
        }
    }

    void hand_over(Time now, const TransactionResult& result) {
        drain.transacted(now, result);
        for (BatchId id : drain.finished_batches()) {
            EXPECT_EQ(memory_.erase(id), 1U);
        }
    }

    std::optional<std::int64_t> floor_if_due(Time now, bool all_hit) {
        const bool due = now >= floor_written_at_ + options_.floor_interval || drain.stopping();
        const std::int64_t lowest = lowest_floor(database_.buckets);
        if (!all_hit || !due || lowest == floor_written_) {
            return std::nullopt;
        }
        floor_written_at_ = now;
        return lowest;
    }

    void write_floor(std::int64_t floor) {
        floor_written_ = database_.floor = floor;
        const auto size = std::min(floor, database_.last_drawn());
        for (std::int64_t seq = 1; seq <= size; seq++) {
            EXPECT_FALSE(database_.row(seq).fresh())
                << "floor " << floor << " is above row " << seq << ", held by '"
                << database_.row(seq).token << "'";
        }
        for (const auto& writer : database_.open) {
            for (std::int64_t seq : writer.written) {
                EXPECT_TRUE(seq > floor || database_.row(seq).is_scheduled())
                    << "floor " << floor << " is above " << seq << ", which may yet come";
            }
        }
    }

    void transact_one_by_one(const TransactionPlan& plan, Time now) {
        TransactionResult result;
        const auto write_alone = [&](const BatchMarks& marks, std::int64_t seq) {
            if (result.unwritten.size() == 3) {
                result.untried.push_back(seq);
                return;
            }
            Marked marked;
            if (!begin() || dice_.chance(transaction_failure) ||
                !marks_.write(marks, now, marked)) {
                database_.abort();
                result.unwritten.push_back(seq);
                return;
            }
            commit();
            settle(marked);
            look_again_at(marked);
        };
        for (const BatchMarks& marks : plan.marks) {
            const auto each = [&](auto member) {
                BatchMarks one;
                one.batch = marks.batch;
                one.token = marks.token;
                for (const auto& mark : marks.*member) {
                    (one.*member) = {mark};
                    write_alone(one, seq_of(mark));
                }
            };
            each(&BatchMarks::published);
            each(&BatchMarks::failed);
            each(&BatchMarks::ended);
            each(&BatchMarks::deferred);
            each(&BatchMarks::released);
            each(&BatchMarks::renewed);
        }
        if (result.unwritten.empty() && result.untried.empty() && begin()) {
            follow_up(plan.release_behind, now);
            pause_relay(plan.pause);
            commit();
        }
        hand_over(now, result);
    }
    static std::int64_t seq_of(std::int64_t seq) { return seq; }
    template <class Mark>
    static std::int64_t seq_of(const Mark& mark) {
        return mark.seq;
    }

    // ---- reclaim.cpp ----

    bool reclaim(Time now) {
        std::size_t released = 0;
        if (!reclaim_deferred(now, released)) {
            return false;
        }
        std::int64_t position = lane_.cursor();
        return look_through(position, INT64_MAX, INT64_MAX, now);
    }

    bool reclaim_deferred(Time now, std::size_t& released) {
        std::vector<std::int64_t> held;
        for (const SimRow& row : database_.rows) {
            if (row.unended() && row.next_attempt.has_value() && may_take_over(row, now)) {
                held.push_back(row.seq);
            }
        }
        std::vector<std::int64_t> seqs;
        if (!begin() || !take_back(held, now, seqs)) {
            database_.abort();
            return false;
        }
        commit();
        released = seqs.size();
        note_taken_back(released);
        return true;
    }

    bool look_through(std::int64_t& position, std::int64_t last, std::int64_t most, Time now) {
        std::vector<std::int64_t> held;
        std::vector<std::int64_t> left_behind;
        for (; most > 0 && position < std::min(last, database_.last_drawn()); most--) {
            const SimRow& row = database_.row(++position);
            if (row.unended() && may_take_over(row, now)) {
                held.push_back(row.seq);
            }
            if (row.fresh() && row.token.empty() && row.seq <= lane_.cursor() && owns(row) &&
                !left_.contains(bucket_hash_of(row, ordering()), row.seq)) {
                left_behind.push_back(row.seq);
            }
        }
        std::vector<std::int64_t> released;
        if (!begin() || !take_back(held, now, released)) {
            database_.abort();
            return false;
        }
        commit();
        for (std::int64_t seq : released) {
            lane_.add_hole(seq);
        }
        for (std::int64_t seq : left_behind) {
            lane_.add_hole(seq);
        }
        if (!left_behind.empty()) {
            drain.woken();
        }
        note_taken_back(released.size());
        return true;
    }

    void note_taken_back(std::size_t count) {
        if (count > 0) {
            drain.woken();
        }
    }

    bool owns(const SimRow& row) const {
        return ((buckets_ >> (bucket_hash_of(row, ordering()) & 63U)) & 1U) != 0;
    }
    bool may_take_over(const SimRow& row, Time now) const {
        if (row.token.empty() || drain.holds(row.token) || !owns(row)) {
            return false;
        }
        return now > row.leased_at + settings_.lease_ttl || is_dead(row.token);
    }
    bool is_dead(const std::string& token) const {
        if (token.starts_with(owner)) {
            return !drain.holds(token);
        }
        return std::none_of(database_.alive.begin(), database_.alive.end(),
                            [&](const std::string& other) { return token.starts_with(other); });
    }

    static std::size_t suspicion_of(const std::string& token) {
        const auto slashes = std::count(token.begin(), token.end(), '/');
        return slashes < 3 ? 0 : std::stoul(token.substr(token.rfind('/') + 1));
    }

    bool take_back(const std::vector<std::int64_t>& seqs, Time now,
                   std::vector<std::int64_t>& released) {
        std::map<std::string, std::vector<std::int64_t>> by_token;
        for (std::int64_t seq : seqs) {
            by_token[database_.row(seq).token].push_back(seq);
        }
        for (const auto& [token, held] : by_token) {
            if (std::any_of(held.begin(), held.end(),
                            [&](std::int64_t seq) { return database_.row(seq).locked; })) {
                return false;
            }
            const std::size_t suspicion = suspicion_of(token);
            const bool charges_all = is(Deviation::charges_neighbours) && is_dead(token);
            if ((held.size() == 1 && suspicion == 1 && is_dead(token)) || charges_all) {
                for (std::int64_t seq : held) {
                    charge_killer(seq, now);
                }
                continue;
            }
            for (std::int64_t seq : held) {
                SimRow& row = database_.change(seq);
                ledger_.taken_back++;
                ledger_.may_be_sent_again +=
                    !is_dead(token) && ledger_.sent.contains({token, seq}) ? 1 : 0;
                row.taken_from = std::exchange(row.token, {});
                released.push_back(seq);
            }
            if (is_dead(token) && !is(Deviation::no_search_for_killers)) {
                drain.suspect(suspicion > 0 ? std::min(held.size(), suspicion) : held.size());
            }
        }
        return true;
    }

    void charge_killer(std::int64_t seq, Time now) {
        SimRow& row = database_.change(seq);
        ledger_.poisoned.insert(seq);
        ledger_.charges[seq]++;
        row.last_error = "poison: the drainer ended while it had this event alone in hand";
        if (settings_.max_attempts > 0 && row.attempts + 1 >= settings_.max_attempts) {
            row.attempts++;
            row.end = End::dead;
            row.token.clear();
            row.next_attempt.reset();
            follow_up({seq}, now);
        } else {
            marks_.charge(row, now + settings_.retry.delay(row.attempts + 1, killer_jitter_));
        }
        drain.suspect(1);
    }

    void sweep(Time now) {
        if (now < sweep_at_) {
            return;
        }
        sweep_at_ = now + std::clamp(settings_.lease_ttl / 2, Duration{10000}, Duration{60000});
        std::size_t released = 0;
        if (!reclaim_deferred(now, released)) {
            return;
        }
        sweep_groups(now);
        sweep_turn(sweep_position_, std::max<std::int64_t>(floor_written_, 0), lane_.cursor(), now);
        sweep_turn(history_position_, 0, std::max<std::int64_t>(floor_written_, 0), now);
    }

    bool sweep_groups(Time now) {
        if (!begin()) {
            return false;
        }
        std::size_t called = call_followers_without_group(now);
        if (ordering() == Ordering::per_key || ordering() == Ordering::per_source) {
            called += call_stranded_groups(now);
        }
        commit();
        if (called > 0) {
            drain.woken();
        }
        return true;
    }

    // By another ordering they had one. With stop_the_line nothing waits for a row of its own.
    std::size_t call_followers_without_group(Time now) {
        std::size_t called = 0;
        for (const SimRow& row : database_.rows) {
            const bool has_group =
                ordering() != Ordering::stop_the_line && group_of(row, ordering()).has_value();
            if (row.unended() && row.next_attempt == NEVER && row.token.empty() && !row.locked &&
                !has_group) {
                database_.change(row.seq).next_attempt = now;
                called++;
            }
        }
        ledger_.swept += called;
        return called;
    }

    // One that was given back and is going to be claimed again.
    bool waits_for_fresh_row(const SimRow& follower) const {
        return std::any_of(database_.rows.begin(), database_.rows.end(), [&](const SimRow& row) {
            return row.fresh() && row.seq < follower.seq &&
                   group_of(row, ordering()) == group_of(follower, ordering());
        });
    }

    std::size_t call_stranded_groups(Time now) {
        std::set<std::uint64_t> seen;
        std::vector<std::int64_t> stranded;
        for (const SimRow& row : database_.rows) {
            const auto group = row.holds() ? group_of(row, ordering()) : std::nullopt;
            if (!group.has_value() || !seen.insert(*group).second) {
                continue;
            }
            const bool called_in_time =
                drain.has_in_hand(*group) || blocked_groups_.contains(*group);
            if (row.follows() && owns(row) &&
                (!called_in_time || is(Deviation::sweeps_groups_in_hand))) {
                stranded.push_back(row.seq);
            }
        }
        std::size_t called = 0;
        for (std::int64_t seq : stranded) {
            const bool in_vain = waits_for_fresh_row(database_.row(seq));
            const std::size_t count = database_.release_group(database_.row(seq), ordering(), now);
            ledger_.called_in_vain += in_vain ? count : 0;
            ledger_.swept += in_vain ? 0 : count;
            called += count;
        }
        return called;
    }

    void sweep_turn(std::int64_t& position, std::int64_t from, std::int64_t to, Time now) {
        position = std::max(position, from);
        const std::int64_t before = position;
        if (position < to && look_through(position, to, 50, now) && position != before) {
            return;
        }
        position = from;
    }

    DrainSettings settings_;
    SimMarks marks_;
    std::optional<DrainSettings> server_settings_;
    Random killer_jitter_;
    FreshLane lane_;
    LeftRows left_;
    BucketMask buckets_ = 0;
    std::size_t drainers_sharing_ = 1;
    Ordering shared_ordering_ = Ordering::per_key;
    std::optional<Ordering> called_by_;  ///< by which ordering what waits was called first
    std::set<std::uint64_t> blocked_groups_;
    std::map<BatchId, std::vector<Event>> memory_;
    std::uint64_t relay_version_ = 0;
    std::uint64_t claims_ = 0;
    bool woken_ = false;
    bool prepared_ = false;
    bool reclaim_pending_ = false;
    Time share_at_{};
    Time sweep_at_{};
    std::int64_t sweep_position_ = 0;
    std::int64_t history_position_ = 0;
    std::int64_t floor_written_ = -1;
    Time floor_written_at_{};
};

}  // namespace outbox::test
