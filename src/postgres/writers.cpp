#include "postgres/writers.hpp"

extern "C" {
#include "access/transam.h"
#include "access/twophase.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
}

namespace outbox::postgres {

namespace {

#if PG_VERSION_NUM >= 170000
PGPROC* proc_of(const VirtualTransactionId& id) {
    return id.procNumber == INVALID_PROC_NUMBER ? nullptr : ProcNumberGetProc(id.procNumber);
}
LocalTransactionId local_xid_of(const PGPROC* proc) {
    return proc->vxid.lxid;
}
Writer to_writer(const VirtualTransactionId& id) {
    return {id.procNumber, id.localTransactionId};
}
VirtualTransactionId to_id(const Writer& writer) {
    return {writer.backend, writer.local_id};
}
#else
PGPROC* proc_of(const VirtualTransactionId& id) {
    return id.backendId == InvalidBackendId ? nullptr : BackendIdGetProc(id.backendId);
}
LocalTransactionId local_xid_of(const PGPROC* proc) {
    return proc->lxid;
}
Writer to_writer(const VirtualTransactionId& id) {
    return {id.backendId, id.localTransactionId};
}
VirtualTransactionId to_id(const Writer& writer) {
    return {static_cast<BackendId>(writer.backend), writer.local_id};
}
#endif

}  // namespace

bool writer_is_running(const Writer& writer) {
    const VirtualTransactionId id = to_id(writer);
    if (VirtualTransactionIdIsRecoveredPreparedXact(id)) {
        return TransactionIdIsInProgress(id.localTransactionId);
    }
    // First the backend, then the prepared transactions: PREPARE enters the second before it leaves
    // the first, so asking in this order cannot miss it.
    const PGPROC* proc = proc_of(id);
    pg_memory_barrier();
    if (proc != nullptr && local_xid_of(proc) == id.localTransactionId) {
        return true;
    }
    pg_memory_barrier();
    bool more = false;
    const TransactionId prepared = TwoPhaseGetXidByVirtualXID(id, &more);
    return more || (TransactionIdIsValid(prepared) && TransactionIdIsInProgress(prepared));
}

std::span<const Writer> sequence_writers(Oid sequence) {
    LOCKTAG tag;
    SET_LOCKTAG_RELATION(tag, MyDatabaseId, sequence);
    int count = 0;
    // ShareLock conflicts with the RowExclusiveLock of nextval and with nothing weaker.
    const VirtualTransactionId* holders = GetLockConflicts(&tag, ShareLock, &count);
    auto* writers = static_cast<Writer*>(palloc(sizeof(Writer) * static_cast<Size>(count + 1)));
    for (int i = 0; i < count; i++) {
        writers[i] = to_writer(holders[i]);
    }
    return {writers, static_cast<std::size_t>(count)};
}

}  // namespace outbox::postgres
