// The claim: one pass over the fresh lane and what is due of the deferred one, under one snapshot,
// in the order that core/fresh_lane.hpp prescribes. What may go before what is decided by
// core/claim_order.hpp.
#include "worker/claim.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "postgres/event_copy.hpp"
#include "postgres/log.hpp"
#include "postgres/wait.hpp"
#include "postgres/writers.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

namespace {

using Verdict = ClaimOrder::Verdict;

// A walk of fewer rows costs as much.
constexpr std::size_t LEAST_WALK = 16;

bool is_free(const postgres::WalkedRow& row) {
    return row.fresh && row.claimed_by.empty();
}

Candidate candidate(const postgres::WalkedRow& row) {
    return {row.seq, row.group, row.holder, row.payload_bytes};
}

Candidate fresh_candidate(const postgres::WalkedRow& row,
                          const std::unordered_map<std::uint64_t, std::int64_t>& holders) {
    const auto holder = row.group.has_value() ? holders.find(*row.group) : holders.end();
    return {row.seq, row.group, holder == holders.end() ? 0 : holder->second, row.payload_bytes};
}

// Not a full disk, a lock, a cancel or a shutdown, which say nothing of the row.
bool may_lie_in_the_row(const postgres::PgError& error) {
    switch (ERRCODE_TO_CATEGORY(error.sqlstate)) {
        case MAKE_SQLSTATE('4', '0', '0', '0', '0'):
        case MAKE_SQLSTATE('5', '3', '0', '0', '0'):
        case MAKE_SQLSTATE('5', '7', '0', '0', '0'):
        case MAKE_SQLSTATE('5', '8', '0', '0', '0'):
        case MAKE_SQLSTATE('X', 'X', '0', '0', '0'):
            return false;
        default:
            return error.sqlstate != ERRCODE_LOCK_NOT_AVAILABLE;
    }
}

bool has_room(Verdict verdict) {
    return verdict != Verdict::full && verdict != Verdict::stop;
}

bool contains(std::span<const std::int64_t> seqs, std::int64_t seq) {
    return std::binary_search(seqs.begin(), seqs.end(), seq);
}

bool was_claimed(std::span<const Event> claimed, std::int64_t seq) {
    const auto found = std::lower_bound(
        claimed.begin(), claimed.end(), seq,
        [](const Event& event, std::int64_t wanted) { return event.seq < wanted; });
    return found != claimed.end() && found->seq == seq;
}

}  // namespace

// Where the rows are. Not of those that we have locked: it takes a statement to update them.
std::vector<postgres::PlacedRow> Drainer::Claim::wanted() const {
    std::unordered_map<std::int64_t, std::uint64_t> places;
    for (const std::span<const postgres::WalkedRow> rows : {in_gaps, fresh}) {
        for (const postgres::WalkedRow& row : rows) {
            places.emplace(row.seq, contains(locked, row.seq) ? 0 : row.place);
        }
    }
    std::vector<postgres::PlacedRow> placed;
    placed.reserve(order.wanted().size());
    for (std::int64_t seq : order.wanted()) {
        placed.push_back({seq, places[seq]});
    }
    return placed;
}

bool Drainer::claim(postgres::Transaction& transaction, Claim& claim) {
    claim.lane.begin_pass();
    if (!note_ended_writers(transaction, claim.lane, FreshLane::Moment::before_snapshot) ||
        !transaction.take_snapshot() ||
        !note_ended_writers(transaction, claim.lane, FreshLane::Moment::after_snapshot)) {
        return false;
    }
    return walk(transaction, claim) && take_wanted(transaction, claim) &&
           defer_others(transaction, claim) && report_to_lane(transaction, claim) &&
           find_next_due(transaction, claim);
}

bool Drainer::note_ended_writers(postgres::Transaction& transaction, FreshLane& lane,
                                 FreshLane::Moment moment) {
    for (const Writer& writer : lane.writers()) {
        bool running = true;
        if (!transaction.run([&] { running = postgres::writer_is_running(writer); })) {
            return false;
        }
        if (!running) {
            lane.note_ended(writer, moment);
        }
    }
    return true;
}

