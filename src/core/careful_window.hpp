#pragma once

#include <algorithm>
#include <cstddef>

namespace outbox {

/// How many messages may be unconfirmed at once after the broker closed the channel for a reason
/// that nobody could read: one at first, then more and more as all goes well. Another such close
/// then costs the neighbours of its culprit few repetitions.
class CarefulWindow {
  public:
    void shrink() noexcept {
        limit_ = 1;
        acks_ = 0;
    }
    /// A message was confirmed; with `depth` messages on their way there is no limit of ours.
    void confirmed(std::size_t depth) noexcept {
        if (limit_ == 0 || ++acks_ < limit_) {
            return;
        }
        acks_ = 0;
        limit_ += std::max<std::size_t>(1, limit_ / 8);
        if (limit_ >= depth) {
            limit_ = 0;
        }
    }
    std::size_t limit(std::size_t depth) const noexcept {
        return limit_ == 0 ? depth : std::min(limit_, depth);
    }

  private:
    std::size_t limit_ = 0;  ///< 0: none
    std::size_t acks_ = 0;
};

}  // namespace outbox
