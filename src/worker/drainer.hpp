#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/claim_token.hpp"
#include "core/drain.hpp"
#include "core/fresh_lane.hpp"
#include "core/retention.hpp"
#include "postgres/arena.hpp"
#include "postgres/event_store.hpp"
#include "postgres/slot.hpp"
#include "worker/broker_link.hpp"

namespace outbox::worker {

enum class ExitReason : std::uint8_t {
    stopped,           ///< SIGTERM
    no_extension,      ///< the database has no outbox_drainer extension (any more)
    settings_changed,  ///< ALTER DATABASE/ROLE ... SET, which only a new process sees
};

/// Drains the outbox of the database that this process is connected to, until it is told to stop.
class Drainer {
  public:
    explicit Drainer(postgres::Slot& slot);

    ExitReason run();

  private:
    // The loop's parts (drainer.cpp).
    bool find_extension();
    void take_notice();
    void take_settings();
    void judge_configuration();
    void wait(Time until);
    void report();
    void note_database_error(const postgres::PgError& error);
    void look_at_stored_settings();

    struct Marked;
    struct Claim;

    // One transaction: marks, floor, claim (transact.cpp).
    void transact();
    void transact_one_by_one();
    bool begin(postgres::Transaction& transaction);
    bool refuse_table(const postgres::TableInfo& table);
    bool write_marks(postgres::Transaction& transaction, const BatchMarks& marks, Marked& marked);
    bool write_floor_if_due(postgres::Transaction& transaction, bool all_hit,
                            std::optional<std::int64_t>& written);
    void write_last_floor();
    std::int64_t floor() const;
    void count(const Marked& marked);
    void look_again_at(const Marked& marked);
    void finish_claim(Time now, Claim claim, bool durable);

    // The claim (claim.cpp).
    bool claim(postgres::Transaction& transaction, Claim& claim);
    bool note_ended_writers(postgres::Transaction& transaction, FreshLane& lane,
                            FreshLane::Moment moment);
    bool walk(postgres::Transaction& transaction, Claim& claim);
    bool walk_gaps(postgres::Transaction& transaction, Claim& claim);
    bool may_be_claimed(const postgres::WalkedRow& row, Claim& claim) const;
    std::optional<std::span<const postgres::WalkedRow>> before_dead_claims(
        postgres::Transaction& transaction, std::span<const postgres::WalkedRow> rows,
        Claim& claim);
    void retry_unclaimable(Claim& claim);
    bool note_failed_claim(const Claim& claim, const postgres::PgError& error);
    bool report_to_lane(postgres::Transaction& transaction, Claim& claim);
    SeenRow::Fate fate_of(const postgres::WalkedRow& row, const Claim& claim) const;
    bool sequence_moved_back(const FreshLane& lane, std::int64_t last) const;

    // What others left behind (reclaim.cpp).
    bool prepare();
    bool find_table();
    bool reclaim();
    bool reclaim_deferred(std::size_t& released);
    bool look_through(std::int64_t& position, std::int64_t last);
    void note_taken_back(std::size_t count);
    bool release_held(postgres::Transaction& transaction, std::span<const postgres::HeldRow> rows,
                      std::vector<std::int64_t>& released);
    bool may_take_over(const postgres::HeldRow& row) const;
    bool is_dead(std::string_view token) const;
    void sweep();
    void sweep_turn(std::int64_t& position, std::int64_t from, std::int64_t to);

    // Rows whose retention is over (retention.cpp).
    bool may_collect() const;
    Duration until_collection(Time now) const;
    void collect();
    bool begin_retention();
    void collect_chunk(Time now);
    bool remove_chunk(postgres::Transaction& transaction, Time now,
                      std::span<const std::int64_t>& chosen, std::vector<std::int64_t>& removed);
    bool position_is_due(Time now) const;
    void write_position_alone(Time now);
    bool write_position_if_due(postgres::Transaction& transaction, Time now,
                               std::optional<std::int64_t>& written);
    void note_failed_collection(std::span<const std::int64_t> chosen,
                                const postgres::PgError& error);

    postgres::Slot& slot_;
    Incarnation self_;
    DrainSettings settings_;
    Drain drain_;
    BrokerLink link_;
    FreshLane lane_;

    postgres::TableInfo table_;
    Oid sequence_file_ = InvalidOid;
    std::map<BatchId, postgres::Arena> batches_;
    std::uint64_t claim_counter_ = 0;

    bool extension_gone_ = false;
    bool stored_settings_changed_ = false;
    std::optional<std::int64_t> stored_settings_;
    bool prepared_ = false;
    Time prepare_at_{};
    Time sweep_at_{};
    std::int64_t sweep_position_ = 0;    ///< above the floor
    std::int64_t history_position_ = 0;  ///< below it
    std::map<std::int64_t, Time>
        unclaimable_;  ///< rows that make a claim fail, and when to try them again
    static constexpr std::int64_t NO_FLOOR = -1;
    std::int64_t floor_written_ = NO_FLOOR;
    Time floor_written_at_{};
    bool collects_ = true;
    Retention retention_;
    std::optional<std::int64_t> retention_position_;  ///< as written; nullopt: not read yet
    Time retention_position_at_{};
    Time retention_retry_at_{};
    std::string refusal_;
    Time settings_looked_at_{};
    std::string settings_problem_;
    std::string table_problem_;
    std::string reported_error_;
};

}  // namespace outbox::worker
