#pragma once

#include <cstddef>

#include "core/backoff.hpp"
#include "core/time.hpp"

namespace outbox {

/// Which of the brokers is to be tried next, and when: each in its turn, soon at first, with
/// growing delays between whole rounds, and never two attempts within a second.
class Reconnect {
  public:
    /// A new list: its first is next, at once.
    void set_brokers(Time now, std::size_t count);
    /// The one that is to be tried, or was last.
    std::size_t broker() const noexcept { return broker_; }
    Time at() const noexcept { return at_; }
    void attempted(Time now) noexcept;
    /// The attempt failed or the connection was lost. `configuration`: nothing will change there
    /// until somebody acts. `was_healthy`: the connection had lived for a while.
    void failed(Time now, bool configuration, bool was_healthy, Random& random);
    /// Nothing speaks against another attempt, but the pace.
    void hurry(Time now) noexcept;

  private:
    std::size_t count_ = 1;
    std::size_t broker_ = 0;
    std::size_t failures_ = 0;       ///< since a connection that lived
    std::size_t misconfigured_ = 0;  ///< of the failures of this round
    Time at_{};
    Time attempted_{Duration{-1000}};
};

}  // namespace outbox
