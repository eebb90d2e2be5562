// Questions of sessions to the broker: a session puts one into shared memory and wakes a drainer,
// the drainer asks and puts the answer there. No lock is held while anybody waits.
#include "postgres/broker_requests.hpp"

#include <algorithm>

#include "postgres/shared_state.hpp"
#include "postgres/slot.hpp"

extern "C" {
#include "access/xact.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/wait_event.h"
}

namespace outbox::postgres {

namespace {

using State = BrokerRequest::State;

constexpr int NOWHERE = -1;
// How often a session looks again for a drainer that is connected, or for room to ask.
constexpr long LOOK_AGAIN_MS = 50;
constexpr long LONGEST_WAIT_MS = 60000;

/// The place of the request of this session.
int own_place = NOWHERE;

BrokerRequest& request_at(int place) {
    return shared_state()->broker_requests.requests[place];
}

// The caller holds the lock.
void wake_asker(const BrokerRequest& request) {
    SetLatch(&GetPGProcByNumber(request.asker)->procLatch);
}

// What a drainer has taken, it frees.
void leave_request() {
    if (own_place == NOWHERE) {
        return;
    }
    const SlotLock lock(LW_EXCLUSIVE);
    BrokerRequest& request = request_at(own_place);
    if (request.state == State::taken) {
        request.abandoned = true;
    } else {
        request.state = State::free;
    }
    own_place = NOWHERE;
}

// An error while waiting, a cancel or the end of the session aborts the transaction or a part of
// it.
void on_transaction_end(XactEvent event, void*) {
    if (event == XACT_EVENT_ABORT) {
        leave_request();
    }
}

void on_subtransaction_end(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB) {
        leave_request();
    }
}

void install_callbacks() {
    static bool installed = false;
    if (!installed) {
        RegisterXactCallback(on_transaction_end, nullptr);
        RegisterSubXactCallback(on_subtransaction_end, nullptr);
        installed = true;
    }
}

bool is_connected(const DrainerSlot& slot) {
    return slot.pid != 0 && slot.connected_since != 0;
}

// What may still become connected without anybody's help. The caller holds the lock.
bool may_become_connected(DrainerSlot& slot) {
    if (slot.pid == 0) {
        return true;
    }
    switch (static_cast<DrainerState>(pg_atomic_read_u32(&slot.state))) {
        case DrainerState::disabled:
        case DrainerState::misconfigured:
            return false;
        case DrainerState::idle:
            // Without a broker none is configured.
            return slot.connected_since != 0 || slot.broker[0] != '\0';
        default:
            return true;
    }
}

bool is_blocked(DrainerSlot& slot) {
    return pg_atomic_read_u32(&slot.state) == static_cast<uint32>(DrainerState::blocked);
}

/// The drainers of this database as somebody sees them who wants to ask.
struct Drainers {
    int connected;  ///< the slot of the first that is connected; a blocked broker hears nobody
    bool hope;
};

// A database that is not known yet was made just now. The caller holds the lock.
Drainers find_drainers(SharedState& state) {
    Drainers found{NOWHERE, first_slot(MyDatabaseId) == nullptr};
    int blocked = NOWHERE;
    for (int i = 0; i < state.slot_count && state.slots[i].in_use; i++) {
        DrainerSlot& slot = state.slots[i];
        if (slot.database != MyDatabaseId) {
            continue;
        }
        found.hope = found.hope || may_become_connected(slot);
        if (is_connected(slot)) {
            int& place = is_blocked(slot) ? blocked : found.connected;
            place = place == NOWHERE ? i : place;
        }
    }
    found.connected = found.connected == NOWHERE ? blocked : found.connected;
    return found;
}

// The caller holds the lock.
int find_room(const BrokerRequests& all) {
    const auto* room =
        std::find_if(std::begin(all.requests), std::end(all.requests),
                     [](const BrokerRequest& request) { return request.state == State::free; });
    return room == std::end(all.requests) ? NOWHERE : static_cast<int>(room - all.requests);
}

/// Puts the question where a drainer finds it.
enum class Put : std::uint8_t { done, nobody, hopeless, crowded };
Put put_request(const BrokerQuestion& question) {
    SharedState* state = shared_state();
    if (state == nullptr) {
        return Put::hopeless;
    }
    const SlotLock lock(LW_EXCLUSIVE);
    const Drainers drainers = find_drainers(*state);
    if (drainers.connected == NOWHERE) {
        return drainers.hope ? Put::nobody : Put::hopeless;
    }
    const int place = find_room(state->broker_requests);
    if (place == NOWHERE) {
        return Put::crowded;
    }
    BrokerRequest& request = request_at(place);
    request.state = State::asked;
    request.abandoned = false;
    request.slot = drainers.connected;
    request.number = ++state->broker_requests.last_number;
    request.asker = own_procno();
    request.question = question;
    own_place = place;
    DrainerSlot& slot = state->slots[drainers.connected];
    pg_atomic_write_u32(&slot.asked, 1);
    set_latch_of(slot.procno);
    return Put::done;
}

// Takes the answer and gives the place back.
bool take_reply(BrokerReply& reply) {
    const SlotLock lock(LW_EXCLUSIVE);
    BrokerRequest& request = request_at(own_place);
    if (request.state != State::answered) {
        return false;
    }
    reply = request.reply;
    request.state = State::free;
    own_place = NOWHERE;
    return true;
}

// Returns at once when the time is over.
bool wait_until(TimestampTz deadline, long longest_ms) {
    const TimestampTz now = GetCurrentTimestamp();
    if (deadline <= now) {
        return false;
    }
    WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
              std::min(TimestampDifferenceMilliseconds(now, deadline), longest_ms),
              PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
    return true;
}

// Gives a question that was put; false when it was not, up to the deadline.
bool put_in_time(const BrokerQuestion& question, TimestampTz deadline, BrokerReply& reply) {
    for (;;) {
        const Put put = put_request(question);
        if (put == Put::done) {
            return true;
        }
        reply.outcome = put == Put::crowded ? BrokerOutcome::crowded : BrokerOutcome::nobody;
        if (put == Put::hopeless || !wait_until(deadline, LOOK_AGAIN_MS)) {
            return false;
        }
    }
}

bool take_reply_in_time(TimestampTz deadline, BrokerReply& reply) {
    while (!take_reply(reply)) {
        if (!wait_until(deadline, LONGEST_WAIT_MS)) {
            // It may have come just now.
            return take_reply(reply);
        }
    }
    return true;
}

void put_reply(BrokerRequest& request, const BrokerReply& reply) {
    if (request.abandoned) {
        request.state = State::free;
        return;
    }
    request.reply = reply;
    request.state = State::answered;
    wake_asker(request);
}

}  // namespace