// Reads what this pass may take: what appeared in gaps, due rows of the deferred lane, at most half
// of the room, then fresh rows. Fresh rows are only read when the gaps were read to their end.
bool Drainer::walk(postgres::Transaction& transaction, Claim& claim) {
    if (ordering() == Ordering::stop_the_line && !look_whether_halted(transaction, claim)) {
        return false;
    }
    if (claim.halted_for.has_value()) {
        return true;
    }
    const std::size_t half = std::max<std::size_t>(claim.room / 2, 1);
    // Those that nobody can claim must not hide the others.
    const auto due =
        postgres::walk_due(transaction, ordering(), buckets_, half + unclaimable_.size());
    // The sequence after the snapshot: whatever the snapshot shows was drawn by then. A row above
    // the last number brought its own and lies in the deferred lane; the cursor must not follow it.
    const auto last =
        due.has_value() ? postgres::last_drawn(transaction, table_.sequence) : std::nullopt;
    if (!last.has_value()) {
        return false;
    }
    if (sequence_moved_back(claim.lane, *last)) {
        claim.lane = FreshLane(0);
        claim.lane.begin_pass();
        claim.sequence_moved = true;
    }
    claim.due = *due;
    claim.more = due->size() >= half + unclaimable_.size();
    if (claim.halted_on != 0) {
        take_due(claim);
        return true;
    }
    if (!read_gaps(transaction, claim)) {
        return false;
    }
    claim.lane_read = true;
    // What is read and finds no room blocks its group; what is due is held up by the rest alone.
    claim.order.set_walked_to(walked_to(claim), *last);
    take_from_gaps(claim, std::min(room_for_due(claim, *last), half));
    claim.shown_to = walked_to(claim);
    take_due(claim);
    if (!claim.complete || claim.order.is_full()) {
        claim.more = true;
    } else if (!walk_ahead(transaction, claim, *last)) {
        return false;
    }
    retry_unclaimable(claim);
    return true;
}

// With stop_the_line a row that failed, or was requeued, goes alone, and all else waits for it.
bool Drainer::look_whether_halted(postgres::Transaction& transaction, Claim& claim) {
    const auto halted = postgres::halted_row(transaction);
    if (!halted.has_value()) {
        return false;
    }
    claim.halted_on = halted->seq;
    if (halted->seq != 0 && !halted->due) {
        claim.halted_for = halted->due_in;
    }
    return true;
}

// What was left behind the cursor and has room now is read with the gaps.
bool Drainer::read_gaps(postgres::Transaction& transaction, Claim& claim) {
    if (!claim.sequence_moved) {
        claim.left = left_.choose(drain_, per_group(), claim.room);
        claim.order.set_left(claim.left.rest);
        claim.more = claim.more || claim.left.more;
    }
    const std::vector<Interval> gaps = claim.lane.gaps_to_scan(claim.left.seqs);
    if (gaps.empty()) {
        return true;
    }
    const std::size_t limit = claim.to_walk + claim.lane.hole_count() + claim.left.seqs.size();
    const auto rows = postgres::walk_gaps(transaction, ordering(), gaps, limit);
    const auto alive =
        rows.has_value() ? before_dead_claims(transaction, *rows, claim) : std::nullopt;
    if (!alive.has_value()) {
        return false;
    }
    if (!lock_passed_over(transaction, claim, *alive) ||
        !find_holders(transaction, claim, *alive)) {
        return false;
    }
    claim.in_gaps = *alive;
    claim.complete = rows->size() < limit && alive->size() == rows->size();
    return true;
}

