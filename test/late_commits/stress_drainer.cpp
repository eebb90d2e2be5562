#include "stress_drainer.hpp"

#include <algorithm>
#include <utility>

#include "postgres/signals.hpp"
#include "postgres/statement.hpp"
#include "postgres/writers.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
}

namespace outbox::test {

namespace {

using postgres::Access;
using postgres::Statement;
using postgres::Transaction;

// Rows of one walk. Small enough that a burst leaves gaps unread for the limit.
constexpr std::size_t ROOM = 100;
constexpr long IDLE_US = 300;
// So many passes in a row that find nothing end a run that was asked to end.
constexpr int IDLE_PASSES = 50;

#define WALKED "e.seq, e.batch IS NULL FROM late_commits.event e"

Statement walk_fresh_statement = {
    "SELECT " WALKED
    " WHERE e.seq OPERATOR(pg_catalog.>) $1 AND e.seq OPERATOR(pg_catalog.<=)"
    " pg_catalog.pg_sequence_last_value('late_commits.event_seq') ORDER BY e.seq LIMIT $2",
    2,
    {INT8OID, INT8OID, InvalidOid, InvalidOid},
    nullptr};

Statement walk_gaps_statement = {
    "SELECT w.* FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS g(lo, hi)"
    " CROSS JOIN LATERAL (SELECT " WALKED
    " WHERE e.seq OPERATOR(pg_catalog.>=) g.lo AND e.seq OPERATOR(pg_catalog.<=) g.hi"
    " ORDER BY e.seq) w LIMIT $3",
    3,
    {INT8ARRAYOID, INT8ARRAYOID, INT8OID, InvalidOid},
    nullptr};

// Takes a row for the second time, too, if the lane leads there.
Statement claim_statement = {
    "WITH free AS MATERIALIZED (SELECT e.seq FROM late_commits.event e"
    " WHERE e.seq OPERATOR(pg_catalog.=) ANY ($1) FOR NO KEY UPDATE SKIP LOCKED)"
    " UPDATE late_commits.event e SET batch = $2, claims = e.claims OPERATOR(pg_catalog.+) 1"
    " FROM free f WHERE e.seq OPERATOR(pg_catalog.=) f.seq RETURNING e.seq",
    2,
    {INT8ARRAYOID, INT8OID, InvalidOid, InvalidOid},
    nullptr};

Statement record_statement = {
    "INSERT INTO late_commits.run (passes, in_gaps, cut_short, most_ranges)"
    " VALUES ($1, $2, $3, $4)",
    4,
    {INT8OID, INT8OID, INT8OID, INT8OID},
    nullptr};

struct Walked {
    std::int64_t seq;
    bool free;
};

std::span<Walked> walked_rows() {
    const std::size_t count = postgres::row_count();
    auto* rows = postgres::allocate<Walked>(count);
    for (std::size_t i = 0; i < count; i++) {
        rows[i] = {postgres::int64_column(i, 1), postgres::bool_column(i, 2)};
    }
    SPI_freetuptable(SPI_tuptable);
    return {rows, count};
}

// Claims the free ones among the rows; gives what it got, ascending.
std::span<std::int64_t> claim_rows(std::span<const Walked> rows, std::int64_t batch) {
    auto* wanted = postgres::allocate<std::int64_t>(rows.size());
    std::size_t count = 0;
    for (const Walked& row : rows) {
        if (row.free) {
            wanted[count++] = row.seq;
        }
    }
    if (count == 0) {
        return {};
    }
    postgres::execute(claim_statement,
                      {postgres::bigint_array({wanted, count}), Int64GetDatum(batch)},
                      Access::write);
    count = postgres::row_count();
    for (std::size_t i = 0; i < count; i++) {
        wanted[i] = postgres::int64_column(i, 1);
    }
    SPI_freetuptable(SPI_tuptable);
    std::sort(wanted, wanted + count);
    return {wanted, count};
}

std::vector<SeenRow> fates(std::span<const Walked> rows, std::span<const std::int64_t> claimed) {
    std::vector<SeenRow> seen;
    seen.reserve(rows.size());
    for (const Walked& row : rows) {
        const bool ours = std::binary_search(claimed.begin(), claimed.end(), row.seq);
        seen.push_back({row.seq, ours       ? SeenRow::Fate::claimed
                                 : row.free ? SeenRow::Fate::passed_over
                                            : SeenRow::Fate::elsewhere});
    }
    return seen;
}

void pause(int longest_us) {
    if (longest_us > 0) {
        pg_usleep(static_cast<long>(
            pg_prng_uint64_range(&pg_global_prng_state, 1, static_cast<uint64>(longest_us))));
    }
}

// Commits if all went well so far, and says in the log what did not.
bool finish(Transaction& transaction, bool ok) {
    if (ok && transaction.commit() != postgres::CommitOutcome::failed) {
        return true;
    }
    ereport(LOG, (errmsg("late_commits: %s", transaction.error().message)));
    return false;
}

}  // namespace

bool StressDrainer::run() {
    if (!find_table()) {
        return false;
    }
    int idle_passes = 0;
    while (idle_passes < IDLE_PASSES) {
        if (!pass()) {
            return false;
        }
        if (progress_ || !postgres::stop_requested()) {
            idle_passes = 0;
        } else {
            idle_passes++;
        }
        if (!progress_) {
            pg_usleep(IDLE_US);
        }
    }
    return record_run();
}

bool StressDrainer::find_table() {
    Transaction transaction("late_commits");
    const bool found = transaction.begin(InvalidOid) && transaction.run([this] {
        const Oid schema = get_namespace_oid("late_commits", false);
        table_ = get_relname_relid("event", schema);
        sequence_ = get_relname_relid("event_seq", schema);
    });
    return finish(transaction, found);
}

bool StressDrainer::pass() {
    FreshLane lane = lane_;
    Transaction transaction("late_commits");
    if (!finish(transaction, transaction.begin(InvalidOid) && steps(transaction, lane))) {
        return false;
    }
    lane_ = std::move(lane);
    if (is(Variant::no_ranges)) {
        lane_ = FreshLane(lane_.cursor());
    }
    counts_.passes++;
    counts_.most_ranges =
        std::max(counts_.most_ranges, static_cast<std::int64_t>(lane_.range_count()));
    return true;
}

// The steps of fresh_lane.hpp, in their order unless the variant says otherwise.
bool StressDrainer::steps(Transaction& transaction, FreshLane& lane) {
    using Moment = FreshLane::Moment;
    progress_ = false;
    lane.begin_pass();
    if (!note_ended(transaction, lane, Moment::before_snapshot)) {
        return false;
    }
    pause(pauses_.before_snapshot);
    if (!transaction.take_snapshot()) {
        return false;
    }
    pause(pauses_.after_snapshot);
    const Moment second =
        is(Variant::drop_all_ended) ? Moment::before_snapshot : Moment::after_snapshot;
    if (!is(Variant::check_before_snapshot_only) && !note_ended(transaction, lane, second)) {
        return false;
    }
    Walk fresh;
    const bool fresh_first = is(Variant::fresh_before_gaps);
    if (fresh_first) {
        fresh = claim_fresh(transaction, lane.cursor());
        if (!fresh.has_value()) {
            return false;
        }
    }
    const Walk late = claim_gaps(transaction, lane.gaps_to_scan());
    if (!late.has_value()) {
        return false;
    }
    const bool complete = late->size() < ROOM;
    counts_.cut_short += complete ? 0 : 1;
    lane.gaps_scanned(*late, complete);
    if (lane.may_advance()) {
        if (!fresh_first) {
            fresh = claim_fresh(transaction, lane.cursor());
        }
        if (!fresh.has_value() || !advance(transaction, lane, *fresh)) {
            return false;
        }
    }
    if (is(Variant::no_scan_of_newborn)) {
        // The lane takes the newborn ranges, and only these, for scanned.
        lane.begin_pass();
        lane.gaps_scanned({}, true);
    }
    return true;
}

bool StressDrainer::note_ended(Transaction& transaction, FreshLane& lane,
                               FreshLane::Moment moment) {
    for (const Writer& writer : lane.writers()) {
        bool running = true;
        if (!transaction.run([&] { running = is_running(writer); })) {
            return false;
        }
        if (!running) {
            lane.note_ended(writer, moment);
        }
    }
    return true;
}

bool StressDrainer::is_running(const Writer& writer) const {
    if (!is(Variant::ended_means_lock_gone)) {
        return postgres::writer_is_running(writer);
    }
    VirtualTransactionId id;
#if PG_VERSION_NUM >= 170000
    id.procNumber = writer.backend;
#else
    id.backendId = writer.backend;
#endif
    id.localTransactionId = writer.local_id;
    return !VirtualXactLock(id, false);
}

StressDrainer::Walk StressDrainer::claim_gaps(Transaction& transaction,
                                              std::span<const Interval> gaps) {
    if (gaps.empty()) {
        return std::vector<SeenRow>{};
    }
    std::span<Walked> rows;
    std::span<std::int64_t> claimed;
    batch_++;
    const bool ok = transaction.run([&] {
        auto* lows = postgres::allocate<std::int64_t>(gaps.size());
        auto* highs = postgres::allocate<std::int64_t>(gaps.size());
        for (std::size_t i = 0; i < gaps.size(); i++) {
            lows[i] = gaps[i].lo;
            highs[i] = gaps[i].hi;
        }
        postgres::execute(walk_gaps_statement,
                          {postgres::bigint_array({lows, gaps.size()}),
                           postgres::bigint_array({highs, gaps.size()}), Int64GetDatum(ROOM)},
                          Access::read, transaction.snapshot());
        rows = walked_rows();
        claimed = claim_rows(rows, batch_);
    });
    if (!ok) {
        return std::nullopt;
    }
    progress_ = progress_ || !claimed.empty();
    counts_.in_gaps += static_cast<std::int64_t>(claimed.size());
    return fates(rows, claimed);
}

StressDrainer::Walk StressDrainer::claim_fresh(Transaction& transaction, std::int64_t cursor) {
    std::span<Walked> rows;
    std::span<std::int64_t> claimed;
    batch_++;
    const bool ok = transaction.run([&] {
        postgres::execute(walk_fresh_statement, {Int64GetDatum(cursor), Int64GetDatum(ROOM)},
                          Access::read, transaction.snapshot());
        rows = walked_rows();
        claimed = claim_rows(rows, batch_);
    });
    if (!ok) {
        return std::nullopt;
    }
    progress_ = progress_ || !rows.empty();
    return fates(rows, claimed);
}

bool StressDrainer::advance(Transaction& transaction, FreshLane& lane,
                            std::span<const SeenRow> fresh) {
    if (fresh.empty()) {
        return true;
    }
    pause(pauses_.before_writers);
    const Oid locked = is(Variant::table_lock) ? table_ : sequence_;
    std::span<const Writer> writers;
    if (!transaction.run([&] { writers = postgres::sequence_writers(locked); })) {
        return false;
    }
    lane.advanced(fresh, writers);
    return true;
}

bool StressDrainer::record_run() {
    Transaction transaction("late_commits");
    const bool recorded = transaction.begin(InvalidOid) && transaction.run([this] {
        postgres::execute(record_statement,
                          {Int64GetDatum(counts_.passes), Int64GetDatum(counts_.in_gaps),
                           Int64GetDatum(counts_.cut_short), Int64GetDatum(counts_.most_ranges)},
                          Access::write);
    });
    return finish(transaction, recorded);
}

}  // namespace outbox::test
