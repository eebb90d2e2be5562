#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/drain.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

/// What the marks of a transaction did.
struct Drainer::Marked {
    std::size_t published = 0;
    std::size_t failed = 0;
    std::size_t held = 0;
    std::size_t deferred = 0;
    std::size_t released = 0;
    std::vector<EndedMark> ended;
    std::vector<std::int64_t> lost;        ///< marks that hit no row under their claim
    std::vector<std::int64_t> given_back;  ///< rows released

    /// Notes which of the rows were hit, and gives how many.
    std::size_t note(std::vector<std::int64_t> wanted, std::span<const std::int64_t> hit);
    /// The same of rows that are put off, some of them without a charge.
    void note_put_off(const std::vector<FailedMark>& marks, std::span<const std::int64_t> hit);
};

/// What a transaction takes back from others, to be told when it has committed.
struct Drainer::TakenBack {
    std::vector<std::int64_t> released;
    std::vector<std::size_t> suspects;  ///< of each claim whose drainer died, how many rows it was
    std::vector<Marked> charged;        ///< rows that killed their drainers

    bool is_empty() const { return released.empty() && charged.empty(); }
};

}  // namespace outbox::worker
