// Updates without statements, as logical replication's workers apply them:
// executor/execReplication.c.
#include "postgres/event_rows.hpp"

#include "postgres/statement.hpp"

extern "C" {
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

using Column = EventValues::Column;

constexpr char POISONED[] = "poison:";

bool has_update_triggers(const TriggerDesc* triggers) {
    return triggers != nullptr &&
           (triggers->trig_update_before_row || triggers->trig_update_after_row ||
            triggers->trig_update_instead_row || triggers->trig_update_before_statement ||
            triggers->trig_update_after_statement);
}

// Also what is in other hands than heap's: its updates may mean something else.
bool is_plain(Relation table) {
    const TupleConstr* constraints = RelationGetDescr(table)->constr;
    return table->rd_tableam == GetHeapamTableAmRoutine() &&
           !has_update_triggers(table->trigdesc) && table->rd_rules == nullptr &&
           !table->rd_rel->relispartition &&
           !(table->rd_rel->relrowsecurity && table->rd_rel->relforcerowsecurity) &&
           (constraints == nullptr || !constraints->has_generated_stored);
}

}  // namespace

std::uint64_t pack_place(const ItemPointerData& place) {
    return std::uint64_t{ItemPointerGetBlockNumber(&place)} << 16 |
           ItemPointerGetOffsetNumber(&place);
}

ItemPointerData unpack_place(std::uint64_t place) {
    ItemPointerData unpacked;
    ItemPointerSet(&unpacked, static_cast<BlockNumber>(place >> 16),
                   static_cast<OffsetNumber>(place & 0xffff));
    return unpacked;
}

EventRows::EventRows(Oid table)
    : table_(table_open(table, RowExclusiveLock)),
      state_(CreateExecutorState()),
      target_(makeNode(ResultRelInfo)),
      old_row_(table_slot_create(table_, &state_->es_tupleTable)),
      new_row_(MakeSingleTupleTableSlot(RelationGetDescr(table_), &TTSOpsHeapTuple)),
      can_update_(is_plain(table_)),
      blocks_(RelationGetNumberOfBlocks(table_)),
      columns_(find_event_columns(RelationGetDescr(table_), RelationGetRelationName(table_))),
      values_(allocate<Datum>(static_cast<std::size_t>(RelationGetDescr(table_)->natts))),
      nulls_(allocate<bool>(static_cast<std::size_t>(RelationGetDescr(table_)->natts))) {
    const auto column = [this](const char* name, Oid type) {
        return find_column(RelationGetDescr(table_), RelationGetRelationName(table_), name, type) -
               1;
    };
    seq_ = column("seq", INT8OID);
    id_ = column("id", UUIDOID);
    attempts_ = column("attempts", INT4OID);
    next_attempt_at_ = column("next_attempt_at", TIMESTAMPTZOID);
    last_error_ = column("last_error", TEXTOID);
    claimed_at_ = column("claimed_at", TIMESTAMPTZOID);
    claimed_by_ = column("claimed_by", TEXTOID);
    published_at_ = column("published_at", TIMESTAMPTZOID);
    dead_at_ = column("dead_at", TIMESTAMPTZOID);
    InitResultRelInfo(target_, table_, 0, nullptr, 0);
    // A table whose updates are published needs a replica identity.
    CheckCmdReplicaIdentity(table_, CMD_UPDATE);
}

void EventRows::close() {
    if (target_->ri_IndexRelationDescs != nullptr) {
        ExecCloseIndices(target_);
    }
    ExecResetTupleTable(state_->es_tupleTable, false);
    ExecDropSingleTupleTableSlot(new_row_);
    FreeExecutorState(state_);
    table_close(table_, NoLock);
}

