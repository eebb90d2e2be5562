// What others left behind: claims of dead drainers, leases that ran out, and rows behind the cursor
// that no pass has seen.
#include <algorithm>
#include <map>

#include "postgres/log.hpp"
#include "postgres/wait.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

namespace {

constexpr std::size_t CHUNK = 10000;
constexpr Duration SHORTEST_SWEEP_INTERVAL{10000};

}  // namespace

// At start: reads the floor, then takes back what dead drainers hold, before anything is claimed. A
// claim that lies above the floor or is deferred is found; below the floor there is none.
bool Drainer::prepare() {
    if (!find_table()) {
        return false;
    }
    postgres::Transaction transaction("outbox_drainer: looking where to begin");
    const auto stored =
        begin(transaction) ? postgres::read_floor(transaction) : std::optional<std::int64_t>();
    const auto last =
        stored.has_value() ? postgres::last_drawn(transaction, table_.sequence) : std::nullopt;
    if (!last.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    // A sequence that went back has no number of the old ones left behind.
    const std::int64_t floor = *stored <= *last ? *stored : 0;
    sequence_file_ = table_.sequence_file;
    if (refuse_table(table_)) {
        return false;
    }
    lane_ = FreshLane(floor);
    floor_written_ = floor;
    sweep_at_ =
        postgres::monotonic_now() + std::max(settings_.lease_ttl / 2, SHORTEST_SWEEP_INTERVAL);
    return reclaim(floor);
}

// Who owns the table has to be known before anything can be done as its owner.
bool Drainer::find_table() {
    postgres::Transaction transaction("outbox_drainer: looking for the table");
    const auto table =
        transaction.begin(InvalidOid) ? postgres::table_info(transaction) : std::nullopt;
    if (!table.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    table_ = *table;
    if (!OidIsValid(table_.event)) {
        find_extension();
    }
    return OidIsValid(table_.event);
}

// Takes back every claim above `after`, and every deferred one, whose holder is dead or whose lease
// is over.
bool Drainer::reclaim(std::int64_t after) {
    for (bool deferred : {true, false}) {
        for (bool more = true; more;) {
            postgres::Transaction transaction(
                "outbox_drainer: taking back claims of dead drainers");
            if (!begin(transaction)) {
                note_database_error(transaction.error());
                return false;
            }
            const auto rows =
                deferred ? postgres::held_deferred_rows(transaction, CHUNK, settings_.lease_ttl)
                         : postgres::held_rows(transaction, after, CHUNK, settings_.lease_ttl);
            std::vector<std::int64_t> released;
            if (!rows.has_value() || !release_held(transaction, *rows, released)) {
                note_database_error(transaction.error());
                return false;
            }
            more = rows->size() == CHUNK && (!deferred || !released.empty());
            after = !deferred && !rows->empty() ? rows->back().seq : after;
            if (transaction.commit() == postgres::CommitOutcome::failed) {
                note_database_error(transaction.error());
                return false;
            }
            for (std::int64_t seq : released) {
                lane_.add_hole(seq);
            }
            postgres::add(slot_.counters().expired_leases, released.size());
            if (!released.empty()) {
                drain_.woken();
                postgres::log_line("outbox_drainer: took back " + std::to_string(released.size()) +
                                   " events from drainers that are gone");
            }
        }
    }
    return true;
}

bool Drainer::release_held(postgres::Transaction& transaction,
                           std::span<const postgres::HeldRow> rows,
                           std::vector<std::int64_t>& released) {
    std::map<std::string, std::vector<std::int64_t>> by_token;
    for (const postgres::HeldRow& row : rows) {
        if (may_take_over(row)) {
            by_token[std::string(row.claimed_by)].push_back(row.seq);
        }
    }
    for (const auto& [token, seqs] : by_token) {
        const auto hit = postgres::release_rows(transaction, seqs, token.c_str());
        if (!hit.has_value()) {
            return false;
        }
        released.insert(released.end(), hit->begin(), hit->end());
    }
    return true;
}

bool Drainer::may_take_over(const postgres::HeldRow& row) const {
    switch (classify_token(row.claimed_by, self_)) {
        case TokenOwner::dead:
            return true;
        case TokenOwner::live_other_slot: {
            const std::optional<TokenParts> parts = parse_token(row.claimed_by);
            return row.expired || !parts.has_value() || !slot_.is_alive(parts->incarnation);
        }
        case TokenOwner::mine:
        case TokenOwner::foreign:
            return row.expired;
    }
    return false;
}

// Now and then: leases that ran out, and, as a second line of defence, free rows behind the cursor
// that no gap or hole accounts for, such as after somebody set the sequence back and forth.
void Drainer::sweep() {
    const Time now = postgres::monotonic_now();
    if (now < sweep_at_) {
        return;
    }
    sweep_at_ = now + std::max(settings_.lease_ttl / 2, SHORTEST_SWEEP_INTERVAL);
    const std::int64_t floor = std::max<std::int64_t>(floor_written_, 0);
    if (!reclaim(floor)) {
        return;
    }
    postgres::Transaction transaction("outbox_drainer: looking for events left behind");
    if (!begin(transaction) || !transaction.take_snapshot()) {
        note_database_error(transaction.error());
        return;
    }
    const auto rows = postgres::walk_fresh(transaction, floor, lane_.cursor(), CHUNK);
    if (!rows.has_value()) {
        note_database_error(transaction.error());
        return;
    }
    for (const postgres::WalkedRow& row : *rows) {
        if (row.fresh && row.claimed_by.empty()) {
            lane_.add_hole(row.seq);
        }
    }
    if (transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
    }
}

// Whether the table cannot be drained as it is, told to the user when that changes.
bool Drainer::refuse_table(const postgres::TableInfo& table) {
    std::string problem;
    if (!table.logged) {
        problem =
            "table \"outbox.event\" is unlogged: a crash would take events that were published";
    } else if (table.sequence_cached) {
        problem =
            "sequence \"outbox.event_seq\" has a cache: numbers drawn long before they are used "
            "would be passed by";
    }
    if (problem != table_problem_) {
        table_problem_ = problem;
        if (!problem.empty()) {
            slot_.set_error(problem);
            postgres::log_warning("outbox_drainer: " + problem, "Nothing is published.",
                                  "ALTER TABLE outbox.event SET LOGGED, or ALTER SEQUENCE "
                                  "outbox.event_seq CACHE 1.");
        }
        judge_configuration();
    }
    return !problem.empty();
}

}  // namespace outbox::worker
