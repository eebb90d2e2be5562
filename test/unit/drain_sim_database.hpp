#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/buckets.hpp"
#include "core/drain.hpp"
#include "core/fresh_lane.hpp"
#include "drain_seed.hpp"
#include "drain_sim_broker.hpp"

namespace outbox::test {

/// Stands for 'infinity' in next_attempt_at: the row waits behind another one of its group.
inline constexpr Time NEVER = Time::max();

/// Counts what happens in a world, to tell before from after.
using Moment = std::uint64_t;

/// One row of the outbox table, with what a test knows about it.
struct SimRow {
    enum class End : std::uint8_t { none, published, dead, rejected, discarded };

    std::int64_t seq = 0;
    std::uint32_t txn = 0;
    Moment drawn_at = 0;
    Moment committed_at = 0;  ///< 0: not committed
    bool deleted = false;
    std::uint32_t source = 0;
    int key = -1;         ///< -1: none
    bool bad = false;     ///< cannot be sent as it is
    bool killer = false;  ///< whoever publishes it dies
    std::size_t exchange = 1;
    std::size_t bytes = 20;
    Poison poison = Poison::none;
    std::optional<Time> available_at;

    std::optional<Time> next_attempt;
    End end = End::none;
    std::int32_t attempts = 0;
    std::string last_error;
    std::string token;       ///< of the claim; empty: free
    std::string taken_from;  ///< the last claim that lost it
    Time leased_at{};

    bool locked = false;  ///< by somebody who takes his time
    bool was_locked = false;
    bool changing = false;  ///< by the transaction that runs
    bool refused = false;   ///< by the client, before anything was sent
    Moment claim_snapshot = 0;
    Ordering claim_ordering = Ordering::best_effort;
    Moment put_off_at = 0;          ///< when it failed last, or was held
    Moment requeued_at = 0;         ///< by an operator, after its end or a failure
    bool revived_too_late = false;  ///< at that time later rows of its group were in hand

    bool visible() const { return committed_at != 0 && !deleted; }
    bool unended() const { return visible() && end == End::none; }
    bool fresh() const { return unended() && !next_attempt.has_value(); }
    bool holds() const {
        return unended() && next_attempt.has_value() && next_attempt != available_at;
    }
    bool follows() const { return holds() && next_attempt == NEVER && token.empty(); }
    bool is_scheduled() const { return available_at.has_value(); }
};

/// The group that keeps the row's order, as event_sql.hpp has it.
inline std::optional<std::uint64_t> group_of(const SimRow& row, Ordering ordering) {
    const auto hash = [](std::uint64_t value) { return Random(value * 7919 + 17).next(); };
    switch (ordering) {
        case Ordering::per_key:
            return row.key < 0 ? std::nullopt
                               : std::optional(hash(row.source * 64U +
                                                    static_cast<std::uint64_t>(row.key) + 1));
        case Ordering::per_source:
            return hash(100000 + row.source);
        case Ordering::stop_the_line:
            return 0;
        case Ordering::best_effort:
            break;
    }
    return std::nullopt;
}

inline std::uint64_t bucket_hash_of(const SimRow& row, Ordering ordering) {
    return group_of(row, ordering).value_or(static_cast<std::uint64_t>(row.seq));
}

/// What the broker said about one message.
enum class Verdict : std::uint8_t { none, ack, nack, returned, poison };

/// What the messages of one world have been through, for the final account.
struct SimLedger {
    std::map<std::int64_t, std::size_t> copies;           ///< stored in the broker, by row
    std::map<std::int64_t, std::int32_t> charges;         ///< nacks, returns, deaths, by row
    std::set<std::pair<std::string, std::int64_t>> sent;  ///< by claim token and row
    /// What the broker said of exactly that message, by claim token and row.
    std::map<std::pair<std::string, std::int64_t>, Verdict> verdicts;
    /// What drainers were told of exchanges: that there is none, that it refuses.
    std::set<std::pair<std::string, std::size_t>> told_missing;
    std::set<std::pair<std::string, std::size_t>> told_refusing;
    std::set<std::pair<std::string, std::string>> isolations;  ///< by drainer and cause
    std::size_t closes = 0;      ///< of channels, and of connections over a message
    std::size_t held = 0;        ///< rows put off uncharged
    std::size_t found = 0;       ///< rows charged for a close
    std::size_t neighbours = 0;  ///< unconfirmed on a channel that was closed over another one
    std::size_t protocol_errors = 0;
    std::size_t events = 0;             ///< heard from brokers
    std::set<std::int64_t> poisoned;    ///< charged because a drainer died alone with them
    std::size_t may_be_sent_again = 0;  ///< sum of the windows that faults have cut off
    std::size_t faults = 0;
    std::size_t stale_marks = 0;
    std::size_t taken_back = 0;
    std::size_t given_back = 0;
    std::size_t given_back_by_hand = 0;
    std::size_t swept = 0;           ///< rows that waited for nobody, called by the slow sweep
    std::size_t called_in_vain = 0;  ///< by the sweep: what they waited for was there
    std::size_t deferred = 0;
    std::size_t walked = 0;  ///< rows of the fresh lane that claims have read
    std::size_t claimed = 0;
    std::size_t order_checks = 0;  ///< pairs of rows of which one had to come first

