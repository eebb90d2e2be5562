#include "core/replay_lane.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace outbox {

namespace {

// How often the job is looked at: its progress is saved then, and a stop or a new job is noticed.
constexpr Duration LOOK_INTERVAL{1000};
// The same while there is none. A new one wakes us, unless its transaction was a prepared one.
constexpr Duration IDLE_LOOK_INTERVAL{5000};
// How soon is looked again at an event that has to be waited for.
constexpr Duration CHUNK_RETRY{500};
constexpr Backoff TRANSACTION_BACKOFF{Duration{500}, 2, Duration{30000}};
// So many lost connections without one ack between them are the job's own doing.
constexpr int MOST_LOSSES = 5;

std::string seq_of(const Event& event) {
    return "event with seq " + std::to_string(event.seq);
}

// RabbitMQ names the exchange that is missing, or that may not be written to, in quotes.
bool blames_exchange(std::string_view why, const Event& event) {
    return event.destination.has_value() && !event.destination->empty() &&
           why.find("exchange '" + std::string(*event.destination) + "'") != std::string_view::npos;
}

}  // namespace

void ReplayLane::configure(Ordering ordering, const Backoff& retry) {
    ordering_ = ordering;
    retry_ = retry;
}

// ---- The database's side ----

bool ReplayLane::is_over() const noexcept {
    return end_ == ReplayPlan::End::failed ||
           (first_open_ == entries_.size() && looked_to_ >= job_.last_seq);
}

bool ReplayLane::wants_chunk(Time now) const noexcept {
    return job_.id != 0 && !is_over() && first_open_ == entries_.size() && now >= chunk_at_;
}

Time ReplayLane::look_at() const noexcept {
    if (!looked_at_.has_value()) {
        return Time{};
    }
    return *looked_at_ + (job_.id != 0 || woken_ ? LOOK_INTERVAL : IDLE_LOOK_INTERVAL);
}

bool ReplayLane::transaction_due(Time now) const {
    if (now < transact_at_) {
        return false;
    }
    return now >= look_at() || wants_chunk(now) || (job_.id != 0 && is_over());
}

bool ReplayLane::has_unsaved() const noexcept {
    return job_.id != 0 && (position() != saved_position_ || sent_ > 0 || skipped_ > 0 ||
                            !error_.empty() || is_over());
}

std::int64_t ReplayLane::position() const noexcept {
    return first_open_ < entries_.size() ? entries_[first_open_].event->seq - 1 : looked_to_;
}

const ReplayPlan& ReplayLane::plan(Time now) {
    plan_ = {};
    if (has_unsaved()) {
        plan_.job = job_.id;
        plan_.position = position();
        plan_.sent = sent_;
        plan_.skipped = skipped_;
        plan_.error = error_;
        if (is_over()) {
            plan_.end = end_ == ReplayPlan::End::failed ? ReplayPlan::End::failed
                                                        : ReplayPlan::End::finished;
        }
    }
    if (wants_chunk(now)) {
        plan_.chunk_of = job_.id;
        plan_.read_after = looked_to_;
        plan_.last_seq = job_.last_seq;
    }
    return plan_;
}

void ReplayLane::transacted(Time now, const ReplayResult& result) {
    transaction_failures_ = 0;
    looked_at_ = now;
    woken_ = false;
    if (plan_.job != 0 && result.saved) {
        saved_position_ = plan_.position;
        losses_ = plan_.end == ReplayPlan::End::failed ? 0 : losses_;
        sent_ -= plan_.sent;
        skipped_ -= plan_.skipped;
        error_.clear();
    }
    if (result.active.id != job_.id) {
        drop_job();
        if (result.active.id != 0) {
            start(result.active);
        }
        return;
    }
    job_.rate = result.active.rate;
    limiter_.set_rate(job_.rate);
    if (plan_.job != 0 && !result.saved) {
        // Somebody has the job locked. It is still running, so it goes on.
        transact_at_ = now + LOOK_INTERVAL;
    }
    if (result.chunk_of != 0 && result.chunk_of == plan_.chunk_of) {
        add_chunk(now, result);
    }
}

void ReplayLane::transaction_failed(Time now) {
    transaction_failures_++;
    transact_at_ = now + TRANSACTION_BACKOFF.delay(transaction_failures_, random_);
}

void ReplayLane::leave() {
    drop_job();
    looked_at_.reset();
    woken_ = true;
}

// Whoever loses the connection by a job may lose the job as well, to another drainer, and get it
// back when that one has lost its own: what it cost is remembered.
void ReplayLane::start(const ReplayJob& job) {
    losses_ = job.id == last_job_ ? losses_ : 0;
    last_job_ = job.id;
    looked_again_.reset();
    job_ = job;
    saved_position_ = looked_to_ = job.position;
    limiter_.set_rate(job.rate);
}

// What is on its way is confirmed in vain.
void ReplayLane::drop_job() {
    job_ = {};
    end_ = ReplayPlan::End::none;
    entries_.clear();
    first_open_ = next_ = 0;
    looked_to_ = saved_position_ = sent_ = skipped_ = 0;
    error_.clear();
    nacks_ = 0;
    retry_at_ = chunk_at_ = Time{};
    for (auto& [ticket, flight] : in_flight_) {
        flight.entry = NOT_OURS;
    }
}

void ReplayLane::add_chunk(Time now, const ReplayResult& result) {
    if (result.events.empty() && result.looked_to <= looked_to_) {
        chunk_at_ = now + CHUNK_RETRY;
        return;
    }
    entries_.clear();
    first_open_ = next_ = 0;
    for (const Event& event : result.events) {
        entries_.push_back({&event, State::unsent});
    }
    looked_to_ = result.looked_to;
}

