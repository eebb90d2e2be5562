#pragma once

#include <span>

#include "core/fresh_lane.hpp"
#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// Whether the transaction has not left the procarray yet, so that its rows may be missing from a
/// snapshot taken now. Deliberately not the answer of its locks, which outlive visibility. May
/// raise a PostgreSQL error.
bool writer_is_running(const Writer& writer);

/// The transactions that hold numbers drawn from `sequence` (nextval keeps a lock on it to the end
/// of the transaction), other than our own. Allocated in the current memory context. May raise an
/// error.
std::span<const Writer> sequence_writers(Oid sequence);

}  // namespace outbox::postgres
