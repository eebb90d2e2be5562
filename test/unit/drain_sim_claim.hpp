#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/claim_order.hpp"
#include "core/drain.hpp"
#include "core/fresh_lane.hpp"
#include "core/left_rows.hpp"
#include "drain_sim_database.hpp"

namespace outbox::test {

/// What a simulated shell does otherwise than the worker, to show that the simulation would notice.
enum class Deviation : std::uint8_t {
    none,
    fresh_ignores_holder,       ///< of its group in the deferred lane
    due_ignores_row_below,      ///< likewise
    gaps_do_not_block,          ///< rows of gaps that cannot be taken stop nobody
    due_beyond_walk,            ///< takes what is due where the walk has not come
    keeps_room_for_waiting,     ///< for what is due and has to wait for the walk
    due_before_gaps,            ///< takes what is due without having looked behind the cursor
    holder_not_locked,          ///< while others are deferred behind it
    defers_behind_missed,       ///< behind a row that was not had, be it locked or ended
    keeps_rows_behind_locked,   ///< although an earlier row of their group was not had
    releases_early,             ///< calls followers while rows of their group are in hand: harmless
    never_releases,             ///< leaves followers to the sweep
    forgets_left,               ///< what it left behind the cursor for want of room
    passes_left_by,             ///< does not let what it left go before what comes later
    gives_up_rows_in_hand,      ///< hands buckets over with them
    keeps_lane_at_handover,     ///< does not go back to the floor of the buckets that it takes
    forgets_given_back,         ///< a row that is given back is no hole
    sweeps_groups_in_hand,      ///< and those that wait for a locked row: harmless
    sweeps_late_after_reorder,  ///< does not call what waited by the old ordering at once
    no_search_for_killers,      ///< whatever a drainer died with is claimed again as it was
    charges_neighbours,         ///< of a row that may have killed its drainer
    commits_not_flushed,        ///< the claim's among them
    guards_by_worker,           ///< marks by the name of the worker instead of the claim
    marks_what_is_taken_back,   ///< rows that were taken from this claim and not claimed since
    forgets_writers,            ///< the cursor moves on whoever is writing
    reads_gaps_last,            ///< claims fresh rows before what a finished writer left
    never_wakes_held,           ///< although what they wait for is there
    believes_without_asking,    ///< that an exchange is there
    tries_beside_others,        ///< a suspect, on the channel of all
    confirms_by_high_water,     ///< an ack settles all that was sent before
    charges_on_loss,            ///< what was unconfirmed when the connection broke
    charges_the_window,         ///< all that was unconfirmed on a channel that was closed
};

/// Payloads of more have memory of their own, and of that those that were given back.
inline constexpr std::size_t LEAST_ALONE = 30;
inline char payload_memory;
inline char spent_payload_memory;

/// What one claim needs to know of its drainer.
struct SimClaimContext {
    SimDatabase& database;
    SimLedger& ledger;
    Drain& drain;
    Time now;
    std::string token;
    std::size_t room = 0;
    BucketMask buckets = 0;
    std::size_t drainers_sharing = 1;
    GroupLimits per_group;
    const LeftRows& left;
    std::size_t rows_to_leave = 0;
    Deviation deviation = Deviation::none;
    /// Whether whoever made the claim is gone.
    std::function<bool(const std::string&)> is_dead;
    /// Gives rows of dead drainers back; false: the transaction fails.
    std::function<bool(const std::vector<std::int64_t>&)> take_back;
    /// Others act between two steps.
    std::function<void()> meanwhile;
};

/// Claims rows as src/worker/claim.cpp does, step by step.
class SimClaim {
  public:
    using Verdict = ClaimOrder::Verdict;

    /// A row as a walk found it under the snapshot.
    struct Walked {
        SimRow row;
        std::optional<std::uint64_t> group;
        std::int64_t holder = 0;
    };

    SimClaim(SimClaimContext context, FreshLane start)
        : lane(std::move(start)),
          c_(std::move(context)),
          ordering_(c_.drain.settings().ordering),
          order(c_.drain, {.rows = c_.room,
                           .changes = c_.drain.plan().walk,
                           .bytes = static_cast<std::int64_t>(c_.drain.plan().claim_bytes),
                           .per_group = c_.per_group,
                           .rows_to_leave = c_.rows_to_leave}) {}

