#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/drain.hpp"
#include "core/fresh_lane.hpp"
#include "drain_seed.hpp"

namespace outbox::test {

/// What the messages of one world have been through, for the final account.
struct SimLedger {
    std::map<std::int64_t, std::size_t> copies;            ///< stored in the broker, by row
    std::map<std::int64_t, std::int32_t> charges;          ///< nacks and refusals, by row
    std::set<std::pair<std::string, std::int64_t>> sent;   ///< by claim token and row
    std::set<std::pair<std::string, std::int64_t>> acked;  ///< by claim token and row
    std::size_t may_be_sent_again = 0;  ///< sum of the windows that faults have cut off
    std::size_t faults = 0;
    std::size_t stale_marks = 0;
    std::size_t reaped = 0;

    std::size_t duplicates() const {
        std::size_t sum = 0;
        for (const auto& [seq, count] : copies) {
            sum += count - 1;
        }
        return sum;
    }
};

/// One outbox table. A statement is a call, a transaction some calls in a row.
class SimDatabase {
  public:
    struct Row {
        std::int64_t seq = 0;
        bool committed = false;
        bool bad = false;  ///< cannot be sent as it is
        bool published = false;
        bool deferred = false;
        Time due{};
        std::int32_t attempts = 0;
        std::string token;  ///< of the claim; empty: free
        Time leased_at{};

        bool is_free() const { return committed && !published && token.empty(); }
    };

    Row& row(std::int64_t seq) { return rows[static_cast<std::size_t>(seq - 1)]; }

    /// Producers begin, write, commit and roll back.
    void produce(Dice& dice) {
        if (open.empty() || (open.size() < 5 && dice.chance(0.4))) {
            open.push_back({{1, next_writer++}, {}});
        }
        const std::size_t at = dice.below(open.size());
        for (std::uint64_t i = dice.below(4); i > 0; i--) {
            Row row;
            row.seq = static_cast<std::int64_t>(rows.size()) + 1;
            row.bad = dice.chance(0.02);
            open[at].second.push_back(row.seq);
            rows.push_back(row);
        }
        if (dice.chance(0.6)) {
            end_writer(at, dice.chance(0.9));
        }
    }
    void end_writer(std::size_t at, bool commit) {
        for (std::int64_t seq : open[at].second) {
            row(seq).committed = commit;
        }
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }

    std::vector<Writer> writers() const {
        std::vector<Writer> all;
        for (const auto& [writer, written] : open) {
            all.push_back(writer);
        }
        return all;
    }

    std::size_t claimed_by(const std::string& owner) const {
        return static_cast<std::size_t>(
            std::count_if(rows.begin(), rows.end(),
                          [&owner](const Row& row) { return row.token.starts_with(owner); }));
    }

    std::vector<Row> rows;
    std::vector<std::pair<Writer, std::vector<std::int64_t>>> open;
    std::uint32_t next_writer = 1;
    std::int64_t floor = 0;
    bool down = false;
};

/// Claims rows as the shell does: what came due in the deferred lane, then a pass of the fresh
/// lane.
class SimClaim {
  public:
    SimClaim(SimDatabase& database, FreshLane& lane, Time now, std::string token)
        : database_(database), lane_(lane), now_(now), token_(std::move(token)) {}

    std::vector<Event> run(std::size_t limit) {
        for (SimDatabase::Row& row : database_.rows) {
            if (row.is_free() && row.deferred && row.due <= now_ && events_.size() < limit) {
                take(row);
            }
        }
        lane_.begin_pass();
        const std::vector<Writer> running = database_.writers();
        for (const Writer& writer : lane_.writers()) {
            if (std::find(running.begin(), running.end(), writer) == running.end()) {
                lane_.note_ended(writer, FreshLane::Moment::before_snapshot);
            }
        }
        const std::vector<SeenRow> late = read(lane_.gaps_to_scan(), limit);
        lane_.gaps_scanned(late, events_.size() < limit);
        if (lane_.may_advance()) {
            const Interval above{lane_.cursor() + 1,
                                 static_cast<std::int64_t>(database_.rows.size())};
            const std::vector<SeenRow> fresh = read({above}, limit);
            lane_.advanced(fresh, running);
        }
        return std::move(events_);
    }

  private:
    void take(SimDatabase::Row& row) {
        row.token = token_;
        row.leased_at = now_;
        Event event;
        event.seq = row.seq;
        event.payload = "twenty bytes of text";
        event.attempts = row.attempts;
        event.deferred = row.deferred;
        events_.push_back(event);
    }

    std::vector<SeenRow> read(const std::vector<Interval>& intervals, std::size_t limit) {
        std::vector<SeenRow> seen;
        for (const Interval& interval : intervals) {
            for (std::int64_t seq = interval.lo; seq <= interval.hi && events_.size() < limit;
                 seq++) {
                SimDatabase::Row& row = database_.row(seq);
                if (!row.committed) {
                    continue;
                }
                if (row.published || row.deferred) {
                    seen.push_back({seq, SeenRow::Fate::elsewhere});
                } else if (!row.token.empty()) {
                    seen.push_back({seq, row.token == token_ ? SeenRow::Fate::claimed
                                                             : SeenRow::Fate::passed_over});
                } else {
                    take(row);
                    seen.push_back({seq, SeenRow::Fate::claimed});
                }
            }
        }
        return seen;
    }

    SimDatabase& database_;
    FreshLane& lane_;
    Time now_;
    std::string token_;
    std::vector<Event> events_;
};

}  // namespace outbox::test
