#include "postgres/database_ddl.hpp"

#include <csignal>

#include "postgres/shared_state.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
}

namespace outbox::postgres {

namespace {

// A drainer that stepped aside is not started again before this. By then the command has its lock
// on the database, which keeps new sessions out; if it failed, the drainer comes back.
constexpr int ASIDE_MS = 10000;
constexpr int POLL_MS = 20;

ProcessUtility_hook_type previous_hook = nullptr;

const char* template_of(const CreatedbStmt* create) {
    const char* name = "template1";
    ListCell* cell = nullptr;
    foreach (cell, create->options) {
        auto* option = static_cast<DefElem*>(lfirst(cell));
        if (strcmp(option->defname, "template") == 0 && option->arg != nullptr) {
            name = defGetString(option);
        }
    }
    return name;
}

bool sets_tablespace(const AlterDatabaseStmt* alter) {
    ListCell* cell = nullptr;
    foreach (cell, alter->options) {
        if (strcmp(static_cast<DefElem*>(lfirst(cell))->defname, "tablespace") == 0) {
            return true;
        }
    }
    return false;
}

// The database that the command needs for itself; NULL for any other command.
const char* exclusive_database(Node* command) {
    if (IsA(command, DropdbStmt)) {
        return reinterpret_cast<DropdbStmt*>(command)->dbname;
    }
    if (IsA(command, CreatedbStmt)) {
        return template_of(reinterpret_cast<CreatedbStmt*>(command));
    }
    if (IsA(command, RenameStmt)) {
        auto* rename = reinterpret_cast<RenameStmt*>(command);
        return rename->renameType == OBJECT_DATABASE ? rename->subname : nullptr;
    }
    if (IsA(command, AlterDatabaseStmt)) {
        auto* alter = reinterpret_cast<AlterDatabaseStmt*>(command);
        return sets_tablespace(alter) ? alter->dbname : nullptr;
    }
    return nullptr;
}

// A template may be copied by everybody who may create databases, its drainer is put aside for its
// owner only.
bool may_have_it(Oid database) {
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
    return pg_database_ownercheck(database, GetUserId());
#endif
}

// Tells the drainers of the database to stop; gives whether one still runs.
bool ask_drainers_aside(SharedState* state, Oid database) {
    bool running = false;
    const TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ASIDE_MS);
    LWLockAcquire(state->lock, LW_EXCLUSIVE);
    for (int i = 0; i < state->slot_count && state->slots[i].in_use; i++) {
        DrainerSlot& slot = state->slots[i];
        if (slot.database != database) {
            continue;
        }
        slot.next_start = Max(slot.next_start, until);
        // One that was started and has no process yet may still connect.
        running = running || slot.running || slot.pid != 0;
        if (slot.pid != 0) {
            kill(slot.pid, SIGTERM);
        }
    }
    LWLockRelease(state->lock);
    return running;
}

// Waits no longer than a stop in good order takes; the command itself then says who is in its way.
void put_drainers_aside(Oid database) {
    SharedState* state = shared_state();
    bool running = ask_drainers_aside(state, database);
    for (int waited = 0; running && waited < ASIDE_MS; waited += POLL_MS) {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, POLL_MS,
                  PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
        running = ask_drainers_aside(state, database);
    }
}

void on_utility(PlannedStmt* statement, const char* query, bool read_only_tree,
                ProcessUtilityContext context, ParamListInfo parameters,
                QueryEnvironment* environment, DestReceiver* destination,
                QueryCompletion* completion) {
    const char* name = exclusive_database(statement->utilityStmt);
    // In a transaction block or a function the server refuses most of these anyway.
    const bool may_run = context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock();
    if (name != nullptr && may_run && shared_state() != nullptr) {
        const Oid database = get_database_oid(name, true);
        if (OidIsValid(database) && may_have_it(database)) {
            put_drainers_aside(database);
            note_database_command(database);
        }
    }
    (previous_hook != nullptr ? previous_hook : standard_ProcessUtility)(
        statement, query, read_only_tree, context, parameters, environment, destination,
        completion);
}

}  // namespace

void install_database_ddl_hook() {
    previous_hook = ProcessUtility_hook;
    ProcessUtility_hook = on_utility;
}

}  // namespace outbox::postgres
