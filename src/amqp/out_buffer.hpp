#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string_view>

namespace outbox::amqp {

/// Bytes on their way to a socket. They lie in blocks that are given back once they have been sent,
/// so that nothing is moved and no large message leaves its memory behind.
class OutBuffer {
  public:
    OutBuffer() = default;
    ~OutBuffer() { clear(); }
    OutBuffer(const OutBuffer&) = delete;
    OutBuffer& operator=(const OutBuffer&) = delete;

    void append(std::string_view bytes);
    /// The next `bytes` that are appended get a place of just that size, in one piece.
    void reserve(std::size_t bytes);
    /// The first bytes, as many as lie in one piece; empty when there are none.
    std::string_view front() const;
    /// The first `bytes`, at most those of front(), have been sent.
    void pop(std::size_t bytes);
    void clear();

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    /// While secrets are among what is appended: what has been sent is overwritten.
    void set_secret(bool secret) { secret_ = secret; }

  private:
    struct Block {
        std::unique_ptr<char[]> bytes;
        std::size_t capacity = 0;
        std::size_t begin = 0;
        std::size_t end = 0;
    };

    void add_block(std::size_t capacity);
    void drop_front();

    std::deque<Block> blocks_;
    std::size_t size_ = 0;
    bool secret_ = false;
    Block spare_;  ///< so that not every burst asks for memory
};

}  // namespace outbox::amqp
