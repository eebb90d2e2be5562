// What outbox.why() asks of shared memory.
#include "postgres/prelude.hpp"

#include "core/claim_token.hpp"
#include "postgres/guard.hpp"
#include "postgres/shared_state.hpp"

extern "C" {
#include "access/htup_details.h"
#include "access/xlog.h"
#include "funcapi.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

/// Who holds a claim. Plain data.
struct Holder {
    bool ours;   ///< the token has our form; else nothing more is known
    bool alive;  ///< and its drainer still runs
    int worker;
    int pid;
};

bool of_this_server(const Incarnation& holder, const SharedState& state) {
    return holder.system_identifier == GetSystemIdentifier() && !RecoveryInProgress() &&
           holder.timeline == GetWALInsertionTimeLine() &&
           holder.server_start == state.server_start && holder.slot < state.slot_count;
}

Holder find_holder(std::string_view token) {
    Holder found{};
    const std::optional<TokenParts> parts = parse_token(token);
    const SharedState* state = shared_state();
    found.ours = parts.has_value();
    if (!found.ours || state == nullptr || !of_this_server(parts->incarnation, *state)) {
        return found;
    }
    const SlotLock lock(LW_SHARED);
    const DrainerSlot& slot = state->slots[parts->incarnation.slot];
    found.alive = slot.pid != 0 && slot.database == MyDatabaseId &&
                  slot.generation == parts->incarnation.generation;
    found.worker = slot.worker;
    found.pid = slot.pid;
    return found;
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_claim_holder);
PG_FUNCTION_INFO_V1(outbox_drainer_preloaded);
PG_FUNCTION_INFO_V1(outbox_drainer_launcher_runs);

/// outbox.claim_holder(claimed_by text) returns record
OBD_EXPORT Datum outbox_drainer_claim_holder(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    TupleDesc descriptor = nullptr;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE) {
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("function returning record called in a context that cannot take it")));
    }
    const char* token = text_to_cstring(PG_GETARG_TEXT_PP(0));
    const Holder holder = entry_point([token] { return find_holder(token); });
    Datum values[] = {Int32GetDatum(holder.worker), Int32GetDatum(holder.pid),
                      BoolGetDatum(holder.alive)};
    bool nulls[] = {!holder.alive, !holder.alive, !holder.ours};
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), values, nulls)));
}

/// outbox.preloaded() returns boolean
OBD_EXPORT Datum outbox_drainer_preloaded(PG_FUNCTION_ARGS) {
    (void)fcinfo;
    PG_RETURN_BOOL(outbox::postgres::shared_state() != nullptr);
}

/// outbox.launcher_runs() returns boolean
OBD_EXPORT Datum outbox_drainer_launcher_runs(PG_FUNCTION_ARGS) {
    (void)fcinfo;
    outbox::postgres::SharedState* state = outbox::postgres::shared_state();
    PG_RETURN_BOOL(state != nullptr &&
                   pg_atomic_read_u32(&state->launcher_procno) != outbox::postgres::NO_PROC);
}

}  // extern "C"