// ---- The broker's side ----

const Event* ReplayLane::next(Time now) const {
    if (job_.id == 0 || end_ != ReplayPlan::End::none || next_ == entries_.size() ||
        in_flight_.size() >= WINDOW || now < retry_at_ || now < limiter_.next(now)) {
        return nullptr;
    }
    const Event* event = entries_[next_].event;
    return is_group_free(*event) ? event : nullptr;
}

bool ReplayLane::is_group_free(const Event& event) const {
    return std::none_of(in_flight_.begin(), in_flight_.end(), [&](const auto& flight) {
        return flight.second.entry != NOT_OURS &&
               same_group(*entries_[flight.second.entry].event, event);
    });
}

bool ReplayLane::same_group(const Event& a, const Event& b) const {
    switch (ordering_) {
        case Ordering::best_effort:
            return false;
        case Ordering::per_key:
            return a.key.has_value() && a.key == b.key && a.source == b.source;
        case Ordering::per_source:
            return a.source == b.source;
        case Ordering::stop_the_line:
            return true;
    }
    return true;
}

std::size_t ReplayLane::sent(Time now, std::size_t bytes) {
    (void)limiter_.take(now);
    entries_[next_].state = State::sent;
    in_flight_[++last_ticket_] = {next_, job_.id, now, bytes};
    while (next_ < entries_.size() && entries_[next_].state != State::unsent) {
        next_++;
    }
    return last_ticket_;
}

void ReplayLane::rejected(Time, std::string_view code, std::string_view detail) {
    error_ = "rejected: " + std::string(code) + ": " + std::string(detail) + "; skipped " +
             seq_of(*entries_[next_].event);
    skipped_++;
    finish_entry(next_);
    while (next_ < entries_.size() && entries_[next_].state != State::unsent) {
        next_++;
    }
}

std::size_t ReplayLane::settled(Time now, std::size_t ticket, bool ack) {
    const auto found = in_flight_.find(ticket);
    if (found == in_flight_.end()) {
        return 0;
    }
    const Flight flight = found->second;
    in_flight_.erase(found);
    if (flight.entry == NOT_OURS) {
        return flight.bytes;
    }
    if (ack) {
        sent_++;
        nacks_ = losses_ = 0;
        finish_entry(flight.entry);
        return flight.bytes;
    }
    send_again(flight.entry);
    // A full queue refuses a whole window: that is one failure.
    if (now >= retry_at_) {
        back_off(now, ++nacks_,
                 "nack: the broker refused " + seq_of(*entries_[flight.entry].event));
    }
    return flight.bytes;
}

bool ReplayLane::lost(Time now, std::string_view why) {
    bool had_any = false;
    bool had_last = false;
    const bool had_failed = end_ == ReplayPlan::End::failed;
    for (const auto& [ticket, flight] : std::exchange(in_flight_, {})) {
        had_last = had_last || flight.job == last_job_;
        if (flight.entry == NOT_OURS) {
            continue;
        }
        had_any = true;
        send_again(flight.entry);
        if (blames_exchange(why, *entries_[flight.entry].event)) {
            fail(std::string(why));
        }
    }
    if (!had_last || why.empty() || had_failed) {
        return false;
    }
    losses_++;
    if (!had_any) {
        return false;
    }
    if (end_ == ReplayPlan::End::failed) {
        return true;
    }
    if (losses_ >= MOST_LOSSES) {
        fail("connection lost " + std::to_string(losses_) +
             " times without a confirm between: " + std::string(why));
    } else {
        back_off(now, losses_, "connection lost: " + std::string(why));
    }
    return false;
}

std::size_t ReplayLane::bytes_in_flight() const noexcept {
    return std::accumulate(
        in_flight_.begin(), in_flight_.end(), std::size_t{0},
        [](std::size_t sum, const auto& flight) { return sum + flight.second.bytes; });
}

bool ReplayLane::takes_another_look(std::string_view exchange) {
    return std::exchange(looked_again_, std::string(exchange)) != exchange;
}

void ReplayLane::exchange_missing(std::string_view exchange) {
    fail("exchange \"" + std::string(exchange) + "\" does not exist");
}

void ReplayLane::finish_entry(std::size_t index) {
    entries_[index].state = State::done;
    while (first_open_ < entries_.size() && entries_[first_open_].state == State::done) {
        first_open_++;
    }
}

void ReplayLane::send_again(std::size_t index) {
    entries_[index].state = State::unsent;
    next_ = std::min(next_, index);
}

void ReplayLane::back_off(Time now, int failures, std::string error) {
    retry_at_ = now + retry_.delay(failures, random_);
    error_ = std::move(error);
}

void ReplayLane::fail(std::string error) {
    end_ = ReplayPlan::End::failed;
    error_ = std::move(error);
}

Time ReplayLane::wake_at(Time now) const {
    Time at = look_at();
    if (job_.id != 0 && (is_over() || first_open_ == entries_.size())) {
        at = std::min(at, std::max(chunk_at_, now));
    }
    at = std::max(at, transact_at_);
    if (job_.id != 0 && end_ == ReplayPlan::End::none && next_ < entries_.size() &&
        in_flight_.size() < WINDOW && is_group_free(*entries_[next_].event)) {
        at = std::min(at, std::max(retry_at_, limiter_.next(now)));
    }
    return std::max(at, now);
}

}  // namespace outbox
