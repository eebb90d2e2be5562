#pragma once

#include "postgres/guard.hpp"
#include "postgres/outbox_table.hpp"

extern "C" {
#include "utils/snapshot.h"
}

namespace outbox::postgres {

enum class CommitOutcome : std::uint8_t {
    committed,
    /// Committed here, but the wait for a synchronous standby was cut short: what was read must not
    /// leave the server yet.
    not_durable,
    failed,
};

/// One short transaction of a worker, run as the owner of the outbox table in a security-restricted
/// context, with SPI connected. Each step is guarded, so C++ objects may live between the steps;
/// after a step has failed the transaction is aborted and every further step fails.
class Transaction {
  public:
    /// `activity`: what pg_stat_activity shows as query while it runs. Must outlive the
    /// transaction.
    explicit Transaction(const char* activity) noexcept : activity_(activity) {}
    ~Transaction() { abort(); }
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;

    /// Starts it; InvalidOid for `owner` stays the bootstrap superuser (catalog look-ups only).
    bool begin(Oid owner) noexcept;
    /// Takes the snapshot S that snapshot() gives until the end.
    bool take_snapshot() noexcept;
    Snapshot snapshot() const noexcept { return snapshot_; }
    CommitOutcome commit() noexcept;
    void abort() noexcept;

    /// Runs a step that may raise a PostgreSQL error; see pg_try for what `body` may do.
    template <class Body>
    bool run(const Body& body) noexcept {
        if (!open_) {
            return false;
        }
        if (pg_try(error_, body)) {
            return true;
        }
        abort();
        return false;
    }

    const PgError& error() const noexcept { return error_; }

  private:
    const char* activity_;
    PgError error_;
    Snapshot snapshot_ = nullptr;
    MemoryContext outer_context_ = nullptr;
    SavedUser outer_user_{};
    bool open_ = false;
};

}  // namespace outbox::postgres
