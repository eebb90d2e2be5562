// serialize_producers: an exclusive lock on the group that a producer writes to, for producers that
// do not lock their aggregate. Exact, not one of a bounded number of buckets, which would make
// producers wait that have nothing in common.
#include "postgres/producer_locks.hpp"

#include <algorithm>

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
}

namespace outbox::postgres {

namespace {

// pg_advisory_lock uses 1 and 2 here.
constexpr std::uint16_t LOCK_CLASS = 5672;

/// The groups that this transaction has locked, and some of earlier transactions or of
/// subtransactions that have been rolled back: those are sorted out when the list is full, by
/// asking the lock manager. So no end of a transaction has to be noticed.
struct Groups {
    std::uint64_t* list;
    int count;
    int capacity;
};

Groups groups;

int most_groups() {
    return std::max(max_locks_per_xact / 2, 1);
}

LOCKTAG tag_of(std::uint64_t group) {
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, static_cast<std::uint32_t>(group >> 32),
                         static_cast<std::uint32_t>(group), LOCK_CLASS);
    return tag;
}

bool is_held(std::uint64_t group) {
    const LOCKTAG tag = tag_of(group);
#if PG_VERSION_NUM >= 170000
    return LockHeldByMe(&tag, ExclusiveLock, false);
#else
    return LockHeldByMe(&tag, ExclusiveLock);
#endif
}

std::uint64_t hash(std::string_view text, std::uint64_t seed) {
    return hash_bytes_extended(reinterpret_cast<const unsigned char*>(text.data()),
                               static_cast<int>(text.size()), seed);
}

void make_list() {
    if (groups.capacity == 0) {
        const int wanted = most_groups();
        groups.list = static_cast<std::uint64_t*>(
            MemoryContextAlloc(TopMemoryContext, sizeof(std::uint64_t) * wanted));
        groups.capacity = wanted;
    }
}

// The lock table is one for all sessions, and a transaction that fills it makes others fail.
void require_room() {
    make_list();
    if (groups.count < groups.capacity) {
        return;
    }
    const std::uint64_t* held = std::remove_if(groups.list, groups.list + groups.count,
                                               [](std::uint64_t group) { return !is_held(group); });
    groups.count = static_cast<int>(held - groups.list);
    if (groups.count < groups.capacity) {
        return;
    }
    ereport(
        ERROR,
        (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
         errmsg("transaction writes events of more than %d keys", groups.capacity),
         errdetail("Its relay has serialize_producers, which locks each key until the transaction "
                   "ends; these locks may be half of max_locks_per_transaction, which is %d.",
                   max_locks_per_xact),
         errhint("Write fewer keys in one transaction, raise max_locks_per_transaction, or let "
                 "producers lock their own rows and turn serialize_producers off.")));
}

void remember(std::uint64_t group) {
    std::uint64_t* end = groups.list + groups.count;
    if (std::find(groups.list, end, group) == end) {
        *end = group;
        groups.count++;
    }
}

bool attribute_is_true(HeapTuple row, int column, TupleDesc description) {
    bool null = true;
    const Datum value = heap_getattr(row, column, description, &null);
    return !null && DatumGetBool(value);
}

}  // namespace

bool producers_are_serialized(Oid table) {
    const Oid schema = get_namespace_oid("outbox", true);
    const Oid relay_table = get_relname_relid("relay", schema);
    const AttrNumber source = get_attnum(relay_table, "source");
    const AttrNumber serialize = get_attnum(relay_table, "serialize_producers");
    if (source <= 0 || serialize <= 0) {
        return false;
    }
    // The lock takes in what was announced so far, and the snapshot comes after it: a change that
    // is not seen yet will still be announced.
    Relation relays = table_open(relay_table, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    ScanKeyData reads_table;
    ScanKeyInit(&reads_table, source, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(table));
    SysScanDesc scan = systable_beginscan(relays, InvalidOid, false, snapshot, 1, &reads_table);
    bool serialized = false;
    for (HeapTuple row = systable_getnext(scan); HeapTupleIsValid(row) && !serialized;
         row = systable_getnext(scan)) {
        serialized = attribute_is_true(row, serialize, RelationGetDescr(relays));
    }
    systable_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(relays, AccessShareLock);
    return serialized;
}

void lock_group(Oid table, std::string_view source, std::string_view key) {
    const std::uint64_t group = hash(key, hash(source, table));
    if (is_held(group)) {
        return;
    }
    require_room();
    const LOCKTAG tag = tag_of(group);
    (void)LockAcquire(&tag, ExclusiveLock, false, false);
    remember(group);
}

}  // namespace outbox::postgres
