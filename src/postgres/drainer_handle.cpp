#include "postgres/drainer_handle.hpp"

#include "postgres/guard.hpp"

namespace outbox::postgres {

namespace {

constexpr int LAUNCHER_RESTART_SECONDS = 5;

BackgroundWorker worker(const char* function, const char* type) {
    BackgroundWorker worker;
    memset(&worker, 0, sizeof(worker));
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    strlcpy(worker.bgw_library_name, "outbox_drainer", BGW_MAXLEN);
    strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
    strlcpy(worker.bgw_type, type, BGW_MAXLEN);
    return worker;
}

}  // namespace

void register_launcher() {
    BackgroundWorker launcher = worker("outbox_drainer_launcher_main", "outbox_drainer launcher");
    strlcpy(launcher.bgw_name, "outbox_drainer launcher", BGW_MAXLEN);
    launcher.bgw_restart_time = LAUNCHER_RESTART_SECONDS;
    RegisterBackgroundWorker(&launcher);
}

bool DrainerHandle::start(int slot, uint64 generation, const std::string& database) {
    BackgroundWorker drainer = worker("outbox_drainer_drainer_main", "outbox_drainer");
    // Dynamic and never restarted by the postmaster: a database that is gone would make it fail for
    // ever.
    drainer.bgw_restart_time = BGW_NEVER_RESTART;
    snprintf(drainer.bgw_name, BGW_MAXLEN, "outbox_drainer for database \"%s\"", database.c_str());
    drainer.bgw_main_arg = Int32GetDatum(slot);
    drainer.bgw_notify_pid = MyProcPid;
    memcpy(drainer.bgw_extra, &generation, sizeof(generation));
    bool started = false;
    PgError error;
    const bool ok =
        pg_try(error, [&] { started = RegisterDynamicBackgroundWorker(&drainer, &handle_); });
    return ok && started;
}

bool DrainerHandle::has_ended() const {
    pid_t pid = 0;
    return GetBackgroundWorkerPid(handle_, &pid) == BGWH_STOPPED;
}

void DrainerHandle::forget() {
    if (handle_ != nullptr) {
        pfree(handle_);
        handle_ = nullptr;
    }
}

uint64 own_generation() {
    uint64 generation = 0;
    memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
    return generation;
}

}  // namespace outbox::postgres
