#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/fresh_lane.hpp"
#include "drain_seed.hpp"

namespace outbox::test {

/// What the writers and operators of a model world do.
struct LaneWorldOptions {
    std::size_t max_open_writers = 8;
    std::size_t keys = 3;
    double abort = 0.2;        ///< share of transactions that roll back
    double burn = 0.15;        ///< share of numbers lost to a savepoint that rolled back
    double prepare = 0.1;      ///< share of transactions that are prepared and linger
    double deferred = 0.03;    ///< share of rows that are born in the deferred lane
    double late_unlock = 0.3;  ///< share of transactions whose locks outlive their visibility
    bool operators = true;     ///< somebody locks and deletes rows
};

/// A database in which transactions draw numbers from a sequence, write rows and commit in any
/// order. Its clock counts actions; a snapshot is a moment: it sees what committed before.
class LaneWorld {
  public:
    using Moment = std::uint64_t;

    struct Row {
        std::int64_t seq = 0;
        std::size_t key = 0;
        std::size_t txn = 0;
        Moment drawn_at = 0;
        bool burnt = false;  ///< only the number exists
        bool deferred = false;
        bool deleted = false;
        bool locked = false;  ///< by an operator
        bool claimed = false;
        bool settled = false;
        bool excused = false;  ///< was passed over once, so it may come late
        int claims = 0;
    };

    LaneWorld(std::uint64_t seed, LaneWorldOptions options) : dice(seed), options_(options) {}

    /// Some actions of writers and operators, up to `most`.
    void churn(std::size_t most) {
        for (std::uint64_t left = dice.below(most + 1); left > 0; left--) {
            act();
        }
    }

    /// Ends every transaction and lets go of every lock.
    void finish() {
        while (!open_.empty()) {
            end(open_.size() - 1);
        }
        lingering_.clear();
        for (Row& row : rows) {
            row.locked = false;
        }
    }

    Moment snapshot() { return ++clock_; }
    bool visible(const Row& row, Moment snapshot) const {
        const Txn& txn = txns_[row.txn];
        return !row.burnt && !row.deleted && txn.committed && txn.ended_at < snapshot;
    }
    /// The process array's answer.
    bool is_running(const Writer& writer) const {
        return std::any_of(open_.begin(), open_.end(),
                           [&](std::size_t txn) { return txns_[txn].writer == writer; });
    }
    /// The lock manager's answer: who holds the sequence, some of them gone already.
    std::vector<Writer> holders() const {
        std::vector<Writer> holders;
        for (const std::vector<std::size_t>* list : {&open_, &lingering_}) {
            for (std::size_t txn : *list) {
                if (txns_[txn].drew) {
                    holders.push_back(txns_[txn].writer);
                }
            }
        }
        return holders;
    }
    bool holds_lock(const Writer& writer) const {
        const std::vector<Writer> all = holders();
        return std::find(all.begin(), all.end(), writer) != all.end();
    }

    /// Committed and waiting for this lane.
    bool is_waiting(const Row& row) const {
        return txns_[row.txn].committed && !row.burnt && !row.deleted && !row.deferred &&
               !row.claimed && !row.settled;
    }
    /// Waiting, or written by a transaction that may still commit.
    bool may_come(const Row& row) const {
        const bool open =
            std::find(open_.begin(), open_.end(), row.txn) != open_.end() && !row.burnt;
        return is_waiting(row) || (open && !row.deferred);
    }
    /// Whether consumers are promised to see `a` before `b`.
    bool comes_before(const Row& a, const Row& b) const {
        const Txn& txn = txns_[a.txn];
        return a.txn == b.txn ? a.seq < b.seq
                              : a.key == b.key && txn.committed && txn.ended_at < b.drawn_at;
    }

    Row& row(std::int64_t seq) { return rows[static_cast<std::size_t>(seq - 1)]; }
    std::int64_t last_seq() const { return static_cast<std::int64_t>(rows.size()); }

    std::vector<Row> rows;  ///< by number, from 1
    Dice dice;

  private:
    struct Txn {
        Writer writer;
        bool drew = false;
        bool prepared = false;
        bool committed = false;
        Moment ended_at = 0;
    };