    bool run() {
        lane.begin_pass();
        note_ended(FreshLane::Moment::before_snapshot);
        c_.meanwhile();
        take_snapshot();
        c_.meanwhile();
        note_ended(FreshLane::Moment::after_snapshot);
        if (!walk()) {
            return false;
        }
        c_.meanwhile();
        take_wanted();
        c_.meanwhile();
        defer_others();
        c_.meanwhile();
        report_to_lane();
        find_next_due();
        return true;
    }

    FreshLane lane;
    std::vector<Event> events;
    std::optional<Duration> next_due;
    bool more = false;
    bool lane_read = false;
    bool complete = true;
    LeftRows::Chosen left;
    std::int64_t shown_to = INT64_MAX;  ///< behind the cursor

  private:
    SimClaimContext c_;
    Ordering ordering_;

  public:
    ClaimOrder order;

  private:
    bool is(Deviation deviation) const { return c_.deviation == deviation; }

    void note_ended(FreshLane::Moment moment) {
        for (const Writer& writer : lane.writers()) {
            if (!c_.database.is_running(writer)) {
                lane.note_ended(writer, moment);
            }
        }
    }

    void take_snapshot() {
        snapshot_at_ = ++c_.database.clock;
        snapshot_ = c_.database.rows;
        for (const SimRow& row : snapshot_) {
            if (row.holds()) {
                held_.push_back({&row, group_of(row, ordering_)});
            }
        }
    }

    std::int64_t lowest_holder(const SimRow& row, std::optional<std::uint64_t> group) const {
        if (has_no_holders() || !row.fresh() || !group.has_value()) {
            return 0;
        }
        for (const auto& [held, its_group] : held_) {
            if (its_group == group) {
                return held->seq;
            }
        }
        return 0;
    }
    std::int64_t holder_below(const SimRow& row, std::optional<std::uint64_t> group) const {
        std::int64_t below = 0;
        if (has_no_holders() || !group.has_value()) {
            return 0;
        }
        for (const auto& [held, its_group] : held_) {
            if (held->seq < row.seq && its_group == group) {
                below = held->seq;
            }
        }
        return below;
    }
    bool has_no_holders() const {
        return ordering_ != Ordering::per_key && ordering_ != Ordering::per_source;
    }

    Walked walked(const SimRow& row) const {
        const auto group = group_of(row, ordering_);
        return {row, group, is(Deviation::fresh_ignores_holder) ? 0 : lowest_holder(row, group)};
    }

    static Candidate candidate(const Walked& row) {
        return {row.row.seq, row.group, row.holder, static_cast<std::int64_t>(row.row.bytes)};
    }
    static bool has_room(Verdict verdict) {
        return verdict != Verdict::full && verdict != Verdict::stop;
    }

    bool walk() {
        if (ordering_ == Ordering::stop_the_line) {
            look_whether_halted();
        }
        if (halted_for_.has_value()) {
            return true;
        }
        const std::size_t half = std::max<std::size_t>(c_.room / 2, 1);
        walk_due(half);
        const std::int64_t last = c_.database.last_drawn();
        more = due_.size() == half;
        if (halted_on_ != 0) {
            take_due();
            return true;
        }
        if (is(Deviation::reads_gaps_last) && !walk_ahead(last)) {
            return false;
        }
        if (!read_gaps()) {
            return false;
        }
        lane_read = true;
        if (is(Deviation::due_before_gaps)) {
            take_due();
        }
        take_from_gaps(is(Deviation::keeps_room_for_waiting) ? std::min(due_.size(), half)
                                                             : takeable_due());
        if (!is(Deviation::due_before_gaps)) {
            take_due();
        }
        if (!complete || order.is_full()) {
            more = true;
            return true;
        }
        return is(Deviation::reads_gaps_last) || walk_ahead(last);
    }

    void look_whether_halted() {
        const SimRow* first = nullptr;
        for (const auto& [held, group] : held_) {
            if (held->next_attempt < NEVER &&
                (first == nullptr || held->next_attempt < first->next_attempt)) {
                first = held;
            }
        }
        if (first != nullptr) {
            halted_on_ = first->seq;
            if (first->next_attempt > c_.now) {
                halted_for_ = *first->next_attempt - c_.now;
            }
        }
    }

