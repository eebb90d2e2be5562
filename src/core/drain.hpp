#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/backoff.hpp"
#include "core/buckets.hpp"
#include "core/careful_window.hpp"
#include "core/channel.hpp"
#include "core/channel_fault.hpp"
#include "core/drainer_state.hpp"
#include "core/event.hpp"
#include "core/exchange_book.hpp"
#include "core/group_queues.hpp"
#include "core/nack_watch.hpp"
#include "core/rate_limiter.hpp"
#include "core/reconnect.hpp"
#include "core/replay_lane.hpp"
#include "core/settings.hpp"
#include "core/tag_tracker.hpp"
#include "core/time.hpp"

namespace outbox {

using BatchId = std::uint64_t;

/// A failure to be written to its row, which will be tried again.
struct FailedMark {
    std::int64_t seq = 0;
    std::string error;    ///< begins with its class: "nack: ...", "unroutable: ...", "held: ..."
    Duration delay{};     ///< until the next attempt
    bool charged = true;  ///< false: held, for what is missing at the broker
};

/// Held rows to be made due, since what they waited for is there: so many rows of the deferred lane
/// are looked at, in the order of next_attempt_at.
struct WakeHeld {
    std::string error;  ///< the last_error that they have; empty: whatever they are held for
    std::int64_t after =
        0;  ///< next_attempt_at, microseconds since the Unix epoch, to begin behind
};

/// The end of a row that was not published.
struct EndedMark {
    enum class Outcome : std::uint8_t {
        dead,      ///< its attempts are used up, the last one of them is charged by this mark
        rejected,  ///< it can never be sent; nothing was, and nothing is charged
    };
    std::int64_t seq = 0;
    Outcome outcome = Outcome::dead;
    Uuid id{};
    std::string code;   ///< short and stable
    std::string error;  ///< begins with its class
};

/// What is to be written to the rows of one batch, all of it guarded by the batch's claim token.
struct BatchMarks {
    BatchId batch = 0;
    std::string token;
    std::vector<std::int64_t> published;
    std::vector<std::uint64_t> places;  ///< of those published, in their order: see Event::place
    std::vector<FailedMark> failed;
    std::vector<EndedMark> ended;
    std::vector<std::int64_t> deferred;  ///< put behind the failed row of their group, uncharged
    std::vector<std::int64_t> released;
    std::vector<std::int64_t> renewed;
};

/// One short transaction: marks first, then the claim.
struct TransactionPlan {
    std::vector<BatchMarks> marks;
    /// Rows ended by these marks that were the last of their groups in hand: what waits behind them
    /// in the deferred lane is to be made due.
    std::vector<std::int64_t> release_behind;
    std::string pause;  ///< not empty: the relay is to be paused, with this reason
    std::optional<WakeHeld> wake_held;
    std::size_t claim = 0;        ///< how many rows to claim at most
    std::size_t walk = 0;         ///< how many to look at, and to change in one way or another;
                                  ///< more than `claim` in the search for a row that kills
    std::size_t claim_bytes = 0;  ///< how many bytes of payload; one row may have more
    std::size_t suspicion = 0;    ///< not 0: the claim is part of the search for a row that kills
    bool one_by_one = false;      ///< each mark in a transaction of its own, as all together failed
};

/// How a transaction of a plan went, when it committed.
struct TransactionResult {
    std::vector<std::int64_t> unwritten;  ///< one_by_one: rows whose own transaction failed
    std::vector<std::int64_t> untried;    ///< one_by_one: rows left out after several failures
    std::string token;                    ///< of the rows claimed
    std::span<const Event> claimed;       ///< stays valid until finished_batches() names the batch
    std::vector<std::uint64_t> followed;  ///< groups in hand behind which the claim deferred rows
    /// Groups of which the claim left rows behind the cursor, and how many of each it allows.
    std::vector<std::uint64_t> left;
    std::size_t rows_per_group = 0;
    bool more = false;                 ///< another claim would probably find rows at once
    std::optional<Duration> next_due;  ///< when the next deferred row comes due
    /// Of wake_held: the next_attempt_at up to which was looked; nullopt: to the end.
    std::optional<std::int64_t> woken_to;
    bool durable = true;  ///< false: the wait for a standby was cancelled, publish nothing
};

/// What whoever drives the machine has to do next.
struct Command {
    enum class Kind : std::uint8_t {
        wait,        ///< for the broker, a wake or `until`
        connect,     ///< start connecting to `broker`
        disconnect,  ///< drop the connection because of `reason`, then connection_closed() or
                     ///< _lost()
        publish,     ///< publish `event` on `channel`, then sent(), rejected() or connection_lost()
        ask,         ///< ask whether `exchange` exists; answered() follows some time
        transact,    ///< run plan(), then transacted() or transaction_failed()
        replay,      ///< run replay().plan(), then its transacted() or transaction_failed()
        exit,        ///< all is settled
    };
    Kind kind = Kind::wait;
    Time until{};
    std::string reason = {};
    const Event* event = nullptr;
    Channel channel = Channel::main;
    std::string exchange = {};
    std::size_t broker = 0;  ///< which of the list in broker_uri
};

/// An event without a group falls into a bucket by its number.
inline std::size_t bucket_of_event(const Event& event) noexcept {
    return static_cast<std::size_t>(
        bucket_of(event.group.value_or(static_cast<std::uint64_t>(event.seq))));
}

/// The drain cycle as a state machine: it takes what happened and says what to do. It reads no
/// clock, does no I/O and holds no lock, so a test or a simulation can drive it through any
/// interleaving.
///
/// A row in hand is ready (claimed, unsent), sent (unconfirmed), then published, failed or ended
/// (to be marked), or to be deferred or released. Outcomes stay in memory until a transaction wrote
/// them.
///
/// Rows of a group go one at a time, in the order of their numbers, each after the ack of the one
/// before. A row that failed holds its group: what is in hand of it goes to the deferred lane in
/// the transaction that writes the failure (with stop_the_line: back to the table), so that nothing
/// of the group can be published before the failed row has had its end.
///
/// A row goes out when its exchange is known to exist. One that may make the broker close the
/// channel is a suspect: it goes on the trial channel, with no other suspect beside it
/// (drain_isolation.cpp).
class Drain {
  public:
    Drain(const DrainSettings& settings, std::uint64_t seed);