    void act() {
        clock_++;
        if (options_.operators && dice.chance(0.1)) {
            operate();
        } else if (open_.empty() ||
                   (open_.size() < options_.max_open_writers && dice.chance(0.3))) {
            Txn txn;
            txn.writer = {static_cast<std::int32_t>(dice.below(16)), next_local_id_++};
            open_.push_back(txns_.size());
            txns_.push_back(txn);
        } else {
            step(dice.below(open_.size()));
        }
        if (!lingering_.empty() && dice.chance(0.3)) {
            lingering_.erase(lingering_.begin());
        }
    }

    void step(std::size_t at) {
        Txn& txn = txns_[open_[at]];
        if (txn.prepared) {
            if (dice.chance(0.1)) {
                end(at);
            }
        } else if (!txn.drew || dice.chance(0.5)) {
            draw(open_[at]);
        } else if (dice.chance(options_.prepare)) {
            txn.prepared = true;
        } else {
            end(at);
        }
    }

    void draw(std::size_t txn) {
        txns_[txn].drew = true;
        Row row;
        row.seq = last_seq() + 1;
        row.key = dice.below(options_.keys);
        row.txn = txn;
        row.drawn_at = ++clock_;
        row.burnt = dice.chance(options_.burn);
        row.deferred = dice.chance(options_.deferred);
        rows.push_back(row);
    }

    void end(std::size_t at) {
        const std::size_t txn = open_[at];
        txns_[txn].committed = !dice.chance(options_.abort);
        txns_[txn].ended_at = ++clock_;
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
        if (dice.chance(options_.late_unlock)) {
            lingering_.push_back(txn);
        }
    }

    // Somebody locks a recent row, lets go of one, or deletes one.
    void operate() {
        if (rows.empty()) {
            return;
        }
        const std::uint64_t back = dice.below(std::min<std::uint64_t>(rows.size(), 40));
        Row& row = rows[rows.size() - 1 - back];
        if (row.locked) {
            row.locked = false;
            row.deleted = dice.chance(0.3);
        } else if (is_waiting(row)) {
            row.locked = true;
        }
    }

    LaneWorldOptions options_;
    std::vector<Txn> txns_;
    std::vector<std::size_t> open_;
    std::vector<std::size_t> lingering_;  ///< ended, their locks are not gone yet
    Moment clock_ = 0;
    std::uint32_t next_local_id_ = 1;
};

/// How a pass is made: as fresh_lane.hpp says, or wrong in one point.
enum class PassVariant : std::uint8_t {
    correct,
    check_before_snapshot_only,
    ended_means_lock_gone,
    no_scan_of_newborn,
    fresh_before_gaps,
    drop_all_ended,
    no_ranges,
    newer_snapshot_for_gaps,
    writers_before_snapshot,
    advance_when_incomplete,
    incomplete_called_complete,
    forget_passed_over,
};

/// What went wrong in a world.
struct LaneVerdict {
    std::size_t lost = 0;
    std::size_t out_of_order = 0;
    std::size_t floor_too_high = 0;
    std::size_t walked_again = 0;
    std::size_t left_open = 0;  ///< ranges and holes that stay though nothing can come any more

    std::size_t total() const {
        return lost + out_of_order + floor_too_high + walked_again + left_open;
    }
};

struct LaneDriverOptions {
    PassVariant variant = PassVariant::correct;
    std::int64_t max_limit = 12;  ///< rows that one pass claims at most, drawn for each pass
    std::size_t churn = 5;        ///< actions between two steps, at most
    double fail = 0.1;            ///< share of passes whose transaction fails
    double restart = 0.02;        ///< chance of a crash after a pass
    double release = 0.1;         ///< share of claimed rows that are given back
    bool may_walk_again = false;  ///< the world is large enough for gaps to be joined
};

/// Drives a FreshLane over a LaneWorld.
class LaneDriver {
  public:
    LaneDriver(LaneWorld& world, LaneDriverOptions options) : world_(world), options_(options) {}

    void run(int passes) {
        for (int i = 0; i < passes; i++) {
            world_.churn(options_.churn * 2);
            pass();
            settle_some();
            if (world_.dice.chance(options_.restart)) {
                restart();
            }
        }
    }