// A place from before VACUUM FULL or TRUNCATE may lie beyond the end, which is an error to read.
bool EventRows::read(std::uint64_t place, std::int64_t seq, Snapshot snapshot) {
    ItemPointerData tid = unpack_place(place);
    if (place == 0 || ItemPointerGetBlockNumber(&tid) >= blocks_ ||
        !table_tuple_fetch_row_version(table_, &tid, snapshot, old_row_)) {
        return false;
    }
    copy_ = ExecCopySlotHeapTuple(old_row_);
    ExecClearTuple(old_row_);
    old_row_->tts_tid = tid;
    heap_deform_tuple(copy_, RelationGetDescr(table_), values_, nulls_);
    if (DatumGetInt64(values_[seq_]) == seq && nulls_[published_at_] && nulls_[dead_at_]) {
        return true;
    }
    discard();
    return false;
}

void EventRows::discard() {
    heap_freetuple(copy_);
    copy_ = nullptr;
}

bool EventRows::is_claimed_by(std::string_view token) const {
    return is_claimed() && text_of_datum(values_[claimed_by_]) == token;
}

void EventRows::event(Event& event) const {
    EventValues found;
    pick_event(columns_, values_, nulls_, found);
    found.values[Column::SEQ] = values_[seq_];
    found.values[Column::ID] = values_[id_];
    found.nulls[Column::SEQ] = found.nulls[Column::ID] = false;
    borrow_event(found, event);
    borrow_payload(found, event);
    event.attempts = DatumGetInt32(values_[attempts_]);
    event.deferred = !nulls_[next_attempt_at_];
    event.poisoned =
        !nulls_[last_error_] && text_of_datum(values_[last_error_]).starts_with(POISONED);
}

bool EventRows::claim(TimestampTz now, Datum token) {
    values_[claimed_at_] = TimestampTzGetDatum(now);
    values_[claimed_by_] = token;
    nulls_[claimed_at_] = nulls_[claimed_by_] = false;
    return update();
}

bool EventRows::mark_published(TimestampTz now) {
    values_[published_at_] = TimestampTzGetDatum(now);
    nulls_[published_at_] = false;
    nulls_[claimed_at_] = nulls_[claimed_by_] = nulls_[next_attempt_at_] = true;
    return update();
}

std::uint64_t EventRows::place() const {
    return pack_place(new_row_->tts_tid);
}

// Does not wait: who has the row locked may be an operator at lunch.
bool EventRows::update() {
    MemoryContext outer = MemoryContextSwitchTo(GetPerTupleMemoryContext(state_));
    ExecStoreHeapTuple(heap_form_tuple(RelationGetDescr(table_), values_, nulls_), new_row_, false);
    new_row_->tts_tableOid = RelationGetRelid(table_);
    if (RelationGetDescr(table_)->constr != nullptr) {
        ExecConstraints(target_, new_row_, state_);
    }
    TM_FailureData failure;
    LockTupleMode lock_mode;
#if PG_VERSION_NUM >= 160000
    TU_UpdateIndexes indexes = TU_None;
#else
    bool indexes = false;
#endif
    const TM_Result result =
        table_tuple_update(table_, &old_row_->tts_tid, new_row_, GetCurrentCommandId(true),
                           InvalidSnapshot, InvalidSnapshot, false, &failure, &lock_mode, &indexes);
    if (result == TM_Ok && indexes) {
#if PG_VERSION_NUM >= 160000
        add_index_entries(indexes == TU_Summarizing);
#else
        add_index_entries(false);
#endif
    }
    MemoryContextSwitchTo(outer);
    ItemPointerData place = new_row_->tts_tid;
    ExecClearTuple(new_row_);
    new_row_->tts_tid = place;
    ResetPerTupleExprContext(state_);
    return result == TM_Ok;
}

// Most updates are HOT and need none, so the indexes are opened by the first that does.
void EventRows::add_index_entries([[maybe_unused]] bool only_summarizing) {
    if (target_->ri_IndexRelationDescs == nullptr) {
        MemoryContext outer = MemoryContextSwitchTo(state_->es_query_cxt);
        ExecOpenIndices(target_, false);
        MemoryContextSwitchTo(outer);
    }
#if PG_VERSION_NUM >= 160000
    ExecInsertIndexTuples(target_, new_row_, state_, true, false, nullptr, NIL, only_summarizing);
#else
    ExecInsertIndexTuples(target_, new_row_, state_, true, false, nullptr, NIL);
#endif
}

}  // namespace outbox::postgres