    // Locks what it gives, judged by its newest version.
    void walk_due(std::size_t most) {
        const auto is_due = [this](const SimRow& row) {
            return row.unended() && row.next_attempt.has_value() && row.next_attempt <= c_.now &&
                   row.token.empty();
        };
        std::vector<const SimRow*> found;
        for (const SimRow& row : snapshot_) {
            if (is_due(row) && owns(row)) {
                found.push_back(&row);
            }
        }
        std::stable_sort(found.begin(), found.end(), [](const SimRow* a, const SimRow* b) {
            return a->next_attempt < b->next_attempt;
        });
        for (const SimRow* row : found) {
            const SimRow& now = c_.database.row(row->seq);
            if (due_.size() < most && !now.locked && is_due(now)) {
                c_.database.lock(row->seq);
                const auto group = group_of(*row, ordering_);
                due_.push_back(
                    {*row, group,
                     is(Deviation::due_ignores_row_below) ? 0 : holder_below(*row, group)});
            }
        }
    }

    bool read_gaps() {
        left = c_.left.choose(c_.drain, c_.per_group, c_.room);
        more = more || left.more;
        if (!is(Deviation::passes_left_by)) {
            order.set_left(left.rest);
        }
        const std::size_t limit = c_.drain.plan().walk + lane.hole_count() + left.seqs.size();
        std::size_t read = 0;
        for (const Interval& gap : lane.gaps_to_scan(left.seqs)) {
            read += read_rows(gap.lo, gap.hi, limit - read, in_gaps_);
        }
        const std::size_t before = in_gaps_.size();
        if (!stop_at_dead_claim(in_gaps_)) {
            return false;
        }
        lock_passed_over();
        complete = before < limit && in_gaps_.size() == before;
        walked_to_ = behind_cursor();
        if (!is(Deviation::due_beyond_walk)) {
            order.set_walked_to(walked_to_, c_.database.last_drawn());
        }
        return true;
    }

    std::int64_t behind_cursor() const {
        return complete ? lane.cursor() : in_gaps_.empty() ? 0 : in_gaps_.back().row.seq;
    }

    // Room is kept for those only that need not wait.
    std::size_t takeable_due() const {
        return static_cast<std::size_t>(
            std::count_if(due_.begin(), due_.end(), [this](const Walked& due) {
                return !due.group.has_value() || due.row.seq <= walked_to_;
            }));
    }

    std::size_t read_rows(std::int64_t lo, std::int64_t hi, std::size_t most,
                          std::vector<Walked>& rows) {
        std::size_t read = 0;
        const auto size = static_cast<std::int64_t>(snapshot_.size());
        for (std::int64_t seq = lo; seq <= std::min(hi, size) && read < most; seq++) {
            const SimRow& row = snapshot_[static_cast<std::size_t>(seq - 1)];
            if (row.visible()) {
                rows.push_back(walked(row));
                read++;
                c_.ledger.walked++;
            }
        }
        return read;
    }

    bool stop_at_dead_claim(std::vector<Walked>& rows) {
        const auto is_dead_claim = [this](const Walked& w) {
            return w.row.fresh() && !w.row.token.empty() && owns(w.row) && c_.is_dead(w.row.token);
        };
        const auto first = std::find_if(rows.begin(), rows.end(), is_dead_claim);
        std::vector<std::int64_t> dead;
        for (auto row = first; row != rows.end(); ++row) {
            if (is_dead_claim(*row)) {
                dead.push_back(row->row.seq);
            }
        }
        taken_back_ += dead.size();
        const bool ok = dead.empty() || c_.take_back(dead);
        rows.erase(first, rows.end());
        return ok;
    }