// Looks up once for each group what holds it in the deferred lane.
bool Drainer::find_holders(postgres::Transaction& transaction, Claim& claim,
                           std::span<const postgres::WalkedRow> rows) {
    if (ordering() != Ordering::per_key && ordering() != Ordering::per_source) {
        return true;
    }
    std::vector<std::int64_t> firsts;
    std::unordered_map<std::int64_t, std::uint64_t> groups;
    for (const postgres::WalkedRow& row : rows) {
        if (is_free(row) && is_ours(row) && row.group.has_value() &&
            claim.holders.try_emplace(*row.group, 0).second) {
            firsts.push_back(row.seq);
            groups[row.seq] = *row.group;
        }
    }
    if (firsts.empty()) {
        return true;
    }
    const auto found = postgres::lowest_holders(transaction, ordering(), firsts);
    if (!found.has_value()) {
        return false;
    }
    for (const postgres::Holder& holder : *found) {
        claim.holders[groups[holder.seq]] = holder.holder;
    }
    return true;
}

// What cannot be taken stops its group before anything else is taken.
void Drainer::take_from_gaps(Claim& claim, std::size_t room_for_due) {
    std::vector<bool> takeable;
    takeable.reserve(claim.in_gaps.size());
    for (const postgres::WalkedRow& row : claim.in_gaps) {
        takeable.push_back(may_be_claimed(row, claim));
        if (!takeable.back() && stands_in_the_way(row)) {
            claim.order.block(candidate(row));
        }
    }
    for (const postgres::WalkedRow& row : claim.due) {
        if (unclaimable_.contains(row.seq)) {
            claim.order.block(candidate(row));
        }
    }
    claim.order.limit_rows(claim.room - room_for_due);
    std::size_t covered = 0;
    for (const postgres::WalkedRow& row : claim.in_gaps) {
        if (takeable[covered] &&
            !has_room(claim.order.judge_fresh(fresh_candidate(row, claim.holders)))) {
            break;
        }
        covered++;
    }
    for (const postgres::WalkedRow& row : claim.in_gaps.subspan(covered)) {
        if (stands_in_the_way(row)) {
            claim.order.block(candidate(row));
        }
    }
    claim.complete = claim.complete && covered == claim.in_gaps.size();
    claim.in_gaps = claim.in_gaps.first(covered);
    claim.order.limit_rows(claim.room);
}

// Due rows that are not going to wait for the walk. To keep room for those that are could leave
// none for the row that they wait for.
std::size_t Drainer::room_for_due(const Claim& claim, std::int64_t last) const {
    return static_cast<std::size_t>(
        std::count_if(claim.due.begin(), claim.due.end(), [&](const postgres::WalkedRow& row) {
            return !unclaimable_.contains(row.seq) &&
                   (!row.group.has_value() || row.seq <= walked_to(claim) || row.seq > last);
        }));
}

// Up to where all is seen that lies behind the cursor.
std::int64_t Drainer::walked_to(const Claim& claim) const {
    if (claim.complete) {
        return claim.lane.cursor();
    }
    return claim.in_gaps.empty() ? 0 : claim.in_gaps.back().seq;
}

void Drainer::take_due(Claim& claim) {
    for (const postgres::WalkedRow& row : claim.due) {
        if (unclaimable_.contains(row.seq)) {
            continue;
        }
        const Verdict verdict = claim.order.judge_due(candidate(row));
        claim.more = claim.more || verdict == Verdict::wait;
        if (!has_room(verdict)) {
            claim.more = true;
            return;
        }
    }
}

bool Drainer::walk_ahead(postgres::Transaction& transaction, Claim& claim, std::int64_t last) {
    // Each drainer walks all rows, whoever's they are.
    const std::size_t limit = std::min(claim.to_walk, worth_walking_) * drainers_sharing_;
    const auto rows =
        postgres::walk_fresh(transaction, ordering(), claim.lane.cursor(), last, limit);
    const auto alive =
        rows.has_value() ? before_dead_claims(transaction, *rows, claim) : std::nullopt;
    if (!alive.has_value() || !find_holders(transaction, claim, *alive)) {
        return false;
    }
    std::size_t covered = 0;
    for (const postgres::WalkedRow& row : *alive) {
        if (may_be_claimed(row, claim)) {
            if (!has_room(claim.order.judge_fresh(fresh_candidate(row, claim.holders)))) {
                break;
            }
        } else if (stands_in_the_way(row)) {
            claim.order.block(candidate(row));
        }
        covered++;
    }
    claim.fresh = alive->first(covered);
    note_walk(claim, covered, alive->size(), rows->size() == limit);
    claim.more = claim.more || rows->size() == limit || covered < rows->size();
    return true;
}

