#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace outbox {

/// The delivery tags of one channel that are sent and not confirmed.
///
/// RabbitMQ confirms out of order, and `multiple` settles only those tags at or below it that are
/// still open (measured: ack 6, ack 8, then nack 7 with multiple settles 5 and 7). So each open tag
/// is tracked; a high-water mark would settle what the broker never confirmed.
class TagTracker {
  public:
    /// Notes that the next tag was sent for `row`. Tags come in order from 1 without a hole;
    /// returns false, and notes nothing, for any other tag.
    bool open(std::uint64_t tag, std::size_t row);

    /// Settles `tag`, or with `multiple` every open tag up to it (all of them for tag 0), and
    /// appends the rows to `rows` in tag order. False: the broker confirmed what is not open, a
    /// protocol error; nothing is settled then.
    bool settle(std::uint64_t tag, bool multiple, std::vector<std::size_t>& rows);

    /// Forgets all tags, as a new channel starts again at 1; returns the rows that were open in tag
    /// order.
    std::vector<std::size_t> reset();

    /// The row sent under an open tag; nullopt when the tag is not open.
    std::optional<std::size_t> row_of(std::uint64_t tag) const;

    std::size_t open_count() const noexcept { return open_count_; }
    /// The row of the lowest open tag; only while one is open.
    std::size_t oldest() const noexcept { return entries_.front().row; }

  private:
    struct Entry {
        std::size_t row = 0;
        bool open = false;
    };

    void drop_settled_front() noexcept;

    std::deque<Entry>
        entries_;  ///< entries_[0] is first_tag_; its front is open unless it is empty
    std::uint64_t first_tag_ = 1;
    std::size_t open_count_ = 0;
};

}  // namespace outbox
