// One transaction of the drain cycle: what is known is settled first, then the floor is written now
// and then, then the next batch is claimed.
#include <algorithm>
#include <utility>

#include "postgres/event_copy.hpp"
#include "postgres/inject_fault.hpp"
#include "postgres/log.hpp"
#include "postgres/wait.hpp"
#include "worker/claim.hpp"
#include "worker/drainer.hpp"
#include "worker/marks.hpp"

namespace outbox::worker {

namespace {

// How often the floor is written: often enough that a restart walks little, seldom enough that its
// row does not rot.
constexpr Duration FLOOR_INTERVAL{5000};

// After so many failures a pass row by row is given up.
constexpr std::size_t MAX_FAILURES_ALONE = 3;

}  // namespace

void Drainer::transact() {
    if (drain_.plan().one_by_one) {
        transact_one_by_one();
        return;
    }
    free_spent_payloads();
    const TransactionPlan& plan = drain_.plan();
    postgres::Transaction transaction(plan.claim > 0 ? "outbox_drainer: settling and claiming"
                                                     : "outbox_drainer: settling");
    Marked marked;
    Claim claim(drain_, claim_limits(plan));
    claim.token = make_token(self_, ++claim_counter_, plan.suspicion);
    claim.lane = lane_;
    bool ok = begin(transaction) && write_plan(transaction, plan, marked) &&
              wake_held(transaction, plan, claim);
    std::optional<std::int64_t> written;
    ok = ok && write_floor_if_due(transaction, marked.lost.empty(), written);
    // An unlogged table, say: what is in hand is settled, nothing more is taken.
    const bool claims = ok && plan.claim > 0 && may_claim_now() && !refuse_table(table_);
    // Buckets are to be taken by another ordering first.
    claim.more = !claims;
    if (claims) {
        // What these marks give back lies behind the cursor, and comes before what is ahead of it.
        for (std::int64_t seq : marked.given_back) {
            claim.lane.add_hole(seq);
        }
        ok = claim.memory.create() && this->claim(transaction, claim);
        postgres::inject(postgres::Phase::inside_claim, ok && !claim.events.empty());
    }
    const postgres::CommitOutcome outcome =
        ok ? transaction.commit() : postgres::CommitOutcome::failed;
    const Time now = postgres::monotonic_now();
    if (outcome == postgres::CommitOutcome::failed) {
        transaction.abort();
        if (!note_failed_claim(claim, transaction.error())) {
            note_database_error(transaction.error());
        }
        drain_.transaction_failed(now);
        return;
    }
    postgres::inject(postgres::Phase::marked, marked.published > 0);
    postgres::inject(postgres::Phase::claimed, !claim.events.empty());
    floor_written_ = written.value_or(floor_written_);
    count(marked);
    announce(marked);
    for (const BatchMarks& marks : plan.marks) {
        retention_.note_published(now, marks.published);
    }
    finish_claim(now, std::move(claim), outcome == postgres::CommitOutcome::committed);
    look_again_at(marked);
}

// A new ordering means other groups, which fall into other buckets.
bool Drainer::may_claim_now() {
    if (ordering() != shared_ordering_) {
        share_at_ = Time{};
        return false;
    }
    return true;
}

// A whole source, or the whole line, takes what it can get.
GroupLimits Drainer::per_group() const {
    if (ordering() != Ordering::per_key) {
        return {};
    }
    return {MOST_OF_ONE_KEY,
            static_cast<std::size_t>(settings_.batch_bytes) / LEAST_KEYS_IN_BATCH_BYTES};
}

ClaimOrder::Limits Drainer::claim_limits(const TransactionPlan& plan) const {
    return {.rows = plan.claim,
            .changes = plan.walk,
            .bytes = static_cast<std::int64_t>(plan.claim_bytes),
            .per_group = per_group(),
            .rows_to_leave = left_.room()};
}

// Before the next claim takes as much.
void Drainer::free_spent_payloads() {
    for (const Event* event : drain_.spent_payloads()) {
        postgres::free_payload(*event);
    }
}

bool Drainer::write_plan(postgres::Transaction& transaction, const TransactionPlan& plan,
                         Marked& marked) {
    for (const BatchMarks& marks : plan.marks) {
        if (!write_marks(transaction, marks, marked)) {
            return false;
        }
    }
    return follow_up(transaction, plan.release_behind, plan.pause);
}

// Hands what was claimed to the state machine, which takes the marks of the plan as written.
void Drainer::finish_claim(Time now, Claim claim, bool durable) {
    TransactionResult result;
    if (drain_.plan().claim > 0) {
        take_lane(claim);
        result.left = left_.groups();
        result.rows_per_group = per_group().rows;
    }
    if (claim.sequence_moved) {
        shares_.forget_floors();
        retention_ = Retention();
        sequence_file_ = table_.sequence_file;
        floor_written_ = NO_FLOOR;
        floor_written_at_ = Time{};
    }
    for (const Event& event : claim.events) {
        unclaimable_.erase(event.seq);
    }
    if (claim.lane_read && claim.complete) {
        blocked_groups_.clear();
    }
    for (const auto& [group, seq] : claim.order.blocked()) {
        blocked_groups_.insert(group);
    }
    if (drain_.plan().claim > 0) {
        slot_.set_halted_on(claim.halted_on);
    }
    postgres::add(slot_.counters().deferred, claim.deferred.size());
    result.token = claim.token;
    result.claimed = claim.events;
    result.followed = claim.order.followed();
    result.more = claim.more;
    result.next_due = claim.next_due;
    result.woken_to = claim.woken_to;
    result.durable = durable;
    postgres::add(slot_.counters().claimed, claim.events.size());
    if (!claim.events.empty()) {
        postgres::add(slot_.counters().batches, 1);
        slot_.count_batch_size(claim.events.size());
        batches_[drain_.next_batch()] = std::move(claim.memory);
    }
    drain_.transacted(now, result);
    for (BatchId batch : drain_.finished_batches()) {
        batches_.erase(batch);
    }
    note_taken_back(claim.taken_back);
}

// The pass has committed: the lane stands where it came to, and knows what was left behind.
void Drainer::take_lane(Claim& claim) {
    lane_ = std::move(claim.lane);
    if (claim.sequence_moved) {
        left_.clear();
    }
    if (claim.lane_read) {
        left_.passed(claim.left, claim.shown_to, claim.order.left());
    }
}

// After all marks together failed twice, each row is written alone, so that one bad row (an
// operator's lock, a trigger that refuses it) keeps nobody else's outcome from being written.
void Drainer::transact_one_by_one() {
    free_spent_payloads();
    TransactionResult result;
    const auto write_alone = [&](const BatchMarks& marks, std::int64_t seq) {
        // So many failures are no matter of single rows, and each may have waited for a lock.
        if (result.unwritten.size() == MAX_FAILURES_ALONE) {
            result.untried.push_back(seq);
            return;
        }
        postgres::Transaction transaction("outbox_drainer: settling row by row");
        Marked marked;
        const TransactionPlan& plan = drain_.plan();
        const auto& last_of_group = plan.release_behind;
        const bool calls =
            std::find(last_of_group.begin(), last_of_group.end(), seq) != last_of_group.end();
        const std::vector<std::int64_t> ended(calls ? 1 : 0, seq);
        if (!begin(transaction) || !write_marks(transaction, marks, marked) ||
            !follow_up(transaction, ended, marks.ended.empty() ? "" : plan.pause) ||
            transaction.commit() == postgres::CommitOutcome::failed) {
            transaction.abort();
            note_database_error(transaction.error());
            result.unwritten.push_back(seq);
            return;
        }
        count(marked);
        announce(marked);
        retention_.note_published(postgres::monotonic_now(), marks.published);
        look_again_at(marked);
    };
    for (const BatchMarks& marks : drain_.plan().marks) {
        BatchMarks one;
        one.batch = marks.batch;
        one.token = marks.token;
        for (std::int64_t seq : marks.published) {
            one.published = {seq};
            write_alone(one, seq);
        }
        one.published.clear();
        for (const FailedMark& mark : marks.failed) {
            one.failed = {mark};
            write_alone(one, mark.seq);
        }
        one.failed.clear();
        for (const EndedMark& mark : marks.ended) {
            one.ended = {mark};
            write_alone(one, mark.seq);
        }
        one.ended.clear();
        for (std::int64_t seq : marks.deferred) {
            one.deferred = {seq};
            write_alone(one, seq);
        }
        one.deferred.clear();
        for (std::int64_t seq : marks.released) {
            one.released = {seq};
            write_alone(one, seq);
        }
        one.released.clear();
        for (std::int64_t seq : marks.renewed) {
            one.renewed = {seq};
            write_alone(one, seq);
        }
    }
    drain_.transacted(postgres::monotonic_now(), result);
    for (BatchId batch : drain_.finished_batches()) {
        batches_.erase(batch);
    }
}

// Starts a transaction as whoever owns the table now.
bool Drainer::begin(postgres::Transaction& transaction) {
    for (int attempt = 0; attempt < 2; attempt++) {
        if (!transaction.begin(table_.owner)) {
            return false;
        }
        const std::optional<postgres::TableInfo> table = postgres::table_info(transaction);
        if (!table.has_value()) {
            return false;
        }
        const bool same_owner = table->owner == table_.owner;
        table_ = *table;
        if (!OidIsValid(table_.event)) {
            transaction.abort();
            find_extension();
            return false;
        }
        if (same_owner) {
            return true;
        }
        transaction.abort();
    }
    return false;
}

// The floor of all drainers together. A mark that hit nothing leaves its row in a state unknown to
// us, so then the floor stays where it is. `written` is for when the transaction has committed.
bool Drainer::write_floor_if_due(postgres::Transaction& transaction, bool all_hit,
                                 std::optional<std::int64_t>& written) {
    const Time now = postgres::monotonic_now();
    const bool due = now >= floor_written_at_ + FLOOR_INTERVAL || drain_.stopping();
    if (!all_hit || !due) {
        return true;
    }
    const std::int64_t lowest = shares_.lowest_floor();
    if (lowest == floor_written_) {
        return true;
    }
    if (!postgres::write_floor(transaction, lowest)) {
        return false;
    }
    written = lowest;
    floor_written_at_ = now;
    return true;
}

// At a stop, so that the next start walks nothing that is over.
void Drainer::write_last_floor() {
    if (!prepared_) {
        return;
    }
    shares_.leave(reached());
    if (shares_.lowest_floor() == floor_written_) {
        return;
    }
    postgres::Transaction transaction("outbox_drainer: writing where to begin next time");
    std::optional<std::int64_t> written;
    if (!begin(transaction) || !write_floor_if_due(transaction, true, written) ||
        transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return;
    }
    floor_written_ = written.value_or(floor_written_);
}

// Rows given back, and rows that somebody else has changed, lie behind the cursor: without this
// nobody would look at them again.
void Drainer::look_again_at(const Marked& marked) {
    for (std::int64_t seq : marked.given_back) {
        lane_.add_hole(seq);
    }
    for (std::int64_t seq : marked.lost) {
        lane_.add_hole(seq);
    }
}

}  // namespace outbox::worker