// Where batch_bytes ends a claim, most of what batch_size would allow is walked in vain.
void Drainer::note_walk(const Claim& claim, std::size_t covered, std::size_t seen, bool full) {
    if (covered < seen) {
        worth_walking_ = 2 * covered + LEAST_WALK;
    } else if (full && worth_walking_ < claim.to_walk) {
        worth_walking_ *= 2;
    }
}

bool Drainer::owns(std::uint64_t bucket_hash) const {
    return ((buckets_ >> (bucket_hash & 63U)) & 1U) != 0;
}

bool Drainer::is_ours(const postgres::WalkedRow& row) const {
    return owns(row.group.value_or(static_cast<std::uint64_t>(row.seq)));
}

// A fresh row of ours, in whoever's hand or lock it is, but not in ours.
bool Drainer::stands_in_the_way(const postgres::WalkedRow& row) const {
    return is_ours(row) && row.fresh && !drain_.holds(row.claimed_by);
}

// A row that somebody else had locked is only judged when it is ours to lock, or it would take room
// in vain, again and again. In turns all of them are tried, but no more than half of the room: what
// they wait for may be locked too, and then they are deferred in vain.
bool Drainer::lock_passed_over(postgres::Transaction& transaction, Claim& claim,
                               std::span<const postgres::WalkedRow> rows) {
    std::vector<std::int64_t> passed_over;
    for (const postgres::WalkedRow& row : rows) {
        if (is_ours(row) && is_free(row) && !unclaimable_.contains(row.seq) &&
            claim.lane.was_passed_over(row.seq)) {
            passed_over.push_back(row.seq);
        }
    }
    if (passed_over.empty()) {
        return true;
    }
    lock_turn_ = !lock_turn_;
    const std::size_t most = claim.room > 1 ? claim.room / 2 : (lock_turn_ ? 1 : 0);
    if (passed_over.size() > most) {
        claim.more = true;
        const auto next = std::upper_bound(passed_over.begin(), passed_over.end(), locks_tried_to_);
        std::rotate(passed_over.begin(), next, passed_over.end());
        passed_over.resize(most);
    }
    if (passed_over.empty()) {
        return true;
    }
    locks_tried_to_ = passed_over.back();
    const auto locked = postgres::lock_rows(transaction, passed_over);
    if (!locked.has_value()) {
        return false;
    }
    claim.locked = *locked;
    return true;
}

bool Drainer::may_be_claimed(const postgres::WalkedRow& row, const Claim& claim) const {
    return is_ours(row) && is_free(row) && !unclaimable_.contains(row.seq) &&
           (!claim.lane.was_passed_over(row.seq) || contains(claim.locked, row.seq));
}

// A row that a dead drainer holds is taken back here and claimed by the next pass; rows behind it
// have to wait for that, or they would go first.
std::optional<std::span<const postgres::WalkedRow>> Drainer::before_dead_claims(
    postgres::Transaction& transaction, std::span<const postgres::WalkedRow> rows, Claim& claim) {
    const auto is_dead_claim = [this](const postgres::WalkedRow& row) {
        return row.fresh && !row.claimed_by.empty() && is_ours(row) && is_dead(row.claimed_by);
    };
    const auto first_dead = std::find_if(rows.begin(), rows.end(), is_dead_claim);
    std::vector<postgres::HeldRow> dead;
    for (auto row = first_dead; row != rows.end(); ++row) {
        if (is_dead_claim(*row)) {
            dead.push_back({row->seq, row->claimed_by, false, true, 0, row->attempts, row->id});
        }
    }
    if (!dead.empty() && !take_back(transaction, dead, claim.taken_back)) {
        return std::nullopt;
    }
    return rows.first(static_cast<std::size_t>(first_dead - rows.begin()));
}

