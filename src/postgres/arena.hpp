#pragma once

#include "postgres/guard.hpp"

namespace outbox::postgres {

/// A memory context with an owner: what was copied into it lives until the arena goes.
class Arena {
  public:
    Arena() = default;
    ~Arena() { drop(); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    Arena(Arena&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
    Arena& operator=(Arena&& other) noexcept {
        drop();
        context_ = std::exchange(other.context_, nullptr);
        return *this;
    }

    /// False when memory is out.
    bool create() noexcept;
    MemoryContext context() const noexcept { return context_; }

  private:
    void drop() noexcept;

    MemoryContext context_ = nullptr;
};

}  // namespace outbox::postgres