    std::size_t duplicates() const {
        std::size_t sum = 0;
        for (const auto& [seq, count] : copies) {
            sum += count > 1 ? count - 1 : 0;
        }
        return sum;
    }
};

/// How rows of a world look.
struct SimRowOptions {
    std::size_t sources = 2;
    std::size_t keys = 4;
    double without_key = 0.2;
    double bad = 0.02;
    double killer = 0;
    double scheduled = 0;
    double poison = 0;
    double flushed = 0.7;       ///< commits of producers
    std::size_t exchanges = 1;  ///< beside the default exchange
    std::size_t writers = 5;    ///< open at a time
    std::size_t followers_at_once = 64;
};

/// One outbox table with its relay, its producers and its operators. A statement is a call. What
/// the running transaction changes is marked, so that nobody else touches it, and can be undone.
class SimDatabase {
  public:
    using End = SimRow::End;

    SimRow& row(std::int64_t seq) { return rows[static_cast<std::size_t>(seq - 1)]; }
    const SimRow& row(std::int64_t seq) const { return rows[static_cast<std::size_t>(seq - 1)]; }
    std::int64_t last_drawn() const { return static_cast<std::int64_t>(rows.size()); }

    // ---- Transactions ----

    /// The row, to be changed by the running transaction.
    SimRow& change(std::int64_t seq) {
        SimRow& changed = row(seq);
        if (!changed.changing) {
            undo_.push_back(changed);
            changed.changing = true;
        }
        return changed;
    }
    /// Keeps others from changing it, without a change.
    void lock(std::int64_t seq) { change(seq); }
    /// `flush`: with all that was committed before, it survives a crash of the server.
    void commit(bool flush = true) {
        for (const SimRow& before : undo_) {
            row(before.seq).changing = false;
        }
        if (flush) {
            this->flush();
        } else {
            not_flushed_.insert(not_flushed_.end(), undo_.begin(), undo_.end());
        }
        undo_.clear();
        clock++;
    }
    /// A crash of the server: what was not flushed never happened.
    void crash() {
        while (!open.empty()) {
            end_writer(0, false);
        }
        for (auto before = not_flushed_.rbegin(); before != not_flushed_.rend(); ++before) {
            row(before->seq) = *before;
        }
        not_flushed_.clear();
        floor = flushed_floor_;
        buckets = new_bucket_map();
    }
    void abort() {
        for (const SimRow& before : undo_) {
            row(before.seq) = before;
        }
        undo_.clear();
    }

    // ---- Producers ----

    struct OpenWriter {
        Writer writer;
        std::vector<std::int64_t> written;
    };