// Now and then, when there is nothing else to do: perhaps a row that could not be claimed can be
// now.
void Drainer::retry_unclaimable(Claim& claim) {
    if (unclaimable_.empty() || !claim.order.is_empty()) {
        return;
    }
    const Time now = postgres::monotonic_now();
    for (const std::span<const postgres::WalkedRow> rows :
         {claim.due, claim.in_gaps, claim.fresh}) {
        for (const postgres::WalkedRow& row : rows) {
            const auto entry = unclaimable_.find(row.seq);
            if (entry != unclaimable_.end() && now >= entry->second && row.claimed_by.empty()) {
                claim.order.take_alone(candidate(row));
                return;
            }
        }
    }
    // Not seen any more: it was deleted, or has ended.
    std::erase_if(unclaimable_,
                  [now](const auto& entry) { return now >= entry.second + UNCLAIMABLE_RETRY; });
}

// Claims what is wanted. A row that somebody has locked is not had, and then the later ones of its
// group are not kept either.
bool Drainer::take_wanted(postgres::Transaction& transaction, Claim& claim) {
    if (claim.order.wanted().empty()) {
        return true;
    }
    const auto events = postgres::claim_rows(transaction, table_.event, claim.wanted(),
                                             claim.token.c_str(), claim.memory.context());
    if (!events.has_value()) {
        return false;
    }
    claim.events = *events;
    std::vector<std::int64_t> seqs;
    seqs.reserve(events->size());
    for (Event& event : claim.events) {
        event.group = claim.order.group_of(event.seq);
        event.leads = claim.order.leads(event.seq);
        seqs.push_back(event.seq);
    }
    const std::vector<std::int64_t> behind = claim.order.behind_locked(seqs);
    return behind.empty() || leave_behind(transaction, claim, behind);
}

// The row that was missed may be locked, or have ended meanwhile: the next pass knows.
bool Drainer::leave_behind(postgres::Transaction& transaction, Claim& claim,
                           const std::vector<std::int64_t>& behind) {
    if (!postgres::release_rows(transaction, behind, claim.token.c_str()).has_value()) {
        return false;
    }
    for (const Event& event : claim.events) {
        if (event.payload_memory != nullptr && contains(behind, event.seq)) {
            postgres::free_payload(event);
        }
    }
    const auto kept = std::remove_if(claim.events.begin(), claim.events.end(), [&](const Event& e) {
        return std::binary_search(behind.begin(), behind.end(), e.seq);
    });
    claim.events = claim.events.first(static_cast<std::size_t>(kept - claim.events.begin()));
    return true;
}

// Puts into the deferred lane what has to wait for others of its group. What they wait for must not
// end meanwhile: then nobody would call them.
bool Drainer::defer_others(postgres::Transaction& transaction, Claim& claim) {
    if (claim.order.deferrals().empty()) {
        return true;
    }
    std::set<std::int64_t> holders;
    for (const ClaimOrder::Deferral& deferral : claim.order.deferrals()) {
        if (deferral.behind != 0) {
            holders.insert(deferral.behind);
        }
    }
    std::span<const std::int64_t> standing;
    if (!holders.empty()) {
        const auto locked = postgres::lock_holders(
            transaction, std::vector<std::int64_t>(holders.begin(), holders.end()));
        if (!locked.has_value()) {
            return false;
        }
        standing = *locked;
    }
    std::vector<std::int64_t> seqs;
    for (const ClaimOrder::Deferral& deferral : claim.order.deferrals()) {
        if (deferral.behind == 0 || contains(standing, deferral.behind)) {
            seqs.push_back(deferral.seq);
        }
    }
    const auto hit = postgres::defer_rows(transaction, seqs);
    if (!hit.has_value()) {
        return false;
    }
    claim.deferred.insert(claim.deferred.end(), hit->begin(), hit->end());
    std::sort(claim.deferred.begin(), claim.deferred.end());
    return true;
}