    /// Lets all writers end and drains what is left.
    LaneVerdict finish() {
        world_.finish();
        options_.churn = 0;
        options_.fail = 0;
        options_.release = 0;
        const auto bound = world_.rows.size() + 20;
        for (std::size_t i = 0; i < bound && (claimed_in_pass_ > 0 || lane_.wants_pass() || i < 3);
             i++) {
            pass();
            settle_some();
        }
        for (const LaneWorld::Row& row : world_.rows) {
            verdict.lost += world_.is_waiting(row) ? 1 : 0;
        }
        verdict.left_open = lane_.range_count() + lane_.hole_count() +
                            (lane_.lowest_open() != lane_.cursor() + 1 ? 1 : 0);
        return verdict;
    }

    void pass() {
        const FreshLane before = lane_;
        const std::vector<std::int64_t> claims = claim();
        claimed_in_pass_ = claims.size();
        if (world_.dice.chance(options_.fail)) {
            lane_ = before;
            return;
        }
        for (std::int64_t seq : claims) {
            note_claim(world_.row(seq));
        }
        if (is(PassVariant::no_ranges)) {
            lane_ = FreshLane(lane_.cursor());
        }
        check_floor();
        most_ranges = std::max(most_ranges, lane_.range_count());
        most_gaps = std::max(most_gaps, lane_.gap_count());
    }

    const FreshLane& lane() const { return lane_; }

    LaneVerdict verdict;
    std::size_t most_ranges = 0;
    std::size_t most_gaps = 0;
    std::size_t claimed = 0;
    std::size_t incomplete_passes = 0;

  private:
    using Fate = SeenRow::Fate;

    bool is(PassVariant variant) const { return options_.variant == variant; }

    void note_ended(FreshLane::Moment moment) {
        for (const Writer& writer : lane_.writers()) {
            const bool ended = is(PassVariant::ended_means_lock_gone) ? !world_.holds_lock(writer)
                                                                      : !world_.is_running(writer);
            if (ended) {
                lane_.note_ended(writer, moment);
            }
        }
    }

    // The seven steps. Returns what was claimed, in claim order.
    std::vector<std::int64_t> claim() {
        std::vector<std::int64_t> claims;
        limit_ = static_cast<std::size_t>(world_.dice.between(1, options_.max_limit));
        lane_.begin_pass();
        note_ended(FreshLane::Moment::before_snapshot);  // 1
        const std::vector<Writer> early_writers = world_.holders();
        world_.churn(is(PassVariant::writers_before_snapshot) ? 30 : options_.churn);
        const LaneWorld::Moment snapshot = world_.snapshot();  // 2
        world_.churn(options_.churn);
        if (!is(PassVariant::check_before_snapshot_only)) {  // 3
            note_ended(is(PassVariant::drop_all_ended) ? FreshLane::Moment::before_snapshot
                                                       : FreshLane::Moment::after_snapshot);
        }
        world_.churn(options_.churn);
        std::vector<SeenRow> fresh;
        if (is(PassVariant::fresh_before_gaps)) {
            fresh = read({{lane_.cursor() + 1, world_.last_seq()}}, snapshot, claims);
            limit_ = world_.rows.size() + 1;
        }
        const LaneWorld::Moment gap_snapshot =
            is(PassVariant::newer_snapshot_for_gaps) ? world_.snapshot() : snapshot;
        const std::vector<SeenRow> late = read(lane_.gaps_to_scan(), gap_snapshot, claims);  // 4
        const bool complete = claims.size() < limit_ || is(PassVariant::incomplete_called_complete);
        incomplete_passes += complete ? 0 : 1;
        world_.churn(options_.churn);
        lane_.gaps_scanned(late, complete);  // 5
        limit_ += is(PassVariant::advance_when_incomplete) ? 3 : 0;
        if (lane_.may_advance() || is(PassVariant::advance_when_incomplete)) {  // 6
            if (!is(PassVariant::fresh_before_gaps)) {
                fresh = read({{lane_.cursor() + 1, world_.last_seq()}}, snapshot, claims);
            }
            world_.churn(options_.churn);
            lane_.advanced(fresh, is(PassVariant::writers_before_snapshot)
                                      ? early_writers
                                      : world_.holders());  // 7
        }
        if (is(PassVariant::no_scan_of_newborn)) {
            lane_.begin_pass();
            lane_.gaps_scanned({}, true);
        }
        return claims;
    }

