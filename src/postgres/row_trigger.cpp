// The trigger on an outbox table: refuses what could not be sent, fills what is NULL, decides
// whether the row is deferred from the start, and notes that the drainer is to be woken at commit.
// C with templates: no object here has a destructor.
#include "postgres/prelude.hpp"
#include "postgres/producer_checks.hpp"
#include "postgres/producer_locks.hpp"
#include "postgres/sql_uuid.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

/// What the trigger must know of a table, looked up once and dropped when the table, the sequence
/// or a relay that reads the table changes: the trigger on outbox.relay announces that as a change
/// of the table.
struct OutboxTable {
    Oid table;  ///< InvalidOid: nothing is known
    Oid sequence;
    int seq;
    int id;
    int available_at;
    int next_attempt_at;
    int claimed_at;
    int claimed_by;
    int published_at;
    int dead_at;
    EventColumns event;
    bool serialize;  ///< producers of one key wait for each other
};

OutboxTable known;
bool callback_registered = false;
std::uint32_t changes_seen = 0;

void forget_changed_table(Datum, Oid relation) {
    changes_seen++;
    if (!OidIsValid(relation) || relation == known.table || relation == known.sequence) {
        known.table = InvalidOid;
    }
}

// Through the schema of the table and the trigger's argument: a producer's search_path plays no
// part.
Oid sequence_of(Relation table, const char* name) {
    Oid sequence = get_relname_relid(name, RelationGetNamespace(table));
    if (!OidIsValid(sequence)) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("sequence \"%s\" of outbox table \"%s\" does not exist", name,
                               RelationGetRelationName(table))));
    }
    return sequence;
}

OutboxTable look_up(Relation table, const char* sequence) {
    const auto column = [table](const char* name, Oid type) {
        return find_column(RelationGetDescr(table), RelationGetRelationName(table), name, type);
    };
    OutboxTable found{};
    found.seq = column("seq", INT8OID);
    found.id = column("id", UUIDOID);
    found.available_at = column("available_at", TIMESTAMPTZOID);
    found.next_attempt_at = column("next_attempt_at", TIMESTAMPTZOID);
    found.claimed_at = column("claimed_at", TIMESTAMPTZOID);
    found.claimed_by = column("claimed_by", TEXTOID);
    found.published_at = column("published_at", TIMESTAMPTZOID);
    found.dead_at = column("dead_at", TIMESTAMPTZOID);
    found.event = find_event_columns(RelationGetDescr(table), RelationGetRelationName(table));
    found.sequence = sequence_of(table, sequence);
    found.table = RelationGetRelid(table);
    found.serialize = producers_are_serialized(found.table);
    return found;
}

// By value: drawing a number takes a lock, which can bring in the change that empties `known`. A
// change that comes in during the look-up may be one that it did not see, so it is not kept then.
OutboxTable outbox_table(Relation table, const char* sequence) {
    if (known.table == RelationGetRelid(table)) {
        return known;
    }
    if (!callback_registered) {
        CacheRegisterRelcacheCallback(forget_changed_table, Datum{0});
        callback_registered = true;
    }
    const std::uint32_t before = changes_seen;
    const OutboxTable found = look_up(table, sequence);
    if (changes_seen == before) {
        known = found;
    }
    return found;
}

/// The columns that are to get another value than the one they arrived with.
struct Changes {
    int count = 0;
    int columns[5] = {};
    Datum values[5] = {};
    bool nulls[5] = {};

    void set(int column, Datum value) { add(column, value, false); }
    void clear(int column) { add(column, Datum{0}, true); }

  private:
    void add(int column, Datum value, bool null) {
        columns[count] = column;
        values[count] = value;
        nulls[count] = null;
        count++;
    }
};

struct OptionalTime {
    bool given;
    TimestampTz time;
};

OptionalTime time_in(TupleTableSlot* row, int column) {
    bool null = true;
    Datum value = slot_getattr(row, column, &null);
    return {!null, null ? 0 : DatumGetTimestampTz(value)};
}

bool is_null(TupleTableSlot* row, int column) {
    bool null = true;
    (void)slot_getattr(row, column, &null);
    return null;
}

bool has_ended(TupleTableSlot* row, const OutboxTable& table) {
    return !is_null(row, table.published_at) || !is_null(row, table.dead_at);
}

/// When a row that brings its own number is due: drainers may have gone past that number already,
/// so it is deferred. All rows of a restore are due at the same time, and so taken in their order.
TimestampTz due_with_number(TupleTableSlot* row, const OutboxTable& table) {
    OptionalTime next = time_in(row, table.next_attempt_at);
    if (next.given) {
        return next.time;
    }
    OptionalTime available = time_in(row, table.available_at);
    TimestampTz now = GetCurrentTransactionStartTimestamp();
    if (available.given && available.time > now) {
        return available.time;
    }
    // A row that is due at its available_at counts as scheduled, and would not hold its key.
    return available.given && available.time == now ? now - 1 : now;
}

