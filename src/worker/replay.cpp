// Replays: a transaction of their own, so that nothing that is wrong with one touches the live
// lanes.
#include "postgres/replay_store.hpp"
#include "postgres/wait.hpp"
#include "worker/drainer.hpp"

namespace outbox::worker {

void Drainer::replay() {
    ReplayLane& lane = drain_.replay();
    const ReplayPlan plan = lane.plan(postgres::monotonic_now());
    postgres::ReplayLimits limits;
    limits.bytes = settings_.batch_bytes;
    postgres::Arena memory;
    postgres::Transaction transaction("outbox_drainer: replaying");
    std::optional<ReplayResult> result;
    if (memory.create() && begin(transaction)) {
        result = postgres::run_replay(transaction, plan, limits, memory.context());
    }
    if (!result.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        transaction.abort();
        note_database_error(transaction.error());
        lane.transaction_failed(postgres::monotonic_now());
        return;
    }
    lane.transacted(postgres::monotonic_now(), *result);
    postgres::add(slot_.counters().replayed, static_cast<std::uint64_t>(plan.sent));
    if (!result->events.empty()) {
        replayed_ = std::move(memory);
    }
}

}  // namespace outbox::worker
