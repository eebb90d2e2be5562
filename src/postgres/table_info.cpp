// Catalog look-ups of a drainer.
#include "postgres/event_store.hpp"

extern "C" {
#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace outbox::postgres {

namespace {

void read_sequence(TableInfo& info) {
    HeapTuple sequence = SearchSysCache1(SEQRELID, ObjectIdGetDatum(info.sequence));
    if (HeapTupleIsValid(sequence)) {
        info.sequence_cached =
            reinterpret_cast<Form_pg_sequence>(GETSTRUCT(sequence))->seqcache != 1;
        ReleaseSysCache(sequence);
    }
    HeapTuple sequence_class = SearchSysCache1(RELOID, ObjectIdGetDatum(info.sequence));
    if (HeapTupleIsValid(sequence_class)) {
        info.sequence_file =
            reinterpret_cast<Form_pg_class>(GETSTRUCT(sequence_class))->relfilenode;
        ReleaseSysCache(sequence_class);
    }
}

TableInfo read_table_info() {
    TableInfo info;
    const Oid schema = get_namespace_oid("outbox", true);
    if (!OidIsValid(schema)) {
        return info;
    }
    info.sequence = get_relname_relid("event_seq", schema);
    const Oid event = get_relname_relid("event", schema);
    // Held to the end of the transaction: the owner as whom it runs stays the owner.
    if (OidIsValid(event)) {
        LockRelationOid(event, AccessShareLock);
    }
    HeapTuple event_class = SearchSysCache1(RELOID, ObjectIdGetDatum(event));
    if (!HeapTupleIsValid(event_class) || !OidIsValid(info.sequence)) {
        return info;
    }
    const auto* form = reinterpret_cast<Form_pg_class>(GETSTRUCT(event_class));
    info.event = event;
    info.owner = form->relowner;
    info.logged = form->relpersistence == RELPERSISTENCE_PERMANENT;
    ReleaseSysCache(event_class);
    read_sequence(info);
    return info;
}

}  // namespace

std::optional<TableInfo> table_info(Transaction& transaction) {
    TableInfo info;
    const bool ok = transaction.run([&] { info = read_table_info(); });
    return ok ? std::optional(info) : std::nullopt;
}

std::optional<bool> extension_exists(Transaction& transaction) {
    bool exists = false;
    const bool ok =
        transaction.run([&] { exists = OidIsValid(get_extension_oid("outbox_drainer", true)); });
    return ok ? std::optional(exists) : std::nullopt;
}

}  // namespace outbox::postgres
