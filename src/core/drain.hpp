#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backoff.hpp"
#include "core/drainer_state.hpp"
#include "core/event.hpp"
#include "core/settings.hpp"
#include "core/tag_tracker.hpp"
#include "core/time.hpp"

namespace outbox {

using BatchId = std::uint64_t;

/// A charged failure to be written to its row.
struct FailedMark {
    std::int64_t seq = 0;
    std::string error;  ///< begins with its class: "nack: ...", "rejected: ..."
    Duration delay{};   ///< until the next attempt
};

/// What is to be written to the rows of one batch, all of it guarded by the batch's claim token.
struct BatchMarks {
    BatchId batch = 0;
    std::string token;
    std::vector<std::int64_t> published;
    std::vector<FailedMark> failed;
    std::vector<std::int64_t> released;
    std::vector<std::int64_t> renewed;
};

/// One short transaction: marks first, then the claim.
struct TransactionPlan {
    std::vector<BatchMarks> marks;
    std::size_t claim = 0;    ///< how many rows to claim at most
    bool one_by_one = false;  ///< each mark in a transaction of its own, as all together failed
};

/// How a transaction of a plan went, when it committed.
struct TransactionResult {
    std::vector<std::int64_t> unwritten;  ///< one_by_one: rows whose own transaction failed
    std::vector<std::int64_t> untried;    ///< one_by_one: rows left out after several failures
    std::string token;                    ///< of the rows claimed
    std::span<const Event> claimed;       ///< stays valid until finished_batches() names the batch
    bool more = false;                    ///< another claim would probably find rows at once
    std::optional<Duration> next_due;     ///< when the next deferred row comes due
    bool durable = true;  ///< false: the wait for a standby was cancelled, publish nothing
};

/// What whoever drives the machine has to do next.
struct Command {
    enum class Kind : std::uint8_t {
        wait,        ///< for the broker, a wake or `until`
        connect,     ///< start connecting
        disconnect,  ///< drop the connection because of `reason`, then connection_closed() or
                     ///< _lost()
        publish,     ///< publish `event`, then sent() or rejected() or connection_lost()
        transact,    ///< run plan(), then transacted() or transaction_failed()
        exit,        ///< all is settled
    };
    Kind kind = Kind::wait;
    Time until{};
    std::string reason;
    const Event* event = nullptr;
};

/// The drain cycle as a state machine: it takes what happened and says what to do. It reads no
/// clock, does no I/O and holds no lock, so a test or a simulation can drive it through any
/// interleaving.
///
/// A row in hand is ready (claimed, unsent), sent (unconfirmed), then published or failed (to be
/// marked), or to be released. Outcomes stay in memory until a transaction wrote them.
class Drain {
  public:
    Drain(const DrainSettings& settings, std::uint64_t seed);

    Command next(Time now);
    /// The transaction that the last Command::transact asked for.
    const TransactionPlan& plan() const noexcept { return plan_; }

    // The broker's side.
    void connected(Time now, std::size_t send_buffer_bytes);
    /// The connection could not be made or is gone; nobody is charged. `configuration`: nothing
    /// will change until somebody acts, so the next attempt comes late.
    void connection_lost(Time now, bool configuration, std::string_view why);
    /// The connection was closed because the machine asked for it without a fault.
    void connection_closed(Time now);
    void blocked();
    void unblocked();
    /// False: not the tag that comes next; the connection must be dropped.
    bool sent(Time now, std::uint64_t tag, std::size_t bytes);
    void rejected(Time now, std::string_view code, std::string_view detail);
    /// False: the broker confirmed what was not sent; the connection must be dropped.
    bool confirmed(Time now, std::uint64_t tag, bool multiple, bool ack);

    // The database's side.
    void woken() noexcept { look_ = true; }
    /// Between Command::transact and one of these two nothing else may be told to the machine.
    void transacted(Time now, const TransactionResult& result);
    void transaction_failed(Time now);
    /// Batches that have no row in hand any more, since the last call.
    std::vector<BatchId> finished_batches();
    /// The id that the rows of the next claim will get.
    BatchId next_batch() const noexcept { return next_batch_; }