    Command next(Time now);
    /// The transaction that the last Command::transact asked for.
    const TransactionPlan& plan() const noexcept { return plan_; }

    // The broker's side.
    /// The attempt that the last Command::connect asked for may take this long instead of the
    /// setting.
    void connecting_within(Duration timeout) noexcept { connect_timeout_ = timeout; }
    void connected(Time now, std::size_t send_buffer_bytes);
    /// The connection could not be made or is gone; nobody is charged. `configuration`: nothing
    /// will change until somebody acts, so the next attempt comes late.
    /// `by_publish`: the broker named a message as the cause, so those unconfirmed are suspects.
    void connection_lost(Time now, bool configuration, std::string_view why,
                         bool by_publish = false);
    /// The connection was closed because the machine asked for it without a fault.
    void connection_closed(Time now);
    void blocked();
    void unblocked();
    /// The message of the last Command::publish. False: not the tag that comes next on its channel;
    /// the connection must be dropped.
    bool sent(Time now, std::uint64_t tag, std::size_t bytes);
    /// The broker could not route the message that was sent under this tag; its confirm follows.
    void returned(Channel channel, std::uint64_t tag, std::string_view why);
    void rejected(Time now, std::string_view code, std::string_view detail);
    /// False: the broker confirmed what was not sent; the connection must be dropped.
    bool confirmed(Time now, Channel channel, std::uint64_t tag, bool multiple, bool ack);
    /// The broker closed a channel, with AMQP's reply code and its own words; channel_opened()
    /// follows, and its tags begin anew. False: this is no matter of a message; the connection must
    /// be dropped.
    bool channel_closed(Time now, Channel channel, std::uint16_t code, std::string_view why);
    void channel_opened(Channel channel);
    /// What the last Command::ask was answered. `exists` nullopt: the broker would not say.
    void answered(Time now, std::string_view exchange, std::optional<bool> exists);

