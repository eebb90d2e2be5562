#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "core/time.hpp"

namespace outbox {

/// Notices a connection whose broker refuses again what it refused before. A channel of RabbitMQ
/// whose first message for a quorum queue comes while the queue has lost its leader keeps to the
/// dead one, and refuses all that is for that queue as long as it lives (seen with 3.10); another
/// connection is taken at its word. Where a queue is just full, another connection does not help,
/// so it is asked for more and more rarely.
class NackWatch {
  public:
    void nacked(Time now, std::int64_t seq) {
        if (now - last_ > std::max(interval_, CALM)) {
            interval_ = FIRST_INTERVAL;
        }
        last_ = now;
        if (seen_.contains(seq)) {
            wants_ = wants_ || now >= not_before_;
        } else if (seen_.size() < MOST_SEEN) {
            seen_.insert(seq);
        }
    }
    /// Whether another connection is worth a try.
    bool wants_another() const noexcept { return wants_; }
    /// It is given up for that.
    void renewed(Time now) noexcept {
        not_before_ = now + interval_;
        interval_ = std::min(2 * interval_, LONGEST_INTERVAL);
    }
    /// The connection is gone.
    void forget() noexcept {
        seen_.clear();
        wants_ = false;
    }

  private:
    static constexpr Duration FIRST_INTERVAL{5000};
    static constexpr Duration LONGEST_INTERVAL{900000};
    static constexpr Duration CALM{60000};
    static constexpr std::size_t MOST_SEEN = 1000;

    std::set<std::int64_t> seen_;  ///< refused on this connection
    bool wants_ = false;
    Time last_{};
    Time not_before_{};
    Duration interval_ = FIRST_INTERVAL;
};

}  // namespace outbox
