#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/backoff.hpp"
#include "core/event.hpp"
#include "core/ordering.hpp"
#include "core/rate_limiter.hpp"
#include "core/time.hpp"

namespace outbox {

/// The replay that is to be worked on, as the database has it.
struct ReplayJob {
    std::int64_t id = 0;        ///< 0: there is none
    std::int64_t position = 0;  ///< every event up to here is done with
    std::int64_t last_seq = 0;
    std::int32_t rate = 0;  ///< events a second
};

// Read below the guard that catches ereport, where no destructor may be skipped.
static_assert(std::is_trivially_destructible_v<ReplayJob>);

/// What one transaction does for the replay, in this order: saves how far it is, reads which job is
/// active, reads the next events.
struct ReplayPlan {
    enum class End : std::uint8_t { none, finished, failed };

    std::int64_t job = 0;  ///< whose progress is saved; 0: there is nothing to save
    std::int64_t position = 0;
    std::int64_t sent = 0;     ///< since the last save
    std::int64_t skipped = 0;  ///< likewise
    End end = End::none;
    std::string error;  ///< empty: nothing new

    std::int64_t chunk_of = 0;  ///< the job whose next events are read; 0: none are wanted
    std::int64_t read_after = 0;
    std::int64_t last_seq = 0;
};

/// How that went, when it committed.
struct ReplayResult {
    bool saved = false;  ///< false: somebody has the job locked, or it is gone
    ReplayJob active;
    std::int64_t chunk_of = 0;      ///< whose events were read; 0: none were
    std::span<const Event> events;  ///< ascending; stay valid until events are read again
    std::int64_t looked_to = 0;     ///< every event up to here was looked at
};

static_assert(std::is_trivially_destructible_v<ReplayResult>);

/// Sends published events again, at a rate of its own, beside the live lanes: it claims nothing and
/// marks nothing, so a crash costs repetitions only. One chunk of events is in hand, a small window
/// of them unconfirmed. Events of one group go one after the other, as in the live lanes.
///
/// A failure holds up the whole job, never kills an event, and backs off; a job that breaks the
/// connection has failed, since the live lanes share it.
class ReplayLane {
  public:
    static constexpr std::size_t WINDOW = 100;

    explicit ReplayLane(std::uint64_t seed) : random_(seed) {}

    /// `retry`: how long the job waits after a failure.
    void configure(Ordering ordering, const Backoff& retry);

    // The database's side.
    /// Another job may have come, or this one been stopped.
    void woken() noexcept { woken_ = true; }
    bool is_woken() const noexcept { return woken_; }
    /// Whether a transaction should be run now.
    bool transaction_due(Time now) const;
    /// Whether something would be lost (to repetitions) if this process ended now.
    bool has_unsaved() const noexcept;
    /// What the next transaction does. Between this and one of the next two nothing else may be
    /// told to the lane.
    const ReplayPlan& plan(Time now);
    void transacted(Time now, const ReplayResult& result);
    void transaction_failed(Time now);
    /// This process has nothing to do with replays any more.
    void leave();

    // The broker's side.
    /// The event to be sent now; nullptr: none. It is followed by sent() or rejected().
    const Event* next(Time now) const;
    /// Gives a ticket for the message, to stand where the live lanes have the number of a row.
    std::size_t sent(Time now, std::size_t bytes);
    static constexpr bool is_ticket(std::size_t row) noexcept { return (row & TICKET) != 0; }
    /// The event cannot be sent as it is: it is skipped, and last_error names it.
    void rejected(Time now, std::string_view code, std::string_view detail);
    /// Gives the bytes that sent() was told.
    std::size_t settled(Time now, std::size_t ticket, bool ack);
    /// The connection or its channel is gone; what is unconfirmed goes again. `why`: what the
    /// broker said, empty when the connection was closed without a fault. True: it was this job's
    /// doing, which has failed by that, so the live lanes may connect again at once.
    bool lost(Time now, std::string_view why);

    /// Whether to ask again for an exchange that was missing some time ago: once in each run.
    bool takes_another_look(std::string_view exchange);
    /// The event to be sent next goes to an exchange that does not exist: the job has failed.
    void exchange_missing(std::string_view exchange);

    std::size_t in_flight() const noexcept { return in_flight_.size(); }
    std::size_t bytes_in_flight() const noexcept;
    /// When the message was sent; only for tickets in flight.
    Time sent_at(std::size_t ticket) const { return in_flight_.at(ticket).since; }
    /// The next moment at which time alone gives the lane something to do.
    Time wake_at(Time now) const;

    std::int64_t job() const noexcept { return job_.id; }
    /// Every event of the job up to here is confirmed, skipped, or none that it sends.
    std::int64_t position() const noexcept;

  private:
    static constexpr std::size_t TICKET = ~(SIZE_MAX >> 1);
    static constexpr std::size_t NOT_OURS = SIZE_MAX;

    enum class State : std::uint8_t { unsent, sent, done };
    struct Entry {
        const Event* event = nullptr;
        State state = State::unsent;
    };
    struct Flight {
        std::size_t entry = NOT_OURS;  ///< NOT_OURS: of a job that was dropped meanwhile
        std::int64_t job = 0;
        Time since{};
        std::size_t bytes = 0;
    };

    bool is_over() const noexcept;
    bool wants_chunk(Time now) const noexcept;
    Time look_at() const noexcept;
    bool is_group_free(const Event& event) const;
    bool same_group(const Event& a, const Event& b) const;
    void finish_entry(std::size_t index);
    void send_again(std::size_t index);
    void back_off(Time now, int failures, std::string error);
    void fail(std::string error);
    void drop_job();
    void start(const ReplayJob& job);
    void add_chunk(Time now, const ReplayResult& result);

    Ordering ordering_ = Ordering::per_key;
    Backoff retry_;
    Random random_;
    RateLimiter limiter_;

    ReplayJob job_;
    ReplayPlan::End end_ = ReplayPlan::End::none;
    std::vector<Entry> entries_;
    std::size_t first_open_ = 0;  ///< all before it are done
    std::size_t next_ = 0;        ///< none before it is unsent
    std::int64_t looked_to_ = 0;
    std::map<std::size_t, Flight> in_flight_;
    std::size_t last_ticket_ = TICKET;

    int nacks_ = 0;                            ///< in a row
    int losses_ = 0;                           ///< connections lost since the last ack
    std::optional<std::string> looked_again_;  ///< the exchange that was asked for again
    std::int64_t last_job_ = 0;                ///< whose losses these are
    Time retry_at_{};

    ReplayPlan plan_;
    std::int64_t saved_position_ = 0;
    std::int64_t sent_ = 0;
    std::int64_t skipped_ = 0;
    std::string error_;
    bool woken_ = true;
    std::optional<Time> looked_at_;
    Time chunk_at_{};
    Time transact_at_{};
    int transaction_failures_ = 0;
};

}  // namespace outbox