    // The database's side.
    void woken() noexcept {
        look_ = true;
        replay_.woken();
    }
    /// Whether woken() would change anything: not while it is going to look for rows anyway, as
    /// soon as it may.
    bool wants_waking() const noexcept { return !look_ || !replay_.is_woken(); }
    /// Between Command::transact and one of these two nothing else may be told to the machine.
    void transacted(Time now, const TransactionResult& result);
    void transaction_failed(Time now);
    /// Batches that have no row in hand any more, since the last call.
    std::vector<BatchId> finished_batches();
    /// Events in hand whose payload is not needed any more and has memory of its own, since the
    /// last call. To be called between Command::transact and transacted(): what that ends is gone.
    std::vector<const Event*> spent_payloads();
    /// The id that the rows of the next claim will get.
    BatchId next_batch() const noexcept { return next_batch_; }

    /// Whether replays are this drainer's business; one drainer of a relay sees to them.
    void let_replay(bool may_replay);
    /// The replay of published events, which shares the connection.
    ReplayLane& replay() noexcept { return replay_; }

    // The operator's side.
    void configure(Time now, const DrainSettings& settings);
    /// Settings that cannot work and nothing better known: publish nothing.
    void set_misconfigured(bool misconfigured) noexcept { misconfigured_ = misconfigured; }
    /// Nothing is claimed while held: what dead drainers left must be taken back first.
    void hold_claims(bool held) noexcept { claims_held_ = held; }
    /// A drainer died with `rows` rows of one claim in hand. One of them may be what killed it:
    /// they are claimed by half as many, and so on, each claim settled before the next; a claim of
    /// one row under suspicion whose drainer dies has found it.
    /// To be called for each such claim.
    void suspect(std::size_t rows) noexcept;
    /// How many drainers share the relay, and so its publish_rate.
    void share_with(std::size_t drainers);
    void stop(Time now);

    /// What it runs by now; a new ordering takes effect when nothing is in hand.
    const DrainSettings& settings() const noexcept { return settings_; }
    DrainerState state() const;
    std::size_t in_flight() const noexcept { return tags_.open_count() + trial_tags_.open_count(); }
    std::size_t in_hand() const noexcept { return rows_in_hand_; }
    /// How many outcomes are known and not written.
    std::size_t outcomes() const noexcept { return published_ + failed_; }
    bool stopping() const noexcept { return stopping_; }
    /// Whether a message was sent under this tag and is not confirmed.
    bool is_unconfirmed(Channel channel, std::uint64_t tag) const;
    /// The largest body that is sent: the setting, or what the broker's refusals taught.
    std::size_t max_message_bytes() const;
    /// Whether max_message_bytes() is the broker's limit.
    bool limit_is_the_brokers() const;
    /// Whether rows of the claim with this token are in hand.
    bool holds(std::string_view token) const;
    /// Whether the row is in hand and on its way to being published.
    bool carries(std::int64_t seq) const;
    /// How many rows of the group are in hand and not confirmed.
    std::size_t carried(std::uint64_t group) const { return groups_.unsettled(group); }
    /// How many bytes of payload they have.
    std::size_t carried_bytes(std::uint64_t group) const;
    /// Whether an earlier row of the group is in hand that a walk does not see as it is going to
    /// be: one that is given back, or one whose outcome could not be written.
    bool is_held(std::uint64_t group, std::int64_t seq) const;
    /// Whether rows of the group are in hand.
    bool has_in_hand(std::uint64_t group) const { return groups_.in_hand(group) > 0; }
    /// Whether it could publish now: it is connected, and nothing keeps it from working.
    bool is_able() const noexcept { return may_publish_at_all(); }
    /// The buckets of which rows are in hand.
    BucketMask buckets_in_hand() const noexcept;
    /// The lowest sequence number of the fresh lane in hand; nullopt when there is none.
    std::optional<std::int64_t> lowest_in_hand() const;

