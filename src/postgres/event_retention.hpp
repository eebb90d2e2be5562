#pragma once

#include <optional>
#include <span>

#include "core/retention.hpp"
#include "postgres/transaction.hpp"

namespace outbox::postgres {

/// How long rows are kept; 0: for ever.
struct Kept {
    Duration published{0};
    Duration dead{0};
};

// Each function below runs one statement in `transaction`, which must be open, and judges times by
// that transaction's. A nullopt or false says that it failed and that the transaction is aborted.
// Spans live in the transaction's memory.

/// The rows of a turn, without locking them; those that ended without being published are locked,
/// and left out when somebody else has locked them or when they are among `refused`.
std::optional<std::span<const RetainedRow>> read_retained(Transaction& transaction,
                                                          const Retention::Turn& turn,
                                                          std::span<const std::int64_t> refused,
                                                          const Kept& kept);
/// Removes those of the rows whose retention is over and that nobody else has locked; gives them.
std::optional<std::span<const std::int64_t>> remove_ended(Transaction& transaction,
                                                          std::span<const std::int64_t> seqs,
                                                          const Kept& kept);

/// The persisted Retention::position(); 0 when there is none.
std::optional<std::int64_t> read_retention_position(Transaction& transaction);
bool write_retention_position(Transaction& transaction, std::int64_t position);

}  // namespace outbox::postgres
