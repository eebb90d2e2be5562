#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/announcement_limit.hpp"
#include "core/claim_order.hpp"
#include "core/claim_token.hpp"
#include "core/drain.hpp"
#include "core/fresh_lane.hpp"
#include "core/left_rows.hpp"
#include "core/relay_settings.hpp"
#include "core/retention.hpp"
#include "postgres/arena.hpp"
#include "postgres/bucket_map.hpp"
#include "postgres/event_store.hpp"
#include "postgres/slot.hpp"
#include "worker/broker_link.hpp"
#include "worker/topology.hpp"

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
    Command publish_burst(Time now);
    void publish(Time now, const Command& command);
    void wait(Time until);
    void inject_after_pump() const;
    void inject_between_publishes();
    void inject_before_wait() const;
    void report();
    void note_database_error(const postgres::PgError& error);
    void look_at_stored_settings();

    void read_relay_settings();
    void share_buckets_if_due(Time now);
    void share_buckets(Time now);
    std::int64_t reached() const;
    void start_lane(std::int64_t floor);
    void lead(bool leads);
    void allow_claims();
    Ordering ordering() const { return drain_.settings().ordering; }

    struct Marked;
    struct TakenBack;
    struct Claim;

    // One transaction: marks, floor, claim (transact.cpp).
    void transact();
    void transact_one_by_one();
    void replay();
    bool begin(postgres::Transaction& transaction);
    bool refuse_table(const postgres::TableInfo& table);
    bool write_plan(postgres::Transaction& transaction, const TransactionPlan& plan,
                    Marked& marked);
    bool write_floor_if_due(postgres::Transaction& transaction, bool all_hit,
                            std::optional<std::int64_t>& written);
    void write_last_floor();
    bool may_claim_now();
    void look_again_at(const Marked& marked);
    void finish_claim(Time now, Claim claim, bool durable);
    void take_lane(Claim& claim);
    GroupLimits per_group() const;
    void free_spent_payloads();
    ClaimOrder::Limits claim_limits(const TransactionPlan& plan) const;

    // The marks (marks.cpp).
    bool write_marks(postgres::Transaction& transaction, const BatchMarks& marks, Marked& marked);
    bool write_ended(postgres::Transaction& transaction, const BatchMarks& marks, Marked& marked);
    bool follow_up(postgres::Transaction& transaction, const std::vector<std::int64_t>& ended,
                   const std::string& pause);
    bool wake_held(postgres::Transaction& transaction, const TransactionPlan& plan, Claim& claim);
    void count(const Marked& marked);
    void announce(const Marked& marked);

    // The claim (claim.cpp).
    bool claim(postgres::Transaction& transaction, Claim& claim);
    bool note_ended_writers(postgres::Transaction& transaction, FreshLane& lane,
                            FreshLane::Moment moment);
    bool walk(postgres::Transaction& transaction, Claim& claim);
    bool look_whether_halted(postgres::Transaction& transaction, Claim& claim);
    bool read_gaps(postgres::Transaction& transaction, Claim& claim);
    bool find_holders(postgres::Transaction& transaction, Claim& claim,
                      std::span<const postgres::WalkedRow> rows);
    void take_from_gaps(Claim& claim, std::size_t room_for_due);
    std::size_t room_for_due(const Claim& claim, std::int64_t last) const;
    std::int64_t walked_to(const Claim& claim) const;
    void take_due(Claim& claim);
    bool walk_ahead(postgres::Transaction& transaction, Claim& claim, std::int64_t last);
    void note_walk(const Claim& claim, std::size_t covered, std::size_t seen, bool full);
    bool owns(std::uint64_t bucket_hash) const;
    bool is_ours(const postgres::WalkedRow& row) const;
    bool stands_in_the_way(const postgres::WalkedRow& row) const;
    bool lock_passed_over(postgres::Transaction& transaction, Claim& claim,
                          std::span<const postgres::WalkedRow> rows);
    bool may_be_claimed(const postgres::WalkedRow& row, const Claim& claim) const;
    std::optional<std::span<const postgres::WalkedRow>> before_dead_claims(
        postgres::Transaction& transaction, std::span<const postgres::WalkedRow> rows,
        Claim& claim);
    void retry_unclaimable(Claim& claim);
    bool take_wanted(postgres::Transaction& transaction, Claim& claim);
    bool leave_behind(postgres::Transaction& transaction, Claim& claim,
                      const std::vector<std::int64_t>& behind);
    bool defer_others(postgres::Transaction& transaction, Claim& claim);
    bool note_failed_claim(const Claim& claim, const postgres::PgError& error);
    bool report_to_lane(postgres::Transaction& transaction, Claim& claim);
    bool find_next_due(postgres::Transaction& transaction, Claim& claim);
    SeenRow::Fate fate_of(const postgres::WalkedRow& row, const Claim& claim) const;
    bool sequence_moved_back(const FreshLane& lane, std::int64_t last) const;

    // What others left behind (reclaim.cpp).
    bool prepare();
    bool find_table();
    bool reclaim();
    std::optional<std::size_t> reclaim_deferred();
    bool look_through(std::int64_t& position, std::int64_t last);
    void note_taken_back(const TakenBack& taken);
    bool release_held(postgres::Transaction& transaction, std::span<const postgres::HeldRow> rows,
                      TakenBack& taken);
    bool take_back(postgres::Transaction& transaction, std::span<const postgres::HeldRow> rows,
                   TakenBack& taken);
    bool charge_killer(postgres::Transaction& transaction, const postgres::HeldRow& row,
                       const std::string& token, TakenBack& taken);
    bool killed_its_drainer(std::string_view token) const;
    std::size_t suspects_of(std::string_view token, std::size_t rows) const;
    bool may_take_over(const postgres::HeldRow& row) const;
    bool is_dead(std::string_view token) const;
    void sweep();
    void sweep_turn(std::int64_t& position, std::int64_t from, std::int64_t to);
    void sweep_groups();
    void look_at_backlog();
    std::optional<std::size_t> call_ungrouped(postgres::Transaction& transaction,
                                              std::size_t called_before);
    std::optional<std::size_t> call_stranded_groups(postgres::Transaction& transaction);

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
    DrainSettings settings_;  ///< the relay's over the server's
    RelaySettings relay_;
    Drain drain_;
    BrokerLink link_;
    Topology topology_;
    FreshLane lane_;
    LeftRows left_;
    postgres::Buckets shares_;
    BucketMask buckets_ = 0;  ///< of which rows may be claimed
    std::size_t drainers_sharing_ = 1;
    /// Fresh rows that one claim is likely to have room for; beyond what any batch can have.
    std::size_t worth_walking_ = std::size_t{1} << 40U;
    Ordering shared_ordering_ = Ordering::per_key;  ///< by which the buckets were taken
    bool reclaim_pending_ = false;                  ///< of buckets taken, what dead drainers hold
    Time share_at_{};
    /// Groups that waited, at the last pass, for a row that somebody else has locked or holds.
    std::set<std::uint64_t> blocked_groups_;
    std::int64_t locks_tried_to_ = 0;  ///< of rows that were passed over
    bool lock_turn_ = false;  ///< where there is room for one row, they and others take turns
    std::int64_t group_sweep_position_ = 0;
    AnnouncementLimit announcements_;
    Random killer_jitter_;

    postgres::TableInfo table_;
    Oid sequence_file_ = InvalidOid;
    std::map<BatchId, postgres::Arena> batches_;
    postgres::Arena replayed_;
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
    bool collects_ = false;
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
