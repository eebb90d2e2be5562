// What others left behind: claims of dead drainers, leases that ran out, and rows behind the cursor
// that no pass has seen.
#include <algorithm>
#include <map>

#include "core/uuid.hpp"
#include "postgres/log.hpp"
#include "postgres/relay_settings.hpp"
#include "postgres/relay_store.hpp"
#include "postgres/wait.hpp"
#include "worker/drainer.hpp"
#include "worker/marks.hpp"

namespace outbox::worker {

namespace {

constexpr std::size_t CHUNK = 10000;
constexpr int START_CHUNKS = 10;
// Of the fresh lane: more than two drainers can have had in hand.
constexpr int START_CHUNKS_FRESH = 1;
constexpr std::size_t GROUPS_AT_ONCE = 10000;
constexpr Duration SWEEP_INTERVAL_LEAST{10000};
constexpr Duration SWEEP_INTERVAL_MOST{60000};

}  // namespace

// At start: reads what the relay says and where to begin.
bool Drainer::prepare() {
    if (!find_table()) {
        return false;
    }
    postgres::Transaction transaction("outbox_drainer: looking where to begin");
    const auto stored =
        begin(transaction) ? postgres::read_floor(transaction) : std::optional<std::int64_t>();
    const auto last =
        stored.has_value() ? postgres::last_drawn(transaction, table_.sequence) : std::nullopt;
    auto relay = last.has_value() ? postgres::read_relay(transaction) : std::nullopt;
    if (!relay.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    relay_ = std::move(*relay);
    take_settings();
    // A sequence that went back has no number of the old ones left behind.
    const std::int64_t floor = *stored <= *last ? *stored : 0;
    if (*stored > *last || shares_.lowest_floor() > *last) {
        shares_.forget_floors();
    } else {
        shares_.learn_floor(floor);
    }
    sequence_file_ = table_.sequence_file;
    if (refuse_table(table_)) {
        return false;
    }
    start_lane(floor);
    floor_written_ = floor;
    sweep_at_ = postgres::monotonic_now() + SWEEP_INTERVAL_LEAST;
    return true;
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

// Before anything is claimed of the buckets that were taken: takes back what dead drainers hold of
// them and what has no lease any more. A claim that lies above the floor or is deferred is found;
// below the floor there is none. Of the deferred lane all, of the fresh lane what lies near the
// floor. Any more of it is taken back by the claim when it comes there.
bool Drainer::reclaim() {
    for (int chunk = 0; chunk < START_CHUNKS; chunk++) {
        const std::optional<std::size_t> released = reclaim_deferred();
        if (!released.has_value()) {
            return false;
        }
        if (*released < CHUNK) {
            break;
        }
    }
    std::int64_t position = lane_.cursor();
    for (int chunk = 0; chunk < START_CHUNKS_FRESH; chunk++) {
        const std::int64_t before = position;
        if (!look_through(position, INT64_MAX)) {
            return false;
        }
        if (position == before) {
            break;
        }
    }
    return true;
}

// Gives how many rows it took back; nullopt: that failed.
std::optional<std::size_t> Drainer::reclaim_deferred() {
    postgres::Transaction transaction("outbox_drainer: taking back claims of dead drainers");
    const auto rows = begin(transaction) ? postgres::held_deferred_rows(transaction, ordering(),
                                                                        CHUNK, settings_.lease_ttl)
                                         : std::optional<std::span<const postgres::HeldRow>>();
    TakenBack taken;
    if (!rows.has_value() || !release_held(transaction, *rows, taken) ||
        transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return std::nullopt;
    }
    note_taken_back(taken);
    return taken.released.size();
}

// Looks at one chunk of rows above `position`, up to `last`: takes back claims whose holder is dead
// or whose lease is over, and has an eye on free rows behind the cursor, which no pass would find.
// Moves `position` to the last row looked at.
bool Drainer::look_through(std::int64_t& position, std::int64_t last) {
    postgres::Transaction transaction("outbox_drainer: looking for claims of dead drainers");
    const auto rows = begin(transaction) ? postgres::inspect_rows(transaction, ordering(), position,
                                                                  last, CHUNK, settings_.lease_ttl)
                                         : std::optional<std::span<const postgres::HeldRow>>();
    TakenBack taken;
    if (!rows.has_value() || !release_held(transaction, *rows, taken)) {
        note_database_error(transaction.error());
        return false;
    }
    std::vector<std::int64_t> left_behind;
    for (const postgres::HeldRow& row : *rows) {
        if (row.fresh && row.claimed_by.empty() && row.seq <= lane_.cursor() &&
            owns(row.bucket_hash) && !left_.contains(row.bucket_hash, row.seq)) {
            left_behind.push_back(row.seq);
        }
    }
    position = rows->empty() ? position : rows->back().seq;
    if (transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    for (std::int64_t seq : taken.released) {
        lane_.add_hole(seq);
    }
    for (std::int64_t seq : left_behind) {
        lane_.add_hole(seq);
    }
    if (!left_behind.empty()) {
        drain_.woken();
    }
    note_taken_back(taken);
    return true;
}

void Drainer::note_taken_back(const TakenBack& taken) {
    for (std::size_t rows : taken.suspects) {
        drain_.suspect(rows);
    }
    for (const Marked& marked : taken.charged) {
        count(marked);
        announce(marked);
    }
    postgres::add(slot_.counters().expired_leases, taken.released.size());
    if (!taken.released.empty()) {
        drain_.woken();
        postgres::log_line("outbox_drainer: took back " + std::to_string(taken.released.size()) +
                           " events from drainers that are gone");
    }
}

bool Drainer::release_held(postgres::Transaction& transaction,
                           std::span<const postgres::HeldRow> rows, TakenBack& taken) {
    std::vector<postgres::HeldRow> held;
    for (const postgres::HeldRow& row : rows) {
        if (may_take_over(row)) {
            held.push_back(row);
        }
    }
    return held.empty() || take_back(transaction, held, taken);
}

bool Drainer::may_take_over(const postgres::HeldRow& row) const {
    if (row.claimed_by.empty() || drain_.holds(row.claimed_by) || !owns(row.bucket_hash)) {
        return false;
    }
    return row.expired || is_dead(row.claimed_by);
}

// Gives claims of others back, claim by claim.
bool Drainer::take_back(postgres::Transaction& transaction, std::span<const postgres::HeldRow> rows,
                        TakenBack& taken) {
    std::map<std::string, std::vector<const postgres::HeldRow*>> by_token;
    for (const postgres::HeldRow& row : rows) {
        by_token[std::string(row.claimed_by)].push_back(&row);
    }
    for (const auto& [token, held] : by_token) {
        if (held.size() == 1 && killed_its_drainer(token)) {
            if (!charge_killer(transaction, *held.front(), token, taken)) {
                return false;
            }
            continue;
        }
        std::vector<std::int64_t> seqs;
        for (const postgres::HeldRow* row : held) {
            seqs.push_back(row->seq);
        }
        const auto hit = postgres::release_rows(transaction, seqs, token.c_str());
        if (!hit.has_value()) {
            return false;
        }
        taken.released.insert(taken.released.end(), hit->begin(), hit->end());
        if (const std::size_t suspects = suspects_of(token, hit->size()); suspects > 0) {
            taken.suspects.push_back(suspects);
        }
    }
    return true;
}

// How many rows of a claim may be why its drainer died. A server that was restored or promoted says
// nothing of the rows.
std::size_t Drainer::suspects_of(std::string_view token, std::size_t rows) const {
    const std::optional<TokenParts> parts = parse_token(token);
    if (!is_dead(token) || !parts.has_value() ||
        parts->incarnation.system_identifier != self_.system_identifier ||
        parts->incarnation.timeline != self_.timeline) {
        return 0;
    }
    return parts->suspicion > 0 ? std::min<std::size_t>(rows, parts->suspicion) : rows;
}

// Claimed alone because it was suspected, and again the drainer died.
bool Drainer::killed_its_drainer(std::string_view token) const {
    const std::optional<TokenParts> parts = parse_token(token);
    return parts.has_value() && parts->suspicion == 1 && is_dead(token);
}

bool Drainer::charge_killer(postgres::Transaction& transaction, const postgres::HeldRow& row,
                            const std::string& token, TakenBack& taken) {
    BatchMarks marks;
    marks.token = token;
    const std::string error = "poison: the drainer ended while it had this event alone in hand";
    if (settings_.max_attempts > 0 && row.attempts + 1 >= settings_.max_attempts) {
        marks.ended.push_back({row.seq, EndedMark::Outcome::dead, row.id, "poison", error});
    } else {
        marks.failed.push_back(
            {row.seq, error, settings_.retry.delay(row.attempts + 1, killer_jitter_)});
    }
    const std::string pause = ordering() == Ordering::stop_the_line
                                  ? "event " + to_string(row.id) + " was not published: " + error
                                  : "";
    Marked marked;
    if (!write_marks(transaction, marks, marked) ||
        (!marked.ended.empty() && !follow_up(transaction, {row.seq}, pause))) {
        return false;
    }
    taken.charged.push_back(std::move(marked));
    taken.suspects.push_back(1);
    return true;
}

// Whether whoever made the claim is known to be gone; for a claim of our own, whether it was lost
// track of.
bool Drainer::is_dead(std::string_view token) const {
    switch (classify_token(token, self_)) {
        case TokenOwner::dead:
            return true;
        case TokenOwner::mine:
            return !drain_.holds(token);
        case TokenOwner::live_other_slot: {
            const std::optional<TokenParts> parts = parse_token(token);
            return !parts.has_value() || !slot_.is_alive(parts->incarnation);
        }
        case TokenOwner::foreign:
            return false;
    }
    return false;
}

// Now and then a chunk of rows is looked through, in turns all of them: the second line of defence,
// for leases that ran out and for rows that became free behind the cursor or the floor, such as by
// hand.
void Drainer::sweep() {
    const Time now = postgres::monotonic_now();
    if (now < sweep_at_) {
        return;
    }
    sweep_at_ =
        now + std::clamp(settings_.lease_ttl / 2, SWEEP_INTERVAL_LEAST, SWEEP_INTERVAL_MOST);
    if (!reclaim_deferred().has_value()) {
        return;
    }
    sweep_groups();
    if (collects_) {
        look_at_backlog();
    }
    const std::int64_t floor = std::max<std::int64_t>(floor_written_, 0);
    sweep_turn(sweep_position_, floor, lane_.cursor());
    sweep_turn(history_position_, 0, floor);
}

// Groups in the deferred lane that nobody is going to call: the row that they waited for was
// deleted or changed by hand, or they were restored. Those that wait for a row in hand, or for one
// that somebody has locked, are called in time.
void Drainer::sweep_groups() {
    postgres::Transaction transaction("outbox_drainer: looking for groups that wait for nobody");
    if (!begin(transaction)) {
        note_database_error(transaction.error());
        return;
    }
    std::optional<std::size_t> called = call_stranded_groups(transaction);
    if (called.has_value() && collects_) {
        called = call_ungrouped(transaction, *called);
    }
    if (!called.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return;
    }
    if (*called > 0) {
        drain_.woken();
    }
    if (*called >= CHUNK) {
        sweep_at_ = postgres::monotonic_now();
    }
}

void Drainer::look_at_backlog() {
    postgres::Transaction reading("outbox_drainer: looking at the backlog");
    const auto backlog = reading.begin(InvalidOid) ? postgres::read_backlog(reading) : std::nullopt;
    if (!backlog.has_value() || reading.commit() == postgres::CommitOutcome::failed) {
        note_database_error(reading.error());
        return;
    }
    // Nothing is written while nothing is left to do: an idle server writes no WAL.
    if (backlog->events == 0 && backlog->noted_empty) {
        return;
    }
    postgres::Transaction writing("outbox_drainer: noting the backlog");
    if (!begin(writing) || !postgres::write_backlog(writing, backlog->events) ||
        writing.commit() == postgres::CommitOutcome::failed) {
        note_database_error(writing.error());
    }
}

// Rows that wait and belong to no group (any more): the ordering has been changed.
std::optional<std::size_t> Drainer::call_ungrouped(postgres::Transaction& transaction,
                                                   std::size_t called_before) {
    if (ordering() == Ordering::per_source) {
        return called_before;
    }
    const bool by_key = ordering() == Ordering::per_key;
    const auto called = postgres::call_all_followers(transaction, by_key, CHUNK);
    return called.has_value() ? std::optional(called_before + *called) : std::nullopt;
}

std::optional<std::size_t> Drainer::call_stranded_groups(postgres::Transaction& transaction) {
    if (ordering() != Ordering::per_key && ordering() != Ordering::per_source) {
        return 0;
    }
    const auto waiting =
        postgres::waiting_groups(transaction, ordering(), group_sweep_position_, GROUPS_AT_ONCE);
    if (!waiting.has_value()) {
        return std::nullopt;
    }
    group_sweep_position_ = waiting->size() < GROUPS_AT_ONCE ? 0 : waiting->back().seq;
    std::vector<std::int64_t> stranded;
    for (const postgres::WaitingGroup& group : *waiting) {
        if (group.headless && owns(group.group) && !drain_.has_in_hand(group.group) &&
            !blocked_groups_.contains(group.group)) {
            stranded.push_back(group.seq);
        }
    }
    return stranded.empty() ? std::optional<std::size_t>(0)
                            : postgres::release_followers(transaction, ordering(), stranded);
}

void Drainer::sweep_turn(std::int64_t& position, std::int64_t from, std::int64_t to) {
    position = std::max(position, from);
    const std::int64_t before = position;
    if (position < to && look_through(position, to) && position != before) {
        return;
    }
    position = from;
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
