// The claim: one pass over the fresh lane and what is due of the deferred one, under one snapshot,
// in the order that core/fresh_lane.hpp prescribes.
#include "worker/claim.hpp"

#include <algorithm>

#include "postgres/log.hpp"
#include "postgres/writers.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

namespace {

bool is_free(const postgres::WalkedRow& row) {
    return row.fresh && row.claimed_by.empty();
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

// Reads, without locking, what this pass may take: due rows of the deferred lane, at most half of
// the room, then what appeared in gaps, then fresh rows. Fresh rows are only read when the gaps
// were read to their end.
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
    }
    claim.take(*due, [](const postgres::WalkedRow&) { return true; });
    claim.more = due->size() == half;

    const std::vector<Interval> gaps = claim.lane.gaps_to_scan();
    if (!gaps.empty()) {
        const std::size_t limit = claim.room + claim.lane.hole_count();
        const auto rows = postgres::walk_gaps(transaction, gaps, limit);
        if (!rows.has_value()) {
            return false;
        }
        const std::size_t covered = claim.take(*rows, is_free);
        claim.in_gaps = rows->first(covered);
        claim.complete = covered == rows->size() && rows->size() < limit;
    }
    if (claim.complete && claim.wanted.size() < claim.room) {
        const auto rows = postgres::walk_fresh(transaction, claim.lane.cursor(), *last, claim.room);
        if (!rows.has_value()) {
            return false;
        }
        claim.fresh = rows->first(claim.take(*rows, is_free));
        claim.more = claim.more || rows->size() == claim.room || claim.fresh.size() < rows->size();
    } else {
        claim.more = true;
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
    claim.more = claim.more || claim.lane.wants_pass();
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
    // Somebody else's lock or claim ends without waking us.
    if (claim.lane.hole_count() > 0) {
        claim.next_due = std::min(claim.next_due.value_or(HOLE_RETRY), HOLE_RETRY);
    }
    return true;
}

SeenRow::Fate Drainer::fate_of(const postgres::WalkedRow& row, const Claim& claim) const {
    if (was_claimed(claim.events, row.seq)) {
        return SeenRow::Fate::claimed;
    }
    if (!row.fresh || classify_token(row.claimed_by, self_) == TokenOwner::mine) {
        return SeenRow::Fate::elsewhere;
    }
    return SeenRow::Fate::passed_over;
}

// setval or TRUNCATE ... RESTART IDENTITY: numbers below the cursor come again.
bool Drainer::sequence_moved_back(const FreshLane& lane, std::int64_t last) {
    if (last >= lane.cursor() && table_.sequence_file == sequence_file_) {
        return false;
    }
    sequence_file_ = table_.sequence_file;
    floor_written_ = NO_FLOOR;
    floor_written_at_ = Time{};
    postgres::log_warning(
        "outbox_drainer: sequence \"outbox.event_seq\" went back or was replaced",
        "The table is read again from its first row.",
        "Leave the sequence alone: events are published in the order of its numbers.");
    return true;
}

}  // namespace outbox::worker