  private:
    enum class RowState : std::uint8_t {
        free,
        ready,
        sent,
        published,
        failed,
        ended,
        deferring,
        releasing,
    };
    enum class Link : std::uint8_t { down, connecting, up };
    /// Where the message that is being published comes from.
    enum class Source : std::uint8_t { ready, trial, replay };
    struct ChannelState {
        bool open = false;
        Time since{};  ///< closed since
    };

    struct Row {
        const Event* event = nullptr;
        BatchId batch = 0;
        RowState state = RowState::free;
        Time since{};  ///< when it was sent, or when its outcome came
        std::size_t bytes = 0;
        std::string error;
        std::string code;   ///< of an ended row
        Duration delay{};   ///< of a held row: until it is looked at again
        bool held = false;  ///< failed, but for what is missing at the broker: uncharged
        EndedMark::Outcome outcome = EndedMark::Outcome::dead;
        bool returned = false;     ///< the broker could not route it; `error` says why
        bool holds_group = false;  ///< nothing of its group may go before this outcome is written
        bool renew = false;
        bool set_aside = false;  ///< its mark failed alone; tried again now and then
    };
    struct Batch {
        std::string token;
        Time leased_at{};
        std::vector<std::size_t> rows;  ///< still in hand
        std::size_t open = 0;           ///< of these, rows that may yet be sent
        std::size_t shared_bytes = 0;   ///< of payload that has no memory of its own
    };

    bool may_run() const noexcept;
    bool may_publish_at_all() const noexcept;
    bool is_leaving() const noexcept;
    bool may_claim() const;
    bool may_publish(Time now) const;
    bool may_try(Time now) const;
    bool needs_silence(const Row& row) const { return accused_.contains(row.event->seq); }
    bool is_silent() const;
    std::size_t window() const;
    bool may_be_sent(const Row& row, Time now) const;
    std::vector<std::size_t> unsent() const;
    bool may_wake_held() const;
    const Event* next_replayed(Time now);
    bool replay_due(Time now) const;
    bool window_takes(const Row& row) const;
    std::optional<std::string> fault(Time now) const;
    bool wants_disconnect() const;
    void look_after_leases(Time now);
    void let_in(std::size_t index);
    void open_row(std::size_t index);
    void close_row(std::size_t index, RowState state);
    Command publish(Time now, Source source, const Event* event);
    std::size_t take_front();
    TagTracker& tags_of(Channel channel) { return channel == Channel::main ? tags_ : trial_tags_; }
    const TagTracker& tags_of(Channel channel) const {
        return channel == Channel::main ? tags_ : trial_tags_;
    }
    void settle_row(Time now, std::size_t index, bool ack);
    void fail(Time now, std::size_t index, std::string_view error_class, std::string error);
    void hold(Time now, std::size_t index, std::string error);
    void note_failed(Time now, std::size_t index, RowState state);
    void note_woken(const TransactionResult& result);

    // Exchanges and isolation (drain_isolation.cpp).
    std::string_view exchange_of(const Event& event) const;
    bool is_suspect(const Event& event) const;
    void look_over_waiting();
    void sort_ready(Time now);
    void sort(Time now, std::deque<std::size_t>& queue);
    void put_on_trial(Time now, std::size_t index);
    void hold_missing(Time now, std::size_t index);
    std::optional<Command> next_question(Time now);
    void learn(Time now, const ChannelFault& fault);
    bool is_culprit(const ChannelFault& fault, const Event& event) const;
    void unsend(const std::vector<std::size_t>& rows);
    void suspect_rows(const std::vector<std::size_t>& rows);
    bool is_at_fault(const ChannelFault& fault, const Event& event) const;
    void accuse_unconfirmed(Time now, std::string_view why);
    void acquit(Channel channel, const Event& event);
    void forget_isolation();