void ask_broker(const BrokerQuestion& question, TimestampTz deadline, BrokerReply& reply) {
    install_callbacks();
    for (;;) {
        reply = {};
        if (!put_in_time(question, deadline, reply)) {
            return;
        }
        if (!take_reply_in_time(deadline, reply)) {
            leave_request();
            reply.outcome = BrokerOutcome::timed_out;
        }
        if (reply.outcome != BrokerOutcome::not_asked) {
            return;
        }
        if (!wait_until(deadline, LOOK_AGAIN_MS)) {
            reply.outcome = BrokerOutcome::nobody;
            return;
        }
    }
}

std::optional<int> take_broker_request(int slot, BrokerQuestion& question) {
    BrokerRequests& all = shared_state()->broker_requests;
    const SlotLock lock(LW_EXCLUSIVE);
    BrokerRequest* first = nullptr;
    for (BrokerRequest& request : all.requests) {
        const bool is_ours = request.state == State::asked && request.slot == slot;
        if (is_ours && (first == nullptr || request.number < first->number)) {
            first = &request;
        }
    }
    if (first == nullptr) {
        return std::nullopt;
    }
    first->state = State::taken;
    question = first->question;
    return static_cast<int>(first - all.requests);
}

void answer_broker_request(int place, const BrokerReply& reply) {
    const SlotLock lock(LW_EXCLUSIVE);
    put_reply(request_at(place), reply);
}

void end_broker_requests(int slot) {
    for (BrokerRequest& request : shared_state()->broker_requests.requests) {
        const bool is_open = request.state == State::asked || request.state == State::taken;
        if (!is_open || request.slot != slot) {
            continue;
        }
        BrokerReply reply{};
        reply.outcome =
            request.state == State::taken ? BrokerOutcome::drainer_ended : BrokerOutcome::not_asked;
        put_reply(request, reply);
    }
}

}  // namespace outbox::postgres