// Whether it was the fault of one row. A row that alone makes the claim fail (a trigger or a
// constraint refuses the change) is left out from then on.
bool Drainer::note_failed_claim(const Claim& claim, const postgres::PgError& error) {
    const std::vector<std::int64_t>& wanted = claim.order.wanted();
    const std::vector<ClaimOrder::Deferral>& deferrals = claim.order.deferrals();
    if (wanted.size() + deferrals.size() != 1 || !may_lie_in_the_row(error) ||
        unclaimable_.size() >= MOST_UNCLAIMABLE) {
        return false;
    }
    const std::int64_t seq = wanted.empty() ? deferrals.front().seq : wanted.front();
    const bool is_news = !unclaimable_.contains(seq);
    unclaimable_[seq] = postgres::monotonic_now() + UNCLAIMABLE_RETRY;
    if (is_news) {
        const std::string problem =
            "event with seq " + std::to_string(seq) + " cannot be claimed: ";
        slot_.set_error(problem + error.message);
        postgres::log_warning("outbox_drainer: " + problem + error.message, error.detail,
                              "It is left out and tried again every minute; other events go on.");
    }
    return true;
}

bool Drainer::report_to_lane(postgres::Transaction& transaction, Claim& claim) {
    if (!claim.lane_read) {
        return true;
    }
    const auto seen = [&](std::span<const postgres::WalkedRow> rows) {
        std::vector<SeenRow> result;
        result.reserve(rows.size());
        for (const postgres::WalkedRow& row : rows) {
            result.push_back({row.seq, fate_of(row, claim)});
        }
        return result;
    };
    claim.lane.gaps_scanned(seen(claim.in_gaps), claim.complete);
    if (claim.lane.may_advance() && !claim.fresh.empty()) {
        std::span<const Writer> writers;
        if (!transaction.run([&] { writers = postgres::sequence_writers(table_.sequence); })) {
            return false;
        }
        claim.lane.advanced(seen(claim.fresh), writers);
    }
    return true;
}

// When to look again. Without progress there is nothing to be gained from doing so at once: what
// stands in the way is somebody else's, and ends without waking us.
bool Drainer::find_next_due(postgres::Transaction& transaction, Claim& claim) {
    if (claim.halted_for.has_value()) {
        claim.next_due = claim.halted_for;
        return true;
    }
    const bool progress = !claim.events.empty() || !claim.fresh.empty() ||
                          !claim.deferred.empty() || !claim.taken_back.is_empty();
    const bool wants_more = claim.more || claim.lane.wants_pass();
    claim.more = progress && wants_more;
    if (claim.more) {
        return true;
    }
    const std::optional<Duration> due = postgres::next_due(transaction);
    if (!due.has_value()) {
        return false;
    }
    if (*due >= Duration{0}) {
        claim.next_due = due;
    }
    if (wants_more || claim.lane.hole_count() > 0) {
        claim.next_due = std::min(claim.next_due.value_or(HOLE_RETRY), HOLE_RETRY);
    }
    return true;
}

SeenRow::Fate Drainer::fate_of(const postgres::WalkedRow& row, const Claim& claim) const {
    if (was_claimed(claim.events, row.seq)) {
        return SeenRow::Fate::claimed;
    }
    if (!row.fresh || !is_ours(row) || drain_.holds(row.claimed_by) ||
        contains(claim.deferred, row.seq) || claim.order.leaves(row.seq)) {
        return SeenRow::Fate::elsewhere;
    }
    return SeenRow::Fate::passed_over;
}

// setval or TRUNCATE ... RESTART IDENTITY: numbers below the cursor come again.
bool Drainer::sequence_moved_back(const FreshLane& lane, std::int64_t last) const {
    if (last >= lane.cursor() && table_.sequence_file == sequence_file_) {
        return false;
    }
    postgres::log_warning(
        "outbox_drainer: sequence \"outbox.event_seq\" went back or was replaced",
        "The table is read again from its first row.",
        "Leave the sequence alone: events are published in the order of its numbers.");
    return true;
}

}  // namespace outbox::worker