    void hold_group_of(std::size_t index);
    void hold_behind(std::size_t index);
    void advance_group_of(std::size_t index);
    void put_behind(std::uint64_t group);
    void give_up(std::size_t index);
    void give_up_waiting(std::uint64_t group);
    void release_later(std::size_t index);
    void give_up_unsent();
    void give_up_sent();
    bool transaction_due(Time now);
    void make_plan(Time now, bool claim);
    void plan_rows_set_aside(Time now);
    void add_marks(bool set_aside);
    bool add_mark(BatchMarks& marks, const Row& row);
    void plan_followers();
    std::size_t most_claimed() const;
    std::size_t rows_to_stay() const noexcept;
    std::size_t batch_bytes() const noexcept;
    std::size_t claim_size() const;
    void take_written(const TransactionResult& result, bool& failed_again);
    void set_aside(std::size_t index);
    bool adopt_settings(Time now);
    void clear_suspects() noexcept;
    void end_suspicion() noexcept;
    void look_for_deferred(Time now);
    void uncount(const Row& row);
    void add_claim(const TransactionResult& result);
    void note_groups(const TransactionResult& result);
    void drop_row(std::size_t index);
    void forget_dropped_rows();
    Command wait(Time now) const;
    std::optional<Time> oldest_wait() const;
    std::optional<Time> confirm_deadline() const;
    std::size_t settle_threshold() const noexcept;

    DrainSettings settings_;
    std::optional<DrainSettings> next_settings_;  ///< take effect when the batch in hand is settled
    Random random_;

    RateLimiter rate_;
    std::int32_t sharers_ = 1;
    Link link_ = Link::down;
    Time link_since_{};
    Duration connect_timeout_{0};
    bool blocked_ = false;
    Time last_blocked_{};
    std::size_t send_buffer_bytes_ = 0;
    std::size_t unconfirmed_bytes_ = 0;
    Reconnect reconnect_;

    bool misconfigured_ = false;
    bool claims_held_ = false;
    bool stopping_ = false;
    Time stop_deadline_{};

    std::vector<Row> rows_;
    std::vector<std::size_t> free_rows_;
    /// What may be sent now; others wait in groups_. Rows that are out of their groups' queues are
    /// in one of these three, or sent.
    std::deque<std::size_t> ready_;
    std::deque<std::size_t> trials_;    ///< suspects
    std::vector<std::size_t> waiting_;  ///< for the answer whether their exchange exists
    GroupQueues groups_;
    std::unordered_map<std::int64_t, std::size_t> by_seq_;
    std::map<BatchId, Batch> batches_;
    std::vector<BatchId> finished_;
    BatchId next_batch_ = 1;
    TagTracker tags_;
    TagTracker trial_tags_;
    ChannelState main_;
    ChannelState trial_;
    ReplayLane replay_;
    bool may_replay_ = false;
    Source source_ = Source::ready;  ///< of what is being published

    ExchangeBook exchanges_;
    CarefulWindow careful_;
    NackWatch nacks_;
    std::set<std::int64_t> suspects_;  ///< by seq
    std::set<std::int64_t> accused_;   ///< those of having ended the whole connection
    std::size_t learnt_limit_ = 0;     ///< the broker's for a body; 0: not known
    std::deque<WakeHeld> wakes_;
    bool was_connected_ = false;
    std::size_t rows_in_hand_ = 0;
    /// Of payload that is needed: of rows that may yet be sent, and of their neighbours where the
    /// memory is one.
    std::size_t bytes_in_hand_ = 0;
    std::unordered_map<std::uint64_t, std::size_t> bytes_of_group_;  ///< of rows that may be sent
    std::vector<const Event*> spent_;
    std::array<std::size_t, BUCKETS> rows_of_bucket_{};
    std::size_t published_ = 0;
    std::size_t failed_ = 0;     ///< failed and ended
    std::size_t releasing_ = 0;  ///< deferring and releasing
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
    std::size_t suspicion_ = 0;        ///< most rows of the next claim; 0: nobody is suspected
    std::size_t suspected_ = 0;        ///< rows of the last claim, if it was made under suspicion
    std::size_t cleared_ = 0;          ///< rows that went well under suspicion
    std::size_t suspicion_until_ = 0;  ///< nobody is suspected any more when so many went well
    bool look_ = true;
    Time next_look_{};
};

}  // namespace outbox