    // The operator's side.
    void configure(Time now, const DrainSettings& settings);
    /// Settings that cannot work and nothing better known: publish nothing.
    void set_misconfigured(bool misconfigured) noexcept { misconfigured_ = misconfigured; }
    /// Nothing is claimed while held: what dead drainers left must be taken back first.
    void hold_claims(bool held) noexcept { claims_held_ = held; }
    void stop(Time now);

    DrainerState state() const;
    std::size_t in_flight() const noexcept { return tags_.open_count(); }
    std::size_t in_hand() const noexcept { return rows_in_hand_; }
    bool stopping() const noexcept { return stopping_; }
    /// Whether rows of the claim with this token are in hand.
    bool holds(std::string_view token) const;
    /// The lowest sequence number of the fresh lane in hand that the current plan does not bring to
    /// an end; nullopt when there is none.
    std::optional<std::int64_t> lowest_kept() const;

  private:
    enum class RowState : std::uint8_t { free, ready, sent, published, failed, releasing };
    enum class Link : std::uint8_t { down, connecting, up };

    struct Row {
        const Event* event = nullptr;
        BatchId batch = 0;
        RowState state = RowState::free;
        Time since{};  ///< when it was sent, or when its outcome came
        std::size_t bytes = 0;
        std::string error;
        bool renew = false;
        bool set_aside = false;  ///< its mark failed alone; tried again now and then
    };
    struct Batch {
        std::string token;
        Time leased_at{};
        std::vector<std::size_t> rows;  ///< still in hand
    };

    bool may_run() const noexcept;
    bool is_leaving() const noexcept;
    bool may_claim() const;
    bool may_publish(Time now) const;
    bool window_takes(const Row& row) const;
    std::optional<std::string> fault(Time now) const;
    bool wants_disconnect() const;
    void look_after_leases(Time now);
    void give_up_unsent();
    void give_up_sent();
    bool transaction_due(Time now);
    void make_plan(Time now, bool claim);
    void plan_rows_set_aside(Time now);
    void add_marks(bool set_aside);
    void take_written(const TransactionResult& result, bool& failed_again);
    void set_aside(std::size_t index);
    void uncount(const Row& row);
    void add_claim(const TransactionResult& result);
    void drop_row(std::size_t index);
    void forget_dropped_rows();
    Command wait(Time now) const;
    Time confirm_deadline() const;
    std::size_t settle_threshold() const noexcept;

    DrainSettings settings_;
    std::optional<DrainSettings> next_settings_;  ///< take effect when the batch in hand is settled
    Random random_;

    Link link_ = Link::down;
    Time link_since_{};
    bool blocked_ = false;
    Time last_blocked_{};
    std::size_t send_buffer_bytes_ = 0;
    std::size_t unconfirmed_bytes_ = 0;
    int connect_failures_ = 0;
    Time reconnect_at_{};

    bool misconfigured_ = false;
    bool claims_held_ = false;
    bool stopping_ = false;
    Time stop_deadline_{};

    std::vector<Row> rows_;
    std::vector<std::size_t> free_rows_;
    std::deque<std::size_t> ready_;
    std::map<BatchId, Batch> batches_;
    std::vector<BatchId> finished_;
    BatchId next_batch_ = 1;
    TagTracker tags_;
    std::size_t rows_in_hand_ = 0;
    std::size_t published_ = 0;
    std::size_t failed_ = 0;
    std::size_t releasing_ = 0;
    std::size_t to_renew_ = 0;
    std::size_t set_aside_ = 0;  ///< not in the counts above
    Time set_aside_at_{};        ///< when they are tried again
    std::optional<Time> oldest_outcome_;

    TransactionPlan plan_;
    Time planned_at_{};
    std::vector<std::size_t> planned_rows_;
    int transaction_failures_ = 0;
    Time transact_at_{};
    /// Halved by each claim that fails, so that a row which nobody can claim is found; doubled by
    /// success.
    std::size_t claim_limit_ = SIZE_MAX / 4;
    bool look_ = true;
    Time next_look_{};
};

}  // namespace outbox
