#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/drain.hpp"
#include "drain_sim_claim.hpp"
#include "drain_sim_database.hpp"

namespace outbox::test {

/// What became of marks that were written.
struct SimMarked {
    std::vector<std::int64_t> hit;
    std::vector<std::int64_t> lost;
    std::vector<std::int64_t> given_back;
};

/// Writes the marks of one drainer, and sees that each of them is true.
class SimMarks {
  public:
    SimMarks(SimDatabase& database, SimLedger& ledger, const DrainSettings& settings,
             std::string owner, Deviation deviation)
        : database_(database),
          ledger_(ledger),
          settings_(settings),
          owner_(std::move(owner)),
          deviation_(deviation) {}

    /// A row that somebody has locked makes the transaction fail, after lock_timeout.
    bool write(const BatchMarks& marks, Time now, SimMarked& marked) {
        bool ok = true;
        const auto each = [&](std::int64_t seq, auto&& mark) {
            const SimRow& row = database_.row(seq);
            ok = ok && !row.locked;
            if (row.unended() && is_guarded_by(row, marks.token)) {
                EXPECT_EQ(row.token, marks.token)
                    << "P5: row " << seq << " is marked under another claim";
                mark(database_.change(seq));
                marked.hit.push_back(seq);
            } else {
                marked.lost.push_back(seq);
            }
        };
        for (std::int64_t seq : marks.published) {
            each(seq, [&](SimRow& row) {
                EXPECT_EQ(verdict(marks, seq), Verdict::ack)
                    << "P2: " << seq << " is marked published without an ack";
                EXPECT_GT(ledger_.copies[seq], 0U) << "P1: " << seq << " is published nowhere";
                end(row, SimRow::End::published);
            });
        }
        for (const FailedMark& mark : marks.failed) {
            each(mark.seq, [&](SimRow& row) { put_off(row, marks, mark, now); });
        }
        for (const EndedMark& mark : marks.ended) {
            each(mark.seq, [&](SimRow& row) { end(row, marks, mark); });
        }
        for (std::int64_t seq : marks.deferred) {
            each(seq, [&](SimRow& row) {
                row.next_attempt = NEVER;
                row.token.clear();
            });
        }
        for (std::int64_t seq : marks.released) {
            each(seq, [&](SimRow& row) {
                row.token.clear();
                marked.given_back.push_back(seq);
            });
        }
        for (std::int64_t seq : marks.renewed) {
            each(seq, [&](SimRow& row) { row.leased_at = now; });
        }
        return ok;
    }

    void charge(SimRow& row, Time due) {
        row.attempts++;
        EXPECT_LE(row.attempts, ledger_.charges[row.seq])
            << "P7: " << row.seq << " is charged for nothing";
        EXPECT_TRUE(settings_.max_attempts == 0 || row.attempts < settings_.max_attempts)
            << row.seq << " should be dead";
        row.next_attempt = due;
        row.token.clear();
    }

    static void end(SimRow& row, SimRow::End how) {
        row.end = how;
        row.token.clear();
        row.next_attempt.reset();
    }

  private:
    bool is(Deviation deviation) const { return deviation_ == deviation; }

    bool is_guarded_by(const SimRow& row, const std::string& token) const {
        if (is(Deviation::guards_by_worker)) {
            return row.token.starts_with(owner_.substr(0, owner_.find('/') + 1));
        }
        const bool was_taken_back = row.token.empty() && row.taken_from == token;
        return row.token == token || (is(Deviation::marks_what_is_taken_back) && was_taken_back);
    }

    Verdict verdict(const BatchMarks& marks, std::int64_t seq) const {
        const auto found = ledger_.verdicts.find({marks.token, seq});
        return found == ledger_.verdicts.end() ? Verdict::none : found->second;
    }

    void put_off(SimRow& row, const BatchMarks& marks, const FailedMark& mark, Time now) {
        row.last_error = mark.error;
        row.put_off_at = database_.clock;
        if (mark.charged) {
            check_blame(row, marks, mark.error);
            charge(row, now + mark.delay);
        } else {
            check_held(row, mark.error);
            ledger_.held++;
            row.next_attempt = now + mark.delay;
            row.token.clear();
        }
    }

    // P7: charged is only what the broker said of that very message, under that claim.
    void check_blame(const SimRow& row, const BatchMarks& marks, std::string_view error) {
        const Verdict said = verdict(marks, row.seq);
        if (is_missing(row, error)) {
            EXPECT_EQ(settings_.missing_exchange, MissingExchange::fail) << row.seq;
            EXPECT_TRUE(ledger_.told_missing.contains({owner_, row.exchange}))
                << "P7: " << row.seq << " is charged for an exchange that is there";
            ledger_.charges[row.seq]++;
        } else if (error.starts_with("nack: ")) {
            EXPECT_EQ(said, Verdict::nack) << "P7: " << row.seq << ": " << error;
        } else if (error.starts_with("unroutable: ")) {
            EXPECT_EQ(said, Verdict::returned) << "P7: " << row.seq << ": " << error;
        } else {
            EXPECT_TRUE(error.starts_with("poison: ")) << error;
            EXPECT_EQ(said, Verdict::poison) << "P7: " << row.seq << ": " << error;
        }
    }

    static bool is_missing(const SimRow& row, std::string_view error) {
        return error == "unroutable: exchange \"" + std::string(EXCHANGES[row.exchange]) +
                            "\" does not exist";
    }

    void check_held(const SimRow& row, std::string_view error) const {
        const std::string name(EXCHANGES[row.exchange]);
        if (error == "held: exchange \"" + name + "\" does not exist") {
            EXPECT_EQ(settings_.missing_exchange, MissingExchange::hold) << row.seq;
            EXPECT_TRUE(ledger_.told_missing.contains({owner_, row.exchange}))
                << row.seq << " is held for an exchange that is there";
        } else {
            EXPECT_TRUE(error.starts_with("held: waits to be sent alone")) << error;
            EXPECT_TRUE(ledger_.told_refusing.contains({owner_, row.exchange}))
                << row.seq << " is held for an exchange that refused nothing";
        }
    }

    void end(SimRow& row, const BatchMarks& marks, const EndedMark& mark) {
        row.last_error = mark.error;
        const bool is_rejected = mark.outcome == EndedMark::Outcome::rejected;
        EXPECT_TRUE(row.refused == is_rejected || is_missing(row, mark.error))
            << row.seq << ": " << mark.error;
        if (!is_rejected) {
            check_blame(row, marks, mark.error);
            row.attempts++;
            EXPECT_LE(row.attempts, ledger_.charges[row.seq])
                << "P7: " << row.seq << " is charged for nothing";
            EXPECT_EQ(row.attempts, settings_.max_attempts) << row.seq << " is dead too soon";
        }
        end(row, is_rejected ? SimRow::End::rejected : SimRow::End::dead);
    }

    SimDatabase& database_;
    SimLedger& ledger_;
    const DrainSettings& settings_;
    std::string owner_;
    Deviation deviation_;
};

}  // namespace outbox::test