    bool owns(const SimRow& row) const {
        return ((c_.buckets >> (bucket_hash_of(row, ordering_) & 63U)) & 1U) != 0;
    }
    bool stands_in_the_way(const Walked& w) const {
        return owns(w.row) && w.row.fresh() && !c_.drain.holds(w.row.token) &&
               !is(Deviation::gaps_do_not_block);
    }
    // All at once, where the worker takes turns.
    void lock_passed_over() {
        for (const Walked& w : in_gaps_) {
            if (is_free(w) && lane.was_passed_over(w.row.seq) &&
                !c_.database.row(w.row.seq).locked) {
                c_.database.lock(w.row.seq);
                locked_.insert(w.row.seq);
            }
        }
    }
    bool is_free(const Walked& w) const {
        return owns(w.row) && w.row.fresh() && w.row.token.empty();
    }
    bool may_be_claimed(const Walked& w) const {
        return is_free(w) && (!lane.was_passed_over(w.row.seq) || locked_.contains(w.row.seq));
    }

    void take_from_gaps(std::size_t room_for_due) {
        std::vector<bool> takeable;
        for (const Walked& row : in_gaps_) {
            takeable.push_back(may_be_claimed(row));
            if (!takeable.back() && stands_in_the_way(row)) {
                order.block(candidate(row));
            }
        }
        order.limit_rows(c_.room - room_for_due);
        std::size_t covered = 0;
        for (const Walked& row : in_gaps_) {
            if (takeable[covered] && !has_room(order.judge_fresh(candidate(row)))) {
                break;
            }
            covered++;
        }
        for (std::size_t i = covered; i < in_gaps_.size(); i++) {
            if (stands_in_the_way(in_gaps_[i])) {
                order.block(candidate(in_gaps_[i]));
            }
        }
        complete = complete && covered == in_gaps_.size();
        in_gaps_.resize(covered);
        shown_to = behind_cursor();
        order.limit_rows(c_.room);
    }

    void take_due() {
        for (const Walked& row : due_) {
            if (!has_room(order.judge_due(candidate(row)))) {
                more = true;
                return;
            }
        }
    }

    bool walk_ahead(std::int64_t last) {
        const std::size_t limit = c_.drain.plan().walk * c_.drainers_sharing;
        const std::size_t read = read_rows(lane.cursor() + 1, last, limit, fresh_);
        if (!stop_at_dead_claim(fresh_)) {
            return false;
        }
        std::size_t covered = 0;
        for (const Walked& row : fresh_) {
            if (may_be_claimed(row)) {
                if (!has_room(order.judge_fresh(candidate(row)))) {
                    break;
                }
            } else if (stands_in_the_way(row)) {
                order.block(candidate(row));
            }
            covered++;
        }
        fresh_.resize(covered);
        more = more || read == limit || covered < read;
        return true;
    }

    void take_wanted() {
        std::vector<std::int64_t> seqs;
        for (std::int64_t seq : order.wanted()) {
            const SimRow& now = c_.database.row(seq);
            if (!now.locked && now.unended() && now.token.empty()) {
                SimRow& row = c_.database.change(seq);
                row.token = c_.token;
                row.leased_at = c_.now;
                row.claim_snapshot = snapshot_at_;
                row.claim_ordering = ordering_;
                seqs.push_back(seq);
            }
        }
        std::sort(seqs.begin(), seqs.end());
        std::vector<std::int64_t> behind = order.behind_locked(seqs);
        if (is(Deviation::keeps_rows_behind_locked)) {
            behind.clear();
        }
        leave_behind(behind);
        for (std::int64_t seq : seqs) {
            if (!std::binary_search(behind.begin(), behind.end(), seq)) {
                add_event(c_.database.row(seq));
            }
        }
    }

    // Given back, not deferred: the earlier row may have been missed because it has ended.
    void leave_behind(const std::vector<std::int64_t>& behind) {
        for (std::int64_t seq : behind) {
            SimRow& row = c_.database.change(seq);
            row.token.clear();
            if (ordering_ != Ordering::stop_the_line && is(Deviation::defers_behind_missed)) {
                row.next_attempt = NEVER;
                deferred_.push_back(seq);
            }
        }
    }

    static std::string_view payload_of(const SimRow& row) {
        static const std::string text(100, 'x');
        return std::string_view(text).substr(0, row.bytes);
    }

