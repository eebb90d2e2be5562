#include "postgres/database_list.hpp"

extern "C" {
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace outbox::postgres {

namespace {

// Plain data, as it is filled below the guard.
struct Found {
    Oid oid;
    NameData name;
};

struct FoundList {
    Found* items = nullptr;
    int count = 0;
    int capacity = 0;

    void add(const Found& found) {
        if (count == capacity) {
            capacity = capacity == 0 ? 16 : capacity * 2;
            const Size bytes = sizeof(Found) * static_cast<Size>(capacity);
            items = static_cast<Found*>(items == nullptr ? palloc(bytes) : repalloc(items, bytes));
        }
        items[count++] = found;
    }

    void release() {
        if (items != nullptr) {
            pfree(items);
        }
        items = nullptr;
    }
};

void scan(FoundList& list, MemoryContext memory) {
    StartTransactionCommand();
    (void)GetTransactionSnapshot();
    Relation relation = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(relation, 0, nullptr);
    for (;;) {
        HeapTuple tuple = heap_getnext(scan, ForwardScanDirection);
        if (!HeapTupleIsValid(tuple)) {
            break;
        }
        const auto* form = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
        if (form->datallowconn) {
            MemoryContext previous = MemoryContextSwitchTo(memory);
            list.add({form->oid, form->datname});
            MemoryContextSwitchTo(previous);
        }
    }
    table_endscan(scan);
    table_close(relation, AccessShareLock);
    CommitTransactionCommand();
    MemoryContextSwitchTo(memory);
}

}  // namespace

std::optional<std::vector<Database>> list_databases(PgError& error) {
    MemoryContext memory = CurrentMemoryContext;
    FoundList list;
    if (!pg_try(error, [&] { scan(list, memory); })) {
        PgError second;
        pg_try(second, [] { AbortCurrentTransaction(); });
        MemoryContextSwitchTo(memory);
        list.release();
        return std::nullopt;
    }
    std::vector<Database> databases;
    databases.reserve(static_cast<std::size_t>(list.count));
    for (int i = 0; i < list.count; i++) {
        databases.push_back({list.items[i].oid, NameStr(list.items[i].name)});
    }
    list.release();
    return databases;
}

}  // namespace outbox::postgres
