#include "amqp/out_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace outbox::amqp {

namespace {

constexpr std::size_t usual_block = 64 * 1024;

}  // namespace

void OutBuffer::append(std::string_view bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
        if (blocks_.empty() || blocks_.back().end == blocks_.back().capacity) {
            add_block(usual_block);
        }
        Block& block = blocks_.back();
        const std::size_t fits = std::min(bytes.size(), block.capacity - block.end);
        std::memcpy(block.bytes.get() + block.end, bytes.data(), fits);
        block.end += fits;
        bytes.remove_prefix(fits);
    }
}

void OutBuffer::reserve(std::size_t bytes) {
    if (blocks_.empty() || blocks_.back().capacity - blocks_.back().end < bytes) {
        add_block(bytes);
    }
}

std::string_view OutBuffer::front() const {
    if (blocks_.empty()) {
        return {};
    }
    const Block& block = blocks_.front();
    return {block.bytes.get() + block.begin, block.end - block.begin};
}

void OutBuffer::pop(std::size_t bytes) {
    Block& block = blocks_.front();
    if (secret_) {
        ::explicit_bzero(block.bytes.get() + block.begin, bytes);
    }
    block.begin += bytes;
    size_ -= bytes;
    if (block.begin == block.end) {
        drop_front();
    }
}

void OutBuffer::clear() {
    while (!blocks_.empty()) {
        if (secret_) {
            const Block& block = blocks_.front();
            ::explicit_bzero(block.bytes.get() + block.begin, block.end - block.begin);
        }
        drop_front();
    }
    size_ = 0;
}

void OutBuffer::add_block(std::size_t capacity) {
    // An empty block can only be the last: nothing is left between bytes, and front() is never
    // empty while there is something to send.
    if (!blocks_.empty() && blocks_.back().begin == blocks_.back().end) {
        blocks_.pop_back();
    }
    if (capacity <= usual_block && spare_.bytes != nullptr) {
        blocks_.push_back(std::exchange(spare_, Block{}));
        return;
    }
    Block& block = blocks_.emplace_back();
    block.capacity = std::max(capacity, usual_block);
    block.bytes = std::make_unique_for_overwrite<char[]>(block.capacity);
}

void OutBuffer::drop_front() {
    Block block = std::move(blocks_.front());
    blocks_.pop_front();
    if (block.capacity == usual_block && spare_.bytes == nullptr) {
        block.begin = block.end = 0;
        spare_ = std::move(block);
    }
}

}  // namespace outbox::amqp
