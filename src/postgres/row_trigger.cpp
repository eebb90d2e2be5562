// The trigger on an outbox table: fills what is NULL, decides whether the row is deferred from the
// start, and notes that the drainer is to be woken at commit. C with templates: no object here has
// a destructor.
#include "postgres/prelude.hpp"
#include "postgres/sql_uuid.hpp"
#include "postgres/wake.hpp"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

/// What the trigger must know of a table, looked up once and dropped when the table or the sequence
/// changes.
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
};

OutboxTable known;
bool callback_registered = false;

void forget_changed_table(Datum, Oid relation) {
    if (!OidIsValid(relation) || relation == known.table || relation == known.sequence) {
        known.table = InvalidOid;
    }
}

int column_of(Relation table, const char* name, Oid type) {
    int column = SPI_fnumber(RelationGetDescr(table), name);
    if (column <= 0 || SPI_gettypeid(RelationGetDescr(table), column) != type) {
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("outbox table \"%s\" has no column \"%s\" of type %s",
                               RelationGetRelationName(table), name, format_type_be(type))));
    }
    return column;
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
    OutboxTable found{};
    found.seq = column_of(table, "seq", INT8OID);
    found.id = column_of(table, "id", UUIDOID);
    found.available_at = column_of(table, "available_at", TIMESTAMPTZOID);
    found.next_attempt_at = column_of(table, "next_attempt_at", TIMESTAMPTZOID);
    found.claimed_at = column_of(table, "claimed_at", TIMESTAMPTZOID);
    found.claimed_by = column_of(table, "claimed_by", TEXTOID);
    found.published_at = column_of(table, "published_at", TIMESTAMPTZOID);
    found.dead_at = column_of(table, "dead_at", TIMESTAMPTZOID);
    found.sequence = sequence_of(table, sequence);
    found.table = RelationGetRelid(table);
    return found;
}

// By value: drawing a number takes a lock, which can bring in the change that empties `known`.
OutboxTable outbox_table(Relation table, const char* sequence) {
    if (known.table != RelationGetRelid(table)) {
        if (!callback_registered) {
            CacheRegisterRelcacheCallback(forget_changed_table, Datum{0});
            callback_registered = true;
        }
        known = look_up(table, sequence);
    }
    return known;
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

/// When a new row is due, if it is deferred from the start. That is a row scheduled for later, and
/// any row that brings its own number: drainers may have gone past that number already.
OptionalTime due_time(TupleTableSlot* row, const OutboxTable& table) {
    if (!is_null(row, table.published_at) || !is_null(row, table.dead_at)) {
        return {false, 0};
    }
    OptionalTime available = time_in(row, table.available_at);
    TimestampTz now = GetCurrentTimestamp();
    if (is_null(row, table.seq)) {
        return {available.given && available.time > now, available.time};
    }
    OptionalTime next = time_in(row, table.next_attempt_at);
    if (next.given) {
        return next;
    }
    return {true, available.given ? available.time : now};
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

    fill_due_time(row, table, changes);
    clear_claim(row, table, changes);
    if (is_null(row, table.id)) {
        new_uuid(new_id);
        changes.set(table.id, UUIDPGetDatum(&new_id));
    }
    if (is_null(row, table.seq)) {
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
