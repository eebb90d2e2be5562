#include "postgres/transaction.hpp"

#include "postgres/signals.hpp"

extern "C" {
#include "access/xact.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace outbox::postgres {

namespace {

// Apart from the commit: an error in here must not make a commit that happened look like one that
// failed.
void report_end() noexcept {
    PgError ignored;
    pg_try(ignored, [] {
        pgstat_report_stat(false);
        pgstat_report_activity(STATE_IDLE, nullptr);
    });
}

}  // namespace

bool Transaction::begin(Oid owner) noexcept {
    outer_context_ = CurrentMemoryContext;
    GetUserIdAndSecContext(&outer_user_.user, &outer_user_.security_context);
    enter_transaction();
    open_ = true;
    return run([this, owner] {
        SetCurrentStatementStartTimestamp();
        pgstat_report_activity(STATE_RUNNING, activity_);
        StartTransactionCommand();
        outer_user_ = act_as(OidIsValid(owner) ? owner : GetUserId());
        if (SPI_connect() != SPI_OK_CONNECT) {
            elog(ERROR, "SPI_connect failed");
        }
        // SPI runs statements inside an outer snapshot; each still takes its own unless it is given
        // one.
        PushActiveSnapshot(GetTransactionSnapshot());
    });
}

bool Transaction::take_snapshot() noexcept {
    return run([this] { snapshot_ = RegisterSnapshot(GetTransactionSnapshot()); });
}

CommitOutcome Transaction::commit() noexcept {
    const bool committed = run([this] {
        if (snapshot_ != nullptr) {
            UnregisterSnapshot(snapshot_);
            snapshot_ = nullptr;
        }
        PopActiveSnapshot();
        SPI_finish();
        AtEOXact_GUC(false, outer_user_.guc_nest_level);
        // A cancel that came before is an error now; one that comes later is seen by cancel_seen().
        forget_cancel();
        CHECK_FOR_INTERRUPTS();
        CommitTransactionCommand();
        SetUserIdAndSecContext(outer_user_.user, outer_user_.security_context);
        MemoryContextSwitchTo(outer_context_);
    });
    if (!committed) {
        return CommitOutcome::failed;
    }
    open_ = false;
    report_end();
    leave_transaction();
    // A standby's answer is waited for inside the commit and that wait ends early, with a mere
    // warning, by a cancel or a shutdown.
    return cancel_seen() || ProcDiePending ? CommitOutcome::not_durable : CommitOutcome::committed;
}

void Transaction::abort() noexcept {
    if (!open_) {
        return;
    }
    open_ = false;
    snapshot_ = nullptr;
    PgError second;
    pg_try(second, [] { AbortOutOfAnyTransaction(); });
    MemoryContextSwitchTo(outer_context_);
    SetUserIdAndSecContext(outer_user_.user, outer_user_.security_context);
    report_end();
    leave_transaction();
}

}  // namespace outbox::postgres
