// The claim: one pass over the fresh lane and what is due of the deferred one, under one snapshot,
// in the order that core/fresh_lane.hpp prescribes.
#include "worker/claim.hpp"

#include <algorithm>
#include <map>

#include "postgres/log.hpp"
#include "postgres/wait.hpp"
#include "postgres/writers.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

namespace {

bool is_free(const postgres::WalkedRow& row) {
    return row.fresh && row.claimed_by.empty();
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

bool was_claimed(std::span<const Event> claimed, std::int64_t seq) {
    const auto found = std::lower_bound(
        claimed.begin(), claimed.end(), seq,
        [](const Event& event, std::int64_t wanted) { return event.seq < wanted; });
    return found != claimed.end() && found->seq == seq;
}

}  // namespace

// Wants the takeable rows from the front of a walk while there is room for them; gives how many
// rows of the walk that covers.
template <class Takeable>
std::size_t Drainer::Claim::take(std::span<const postgres::WalkedRow> rows, Takeable takeable) {
    std::size_t covered = 0;
    for (const postgres::WalkedRow& row : rows) {
        if (takeable(row)) {
            const bool too_big = !wanted.empty() && bytes + row.payload_bytes > max_bytes;
            if (wanted.size() == room || too_big) {
                break;
            }
            wanted.push_back(row.seq);
            bytes += row.payload_bytes;
        }
        covered++;
    }
    return covered;
}

bool Drainer::claim(postgres::Transaction& transaction, Claim& claim) {
    claim.lane.begin_pass();
    if (!note_ended_writers(transaction, claim.lane, FreshLane::Moment::before_snapshot) ||
        !transaction.take_snapshot() ||
        !note_ended_writers(transaction, claim.lane, FreshLane::Moment::after_snapshot)) {
        return false;
    }
    if (!walk(transaction, claim)) {
        return false;
    }
    retry_unclaimable(claim);
    if (!claim.wanted.empty()) {
        const auto events = postgres::claim_rows(transaction, claim.wanted, claim.token.c_str(),
                                                 claim.memory.context());
        if (!events.has_value()) {
            return false;
        }
        claim.events = *events;
    }
    return report_to_lane(transaction, claim);
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

// Reads what this pass may take: due rows of the deferred lane, at most half of the room, then what
// appeared in gaps, then fresh rows. Fresh rows are only read when the gaps were read to their end.
bool Drainer::walk(postgres::Transaction& transaction, Claim& claim) {
    const std::size_t half = std::max<std::size_t>(claim.room / 2, 1);
    const auto due = postgres::walk_due(transaction, half);
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
    const std::size_t taken = claim.take(
        *due, [this](const postgres::WalkedRow& row) { return !unclaimable_.contains(row.seq); });
    claim.more = due->size() == half || taken < due->size();
    if (!walk_gaps(transaction, claim)) {
        return false;
    }
    if (!claim.complete || claim.wanted.size() == claim.room) {
        claim.more = true;
        return true;
    }
    const auto rows = postgres::walk_fresh(transaction, claim.lane.cursor(), *last, claim.room);
    const auto alive =
        rows.has_value() ? before_dead_claims(transaction, *rows, claim) : std::nullopt;
    if (!alive.has_value()) {
        return false;
    }
    claim.fresh = alive->first(claim.take(
        *alive, [&](const postgres::WalkedRow& row) { return may_be_claimed(row, claim); }));
    claim.more = claim.more || rows->size() == claim.room || claim.fresh.size() < rows->size();
    return true;
}

bool Drainer::walk_gaps(postgres::Transaction& transaction, Claim& claim) {
    const std::vector<Interval> gaps = claim.lane.gaps_to_scan();
    if (gaps.empty()) {
        return true;
    }
    const std::size_t limit = claim.room + claim.lane.hole_count();
    const auto rows = postgres::walk_gaps(transaction, gaps, limit);
    const auto alive =
        rows.has_value() ? before_dead_claims(transaction, *rows, claim) : std::nullopt;
    if (!alive.has_value()) {
        return false;
    }
    const std::size_t covered = claim.take(
        *alive, [&](const postgres::WalkedRow& row) { return may_be_claimed(row, claim); });
    claim.in_gaps = alive->first(covered);
    claim.complete = covered == rows->size() && rows->size() < limit;
    return true;
}

// Rows that somebody else held when the last pass looked get half of the room at most, so that
// however many an operator has locked, others are still reached.
bool Drainer::may_be_claimed(const postgres::WalkedRow& row, Claim& claim) const {
    if (!is_free(row) || unclaimable_.contains(row.seq)) {
        return false;
    }
    if (!claim.lane.was_passed_over(row.seq)) {
        return true;
    }
    claim.holes_tried++;
    return claim.holes_tried <= std::max<std::size_t>(claim.room / 2, 1);
}

// A row that a dead drainer holds is taken back here and claimed by the next pass; rows behind it
// have to wait for that, or they would go first.
std::optional<std::span<const postgres::WalkedRow>> Drainer::before_dead_claims(
    postgres::Transaction& transaction, std::span<const postgres::WalkedRow> rows, Claim& claim) {
    const auto first_dead = std::find_if(rows.begin(), rows.end(), [this](const auto& row) {
        return row.fresh && !row.claimed_by.empty() && is_dead(row.claimed_by);
    });
    std::map<std::string, std::vector<std::int64_t>> by_token;
    for (auto row = first_dead; row != rows.end(); ++row) {
        if (row->fresh && !row->claimed_by.empty() && is_dead(row->claimed_by)) {
            by_token[std::string(row->claimed_by)].push_back(row->seq);
        }
    }
    for (const auto& [token, seqs] : by_token) {
        const auto hit = postgres::release_rows(transaction, seqs, token.c_str());
        if (!hit.has_value()) {
            return std::nullopt;
        }
        claim.taken_back += hit->size();
    }
    return rows.first(static_cast<std::size_t>(first_dead - rows.begin()));
}

// Now and then, when there is nothing else to do: perhaps a row that could not be claimed can be
// now.
void Drainer::retry_unclaimable(Claim& claim) {
    const Time now = postgres::monotonic_now();
    for (auto& [seq, retry_at] : unclaimable_) {
        if (claim.wanted.empty() && now >= retry_at) {
            claim.wanted.push_back(seq);
        }
    }
}

// Whether it was the fault of one row. A row that alone makes the claim fail (a trigger or a
// constraint refuses the change) is left out from then on.
bool Drainer::note_failed_claim(const Claim& claim, const postgres::PgError& error) {
    if (claim.wanted.size() != 1 || !may_lie_in_the_row(error) ||
        unclaimable_.size() >= MOST_UNCLAIMABLE) {
        return false;
    }
    const bool is_news = !unclaimable_.contains(claim.wanted.front());
    unclaimable_[claim.wanted.front()] = postgres::monotonic_now() + UNCLAIMABLE_RETRY;
    if (is_news) {
        const std::string problem =
            "event with seq " + std::to_string(claim.wanted.front()) + " cannot be claimed: ";
        slot_.set_error(problem + error.message);
        postgres::log_warning("outbox_drainer: " + problem + error.message, error.detail,
                              "It is left out and tried again every minute; other events go on.");
    }
    return true;
}

bool Drainer::report_to_lane(postgres::Transaction& transaction, Claim& claim) {
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
    // Without progress there is nothing to be gained from looking again at once: what stands in the
    // way is somebody else's, and ends without waking us.
    const bool progress = !claim.events.empty() || !claim.fresh.empty() || claim.taken_back > 0;
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
    if (!row.fresh || drain_.holds(row.claimed_by)) {
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