    /// Producers begin, write, commit and roll back.
    void produce(Dice& dice, Time now, const SimRowOptions& options) {
        if (open.empty() || (open.size() < options.writers && dice.chance(0.4))) {
            open.push_back({{1, next_writer++}, {}});
        }
        const std::size_t at = dice.below(open.size());
        for (std::uint64_t i = dice.below(4); i > 0; i--) {
            SimRow row;
            row.seq = last_drawn() + 1;
            row.txn = open[at].writer.local_id;
            row.drawn_at = ++clock;
            row.source = static_cast<std::uint32_t>(dice.below(options.sources));
            row.key =
                dice.chance(options.without_key) ? -1 : static_cast<int>(dice.below(options.keys));
            row.bad = dice.chance(options.bad);
            row.killer = !row.bad && dice.chance(options.killer);
            row.bytes = static_cast<std::size_t>(dice.between(1, dice.chance(0.1) ? 100 : 30));
            choose_exchange(dice, options, row);
            if (dice.chance(options.scheduled)) {
                row.available_at = row.next_attempt = now + Duration{dice.between(1, 5000)};
            }
            open[at].written.push_back(row.seq);
            rows.push_back(row);
        }
        if (dice.chance(0.6)) {
            const bool commits = dice.chance(0.9);
            end_writer(at, commits, dice.chance(options.flushed));
        }
    }
    static void choose_exchange(Dice& dice, const SimRowOptions& options, SimRow& row) {
        row.exchange = dice.chance(0.1) ? 0 : 1 + dice.below(options.exchanges);
        if (dice.chance(options.poison)) {
            row.poison = dice.chance(0.8) ? Poison::content : Poison::cut;
        }
    }
    /// `flush`: false with synchronous_commit = off.
    void end_writer(std::size_t at, bool commit, bool flush = true) {
        clock++;
        for (std::int64_t seq : open[at].written) {
            if (commit) {
                not_flushed_.push_back(row(seq));
                row(seq).committed_at = clock;
            }
        }
        if (commit && flush) {
            this->flush();
        }
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::vector<Writer> writers() const {
        std::vector<Writer> all;
        for (const OpenWriter& writer : open) {
            all.push_back(writer.writer);
        }
        return all;
    }
    bool is_running(const Writer& writer) const {
        return std::any_of(open.begin(), open.end(),
                           [&](const OpenWriter& o) { return o.writer == writer; });
    }

    // ---- What is held for what is missing at the broker (src/postgres/event_held.cpp) ----

    /// Makes held rows due, as far as `most` deferred ones are looked at; gives how far that was.
    std::optional<std::int64_t> wake_held(const WakeHeld& wake, Time now, std::size_t most) {
        const auto microseconds = [](Time time) { return time.count() * 1000; };
        std::vector<std::int64_t> found;
        for (const SimRow& row : rows) {
            if (row.visible() && row.next_attempt > now && row.next_attempt < NEVER &&
                microseconds(*row.next_attempt) > wake.after) {
                found.push_back(row.seq);
            }
        }
        std::stable_sort(found.begin(), found.end(), [this](std::int64_t a, std::int64_t b) {
            return row(a).next_attempt < row(b).next_attempt;
        });
        const bool to_the_end = found.size() < most;
        found.resize(std::min(found.size(), most));
        std::optional<std::int64_t> reached;
        if (!to_the_end) {
            const std::int64_t first = microseconds(*row(found.front()).next_attempt);
            const std::int64_t last = microseconds(*row(found.back()).next_attempt);
            reached = last > first ? last - 1 : last;
        }
        for (std::int64_t seq : found) {
            const SimRow& held = row(seq);
            const bool is_held = wake.error.empty() ? held.last_error.starts_with("held: ")
                                                    : held.last_error == wake.error;
            if (is_held && held.unended() && held.token.empty() && !held.locked) {
                change(seq).next_attempt = now;
            }
        }
        return reached;
    }

    // ---- The release rule, and what operators do (src/sql/64_groups.sql, 65_act.sql) ----

    /// Makes the lowest followers of the row's group due, if nothing else holds it.
    std::size_t release_group(const SimRow& member, Ordering ordering, Time now,
                              bool in_running_transaction = true) {
        const std::optional<std::uint64_t> group = group_of(member, ordering);
        if (!group.has_value()) {
            return 0;
        }
        std::size_t released = 0;
        std::size_t seen = 0;
        for (SimRow& candidate : rows) {
            if (!candidate.holds() || group_of(candidate, ordering) != group) {
                continue;
            }
            if (seen == 0 && !candidate.follows()) {
                break;
            }
            if (++seen > followers_at_once) {
                break;
            }
            const bool is_locked =
                candidate.locked || (candidate.changing && !in_running_transaction);
            if (candidate.follows() && !is_locked) {
                change(candidate.seq).next_attempt = now;
                released++;
            }
        }
        return released;
    }

    /// Whether an operator who wants the row gets it at once.
    bool is_at_hand(const SimRow& row) const { return !row.locked && !row.changing; }

    bool requeue(std::int64_t seq, Time now) {
        SimRow& target = row(seq);
        const bool ended =
            target.end == End::dead || target.end == End::rejected || target.end == End::discarded;
        const bool failed = target.holds() && target.token.empty() && target.next_attempt < NEVER;
        if (!is_at_hand(target) || !target.visible() || (!ended && !failed)) {
            return false;
        }
        flush();
        target.end = End::none;
        target.attempts = 0;
        target.refused = false;
        target.token.clear();
        target.next_attempt = std::max(now, target.available_at.value_or(now));
        target.requeued_at = ++clock;
        target.revived_too_late =
            in_claim || std::any_of(rows.begin(), rows.end(), [&](const SimRow& other) {
                return other.unended() && !other.token.empty() &&
                       group_of(other, ordering) == group_of(target, ordering);
            });
        return true;
    }

    bool discard(std::int64_t seq, Time now) {
        SimRow& target = row(seq);
        // Would wait for the transaction that runs.
        const bool waits = std::any_of(rows.begin(), rows.end(), [&](const SimRow& other) {
            return other.changing && group_of(other, ordering) == group_of(target, ordering);
        });
        if (waits || target.locked || !target.unended() || !target.token.empty()) {
            return false;
        }
        flush();
        target.end = End::discarded;
        target.next_attempt.reset();
        release_of_others(target, now);
        return true;
    }

    /// An operator takes a claim away.
    void give_back(std::int64_t seq) {
        flush();
        row(seq).taken_from = std::exchange(row(seq).token, {});
    }

    /// By hand, past all rules.
    bool remove(std::int64_t seq) {
        if (!is_at_hand(row(seq)) || !row(seq).unended()) {
            return false;
        }
        flush();
        row(seq).deleted = true;
        clock++;
        return true;
    }

    std::size_t claimed_by(const std::string& owner) const {
        return static_cast<std::size_t>(std::count_if(
            rows.begin(), rows.end(),
            [&](const SimRow& row) { return row.visible() && row.token.starts_with(owner); }));
    }

    std::size_t claims() const {
        return static_cast<std::size_t>(
            std::count_if(rows.begin(), rows.end(),
                          [](const SimRow& row) { return row.visible() && !row.token.empty(); }));
    }

    /// What requeue_stuck does about groups that wait for a row which is not there.
    void release_headless(Time now) {
        std::set<std::uint64_t> seen;
        for (std::size_t i = 0; i < rows.size(); i++) {
            const auto group = rows[i].holds() ? group_of(rows[i], ordering) : std::nullopt;
            if (group.has_value() && seen.insert(*group).second && rows[i].follows()) {
                release_of_others(rows[i], now);
            }
        }
    }

    std::vector<SimRow> rows;
    std::vector<OpenWriter> open;
    std::uint32_t next_writer = 1;
    Moment clock = 1;
    std::int64_t floor = 0;
    bool down = false;
    bool in_claim = false;  ///< a claim runs, with a snapshot taken before
    std::size_t followers_at_once = 64;

    // The relay's row.
    Ordering ordering = Ordering::per_key;
    Moment reordered_at = 0;
    bool paused = false;
    std::uint64_t relay_version = 1;

    void reorder(Ordering to) {
        ordering = to;
        reordered_at = ++clock;
        relay_version++;
    }

    // Shared memory.
    BucketMap buckets = new_bucket_map();
    std::set<std::string> alive;  ///< what the tokens of those who run begin with

  private:
    void flush() {
        not_flushed_.clear();
        flushed_floor_ = floor;
    }

    // In a transaction of its own, in the middle of another one.
    void release_of_others(const SimRow& member, Time now) {
        std::vector<SimRow> outer = std::exchange(undo_, {});
        release_group(member, ordering, now, false);
        commit();
        undo_ = std::move(outer);
    }

    std::vector<SimRow> undo_;
    std::int64_t flushed_floor_ = 0;
    std::vector<SimRow> not_flushed_;  ///< how rows were before, oldest first
};

}  // namespace outbox::test
