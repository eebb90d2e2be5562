// The server's side of test/t/121_late_commit_variants.pl: a function that starts a stress drainer
// as a background worker, and for producers that load this library a slow end of their commits.
#include <cstring>

#include "postgres/guard.hpp"
#include "postgres/session.hpp"
#include "postgres/signals.hpp"
#include "stress_drainer.hpp"

extern "C" {
#include "access/xact.h"
#include "common/pg_prng.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;
OBD_EXPORT void _PG_init(void);
OBD_EXPORT void outbox_drainer_late_commits_main(Datum);
PG_FUNCTION_INFO_V1(outbox_drainer_late_commits_start);
}

namespace {

using namespace outbox;
using test::Variant;

struct VariantName {
    const char* name;
    Variant variant;
};

constexpr VariantName VARIANTS[] = {
    {"correct", Variant::correct},
    {"fresh_before_gaps", Variant::fresh_before_gaps},
    {"check_before_snapshot_only", Variant::check_before_snapshot_only},
    {"table_lock", Variant::table_lock},
    {"no_ranges", Variant::no_ranges},
    {"drop_all_ended", Variant::drop_all_ended},
    {"ended_means_lock_gone", Variant::ended_means_lock_gone},
    {"no_scan_of_newborn", Variant::no_scan_of_newborn},
};

// What the starting session hands to the worker, through bgw_extra.
struct Order {
    Oid database;
    Variant variant;
    test::Pauses pauses;
};
static_assert(sizeof(Order) <= BGW_EXTRALEN);

int commit_delay_us = 0;
int commit_delay_percent = 0;

// Runs when the transaction has become visible and still holds its locks.
void delay_commit(XactEvent event, void*) {
    if (event != XACT_EVENT_COMMIT || commit_delay_us == 0) {
        return;
    }
    if (pg_prng_uint64_range(&pg_global_prng_state, 1, 100) <=
        static_cast<uint64>(commit_delay_percent)) {
        pg_usleep(static_cast<long>(
            pg_prng_uint64_range(&pg_global_prng_state, 1, static_cast<uint64>(commit_delay_us))));
    }
}

Variant variant_named(const char* name) {
    for (const VariantName& entry : VARIANTS) {
        if (strcmp(entry.name, name) == 0) {
            return entry.variant;
        }
    }
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("there is no variant \"%s\" of the claim", name)));
    pg_unreachable();
}

}  // namespace

void _PG_init() {
    DefineCustomIntVariable("late_commits.commit_delay",
                            "Longest time that a commit takes between visibility and locks.",
                            nullptr, &commit_delay_us, 0, 0, 1000000, PGC_USERSET, 0, nullptr,
                            nullptr, nullptr);
    DefineCustomIntVariable(
        "late_commits.commit_delay_percent", "Share of the commits that are delayed.", nullptr,
        &commit_delay_percent, 0, 0, 100, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    RegisterXactCallback(delay_commit, nullptr);
}

Datum outbox_drainer_late_commits_start(PG_FUNCTION_ARGS) {
    const Order order{MyDatabaseId,
                      variant_named(text_to_cstring(PG_GETARG_TEXT_PP(0))),
                      {PG_GETARG_INT32(1), PG_GETARG_INT32(2), PG_GETARG_INT32(3)}};
    BackgroundWorker worker{};
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    worker.bgw_notify_pid = MyProcPid;
    strlcpy(worker.bgw_name, "late_commits", sizeof(worker.bgw_name));
    strlcpy(worker.bgw_type, "late_commits", sizeof(worker.bgw_type));
    strlcpy(worker.bgw_library_name, "late_commits", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, "outbox_drainer_late_commits_main",
            sizeof(worker.bgw_function_name));
    memcpy(worker.bgw_extra, &order, sizeof(order));
    BackgroundWorkerHandle* handle = nullptr;
    pid_t pid = 0;
    if (!RegisterDynamicBackgroundWorker(&worker, &handle) ||
        WaitForBackgroundWorkerStartup(handle, &pid) != BGWH_STARTED) {
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES),
                        errmsg("could not start the stress drainer")));
    }
    PG_RETURN_INT32(pid);
}

void outbox_drainer_late_commits_main(Datum) {
    Order order{};
    memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
    postgres::connect_to_database(order.database);
    postgres::install_drainer_signals();
    postgres::pin_session_settings();
    proc_exit(postgres::entry_point([&order] {
        test::StressDrainer drainer(order.variant, order.pauses);
        return drainer.run() ? 0 : 1;
    }));
}