    // Reads rows in ascending order and claims what can be claimed, until the limit is reached.
    std::vector<SeenRow> read(const std::vector<Interval>& intervals, LaneWorld::Moment snapshot,
                              std::vector<std::int64_t>& claims) {
        std::vector<SeenRow> seen;
        for (const Interval& interval : intervals) {
            for (std::int64_t seq = interval.lo;
                 seq <= std::min(interval.hi, world_.last_seq()) && claims.size() < limit_; seq++) {
                LaneWorld::Row& row = world_.row(seq);
                if (!world_.visible(row, snapshot)) {
                    continue;
                }
                Fate fate = Fate::claimed;
                if (row.deferred || row.claimed || row.settled) {
                    fate = Fate::elsewhere;
                    verdict.walked_again +=
                        !row.deferred && !options_.may_walk_again && seq > walked_up_to_ ? 1 : 0;
                } else if (row.locked) {
                    fate =
                        is(PassVariant::forget_passed_over) ? Fate::elsewhere : Fate::passed_over;
                    row.excused = true;
                } else {
                    claims.push_back(seq);
                }
                seen.push_back({seq, fate});
            }
        }
        return seen;
    }

    void note_claim(LaneWorld::Row& row) {
        for (; first_unclaimed_ < row.seq && world_.row(first_unclaimed_).claims > 0;
             first_unclaimed_++) {
        }
        for (std::int64_t seq = first_unclaimed_; seq < row.seq; seq++) {
            const LaneWorld::Row& other = world_.row(seq);
            if (other.claims == 0 && !other.excused && !other.locked && world_.is_waiting(other) &&
                world_.comes_before(other, row) && row.claims == 0) {
                verdict.out_of_order++;
            }
        }
        row.claimed = true;
        row.claims++;
        claimed++;
        in_hand_.insert(row.seq);
    }

    // The outcomes of some rows in hand are written, and some rows are given back.
    void settle_some() {
        for (auto seq = in_hand_.begin(); seq != in_hand_.end();) {
            if (world_.dice.chance(0.4)) {
                ++seq;
                continue;
            }
            LaneWorld::Row& row = world_.row(*seq);
            row.claimed = false;
            row.settled = !world_.dice.chance(options_.release);
            if (!row.settled) {
                lane_.add_hole(row.seq);
            }
            seq = in_hand_.erase(seq);
        }
        if (world_.dice.chance(0.2)) {
            const std::int64_t held = in_hand_.empty() ? INT64_MAX : *in_hand_.begin();
            floor_ = std::min(lane_.lowest_open(), held) - 1;
        }
    }

    // The drainer dies; the next one takes back what it held and starts above the floor.
    void restart() {
        for (std::int64_t seq : in_hand_) {
            world_.row(seq).claimed = false;
        }
        in_hand_.clear();
        walked_up_to_ = std::max(walked_up_to_, lane_.cursor());
        lane_ = FreshLane(floor_);
        check_floor();
    }

    // No row below may come any more, so that a restart from there loses nothing.
    void check_floor() {
        for (std::int64_t seq = closed_up_to_ + 1; seq < lane_.lowest_open(); seq++) {
            verdict.floor_too_high += world_.may_come(world_.row(seq)) ? 1 : 0;
        }
        // Only a released row lowers the floor again, and that is in hand until then.
        const std::int64_t held = in_hand_.empty() ? INT64_MAX : *in_hand_.begin();
        closed_up_to_ = std::min(lane_.lowest_open(), held) - 1;
    }

    LaneWorld& world_;
    LaneDriverOptions options_;
    FreshLane lane_;
    std::size_t limit_ = 0;
    std::size_t claimed_in_pass_ = 0;
    std::set<std::int64_t> in_hand_;
    std::int64_t floor_ = 0;
    std::int64_t closed_up_to_ = 0;
    std::int64_t walked_up_to_ = 0;
    std::int64_t first_unclaimed_ = 1;
};

}  // namespace outbox::test