    void add_event(const SimRow& row) {
        Event event;
        event.seq = row.seq;
        event.payload = payload_of(row);
        event.payload_memory = row.bytes > LEAST_ALONE ? &payload_memory : nullptr;
        if (row.exchange != 1 || row.seq % 2 == 0) {
            event.destination = EXCHANGES[row.exchange];
        }
        event.attempts = row.attempts;
        event.deferred = row.next_attempt.has_value();
        event.group = order.group_of(row.seq);
        event.poisoned = row.last_error.starts_with("poison:");
        event.leads = order.leads(row.seq);
        events.push_back(event);
        c_.ledger.claimed++;
    }

    void defer_others() {
        std::set<std::int64_t> standing;
        for (const ClaimOrder::Deferral& deferral : order.deferrals()) {
            if (deferral.behind == 0) {
                continue;
            }
            const SimRow& holder = c_.database.row(deferral.behind);
            const bool stands =
                !holder.locked && holder.unended() && holder.next_attempt.has_value();
            if (is(Deviation::holder_not_locked)) {
                standing.insert(deferral.behind);
            } else if (stands) {
                c_.database.lock(deferral.behind);
                standing.insert(deferral.behind);
            }
        }
        c_.meanwhile();
        for (const ClaimOrder::Deferral& deferral : order.deferrals()) {
            const SimRow& now = c_.database.row(deferral.seq);
            if ((deferral.behind == 0 || standing.contains(deferral.behind)) && now.unended() &&
                now.token.empty() && !now.locked) {
                c_.database.change(deferral.seq).next_attempt = NEVER;
                deferred_.push_back(deferral.seq);
                c_.ledger.deferred++;
            }
        }
        std::sort(deferred_.begin(), deferred_.end());
    }

    void report_to_lane() {
        if (!lane_read) {
            return;
        }
        lane.gaps_scanned(seen(in_gaps_), complete);
        if (lane.may_advance() && !fresh_.empty()) {
            lane.advanced(seen(fresh_), is(Deviation::forgets_writers) ? std::vector<Writer>()
                                                                       : c_.database.writers());
        }
    }
    std::vector<SeenRow> seen(const std::vector<Walked>& rows) const {
        std::vector<SeenRow> result;
        for (const Walked& row : rows) {
            result.push_back({row.row.seq, fate_of(row.row)});
        }
        return result;
    }
    SeenRow::Fate fate_of(const SimRow& row) const {
        if (std::any_of(events.begin(), events.end(),
                        [&](const Event& event) { return event.seq == row.seq; })) {
            return SeenRow::Fate::claimed;
        }
        if (!row.fresh() || !owns(row) || c_.drain.holds(row.token) ||
            std::binary_search(deferred_.begin(), deferred_.end(), row.seq) ||
            order.leaves(row.seq)) {
            return SeenRow::Fate::elsewhere;
        }
        return SeenRow::Fate::passed_over;
    }

    void find_next_due() {
        if (halted_for_.has_value()) {
            next_due = halted_for_;
            return;
        }
        const bool progress =
            !events.empty() || !fresh_.empty() || !deferred_.empty() || taken_back_ > 0;
        const bool wants_more = more || lane.wants_pass();
        more = progress && wants_more;
        if (more) {
            return;
        }
        for (const SimRow& row : snapshot_) {
            if (row.unended() && row.next_attempt > c_.now && row.next_attempt < NEVER &&
                row.token.empty()) {
                const Duration left = *row.next_attempt - c_.now;
                next_due = std::min(next_due.value_or(left), left);
            }
        }
        if (wants_more || lane.hole_count() > 0) {
            const Duration retry{500};
            next_due = std::min(next_due.value_or(retry), retry);
        }
    }

    Moment snapshot_at_ = 0;
    std::vector<SimRow> snapshot_;
    std::vector<std::pair<const SimRow*, std::optional<std::uint64_t>>> held_;
    std::vector<Walked> due_;
    std::vector<Walked> in_gaps_;
    std::vector<Walked> fresh_;
    std::vector<std::int64_t> deferred_;
    std::int64_t walked_to_ = INT64_MAX;
    std::set<std::int64_t> locked_;  ///< of what was passed over
    std::size_t taken_back_ = 0;
    std::optional<Duration> halted_for_;
    std::int64_t halted_on_ = 0;
};

}  // namespace outbox::test