/// When a new row is due, if it is deferred from the start.
OptionalTime due_time(TupleTableSlot* row, const OutboxTable& table) {
    if (has_ended(row, table)) {
        return {false, 0};
    }
    if (!is_null(row, table.seq)) {
        return {true, due_with_number(row, table)};
    }
    OptionalTime available = time_in(row, table.available_at);
    return {available.given && available.time > GetCurrentTimestamp(), available.time};
}

void fill_due_time(TupleTableSlot* row, const OutboxTable& table, Changes& changes) {
    OptionalTime given = time_in(row, table.next_attempt_at);
    OptionalTime due = due_time(row, table);
    if (due.given && !(given.given && given.time == due.time)) {
        changes.set(table.next_attempt_at, TimestampTzGetDatum(due.time));
    } else if (!due.given && given.given) {
        changes.clear(table.next_attempt_at);
    }
}

// A row that is being inserted cannot be in the hand of a drainer, whatever the cluster it was
// copied from says.
void clear_claim(TupleTableSlot* row, const OutboxTable& table, Changes& changes) {
    for (int column : {table.claimed_at, table.claimed_by}) {
        if (!is_null(row, column)) {
            changes.clear(column);
        }
    }
}

// Only what producers write: a row that brings its number has been an event already, in the table
// that it was copied from, and belongs into the copy whatever the limits are today.
void check_producers_row(TupleTableSlot* row, const OutboxTable& table, Relation relation) {
    if (!is_null(row, table.seq) || has_ended(row, table)) {
        return;
    }
    slot_getallattrs(row);
    Verdict verdict;
    judge_event(table.event, row->tts_values, row->tts_isnull, verdict);
    if (verdict.refused) {
        refuse_event(verdict, relation);
    }
}

std::string_view text_in(TupleTableSlot* row, int column) {
    bool null = true;
    const varlena* value = PG_DETOAST_DATUM_PACKED(slot_getattr(row, column, &null));
    return {VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)};
}

void serialize_producers(TupleTableSlot* row, const OutboxTable& table) {
    const int source = table.event.numbers[EventValues::SOURCE];
    const int key = table.event.numbers[EventValues::KEY];
    if (!is_null(row, source) && !is_null(row, key)) {
        lock_group(table.table, text_in(row, source), text_in(row, key));
    }
}

void require_right_call(FunctionCallInfo fcinfo) {
    if (CALLED_AS_TRIGGER(fcinfo)) {
        auto* trigger = reinterpret_cast<TriggerData*>(fcinfo->context);
        if (TRIGGER_FIRED_BEFORE(trigger->tg_event) && TRIGGER_FIRED_FOR_ROW(trigger->tg_event) &&
            TRIGGER_FIRED_BY_INSERT(trigger->tg_event) && trigger->tg_trigger->tgnargs == 1) {
            return;
        }
    }
    ereport(ERROR,
            (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
             errmsg("outbox.event_before_insert() can only be a trigger BEFORE INSERT FOR EACH ROW "
                    "with the name of a sequence as its argument")));
}

HeapTuple fill_row(const TriggerData* trigger) {
    OutboxTable table = outbox_table(trigger->tg_relation, trigger->tg_trigger->tgargs[0]);
    TupleTableSlot* row = trigger->tg_trigslot;
    Changes changes;
    pg_uuid_t new_id;

    check_producers_row(row, table, trigger->tg_relation);
    fill_due_time(row, table, changes);
    clear_claim(row, table, changes);
    if (is_null(row, table.id)) {
        new_uuid(new_id);
        changes.set(table.id, UUIDPGetDatum(&new_id));
    }
    if (is_null(row, table.seq)) {
        if (table.serialize) {
            serialize_producers(row, table);
        }
        // The sequence's lock is what tells drainers that this transaction may still bring this
        // number. Without a check of rights: a producer needs INSERT on the table and nothing else.
        changes.set(table.seq, Int64GetDatum(nextval_internal(table.sequence, false)));
    }
    if (changes.count == 0) {
        return trigger->tg_trigtuple;
    }
    return heap_modify_tuple_by_cols(trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation),
                                     changes.count, changes.columns, changes.values, changes.nulls);
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_event_before_insert);

/// outbox.event_before_insert() returns trigger
OBD_EXPORT Datum outbox_drainer_event_before_insert(PG_FUNCTION_ARGS) {
    outbox::postgres::require_right_call(fcinfo);
    HeapTuple row = outbox::postgres::fill_row(reinterpret_cast<TriggerData*>(fcinfo->context));
    outbox::postgres::note_event_written();
    return PointerGetDatum(row);
}

}  // extern "C"
