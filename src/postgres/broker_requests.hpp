#pragma once

#include "postgres/prelude.hpp"

extern "C" {
#include "port/atomics.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

/// What can be asked of the broker, as amqp::Question has it.
enum class BrokerAction : std::uint8_t {
    exchange_exists,
    queue_exists,
    declare_exchange,
    declare_queue,
    bind_queue,
};

/// The longest name that AMQP takes, in bytes of UTF-8.
inline constexpr std::size_t MOST_NAME_BYTES = 255;
/// The longest arguments, as jsonb and as an AMQP table: with the names they fit the smallest
/// frame.
inline constexpr std::size_t MOST_ARGUMENT_BYTES = 3072;

/// A question of a session to the broker. Plain data: it lives in shared memory. Names are UTF-8.
struct BrokerQuestion {
    BrokerAction action;
    bool durable;
    bool auto_delete;
    bool internal;
    char exchange[MOST_NAME_BYTES + 1];
    char queue[MOST_NAME_BYTES + 1];
    char routing_key[MOST_NAME_BYTES + 1];
    char type[MOST_NAME_BYTES + 1];
    bool has_arguments;
    alignas(8) char arguments[MOST_ARGUMENT_BYTES];  ///< a jsonb value
};

/// What became of it.
enum class BrokerOutcome : std::uint8_t {
    answered,         ///< the broker has answered; `ok` or not
    not_asked,        ///< the drainer is not connected any more
    connection_lost,  ///< before the answer: it may have been done
    drainer_ended,    ///< likewise
    timed_out,        ///< likewise
    nobody,           ///< no drainer of this database is connected, up to the deadline
    crowded,          ///< too many sessions ask at once, up to the deadline
};

struct BrokerReply {
    BrokerOutcome outcome;
    bool ok;
    std::uint16_t code;      ///< AMQP's reply code, why not
    std::uint32_t messages;  ///< of a queue
    std::uint32_t consumers;
    char text[512];  ///< why not, in the words of the broker or the connection
};

/// A question on its way: free → asked → taken → answered → free. Protected by SharedState::lock.
struct BrokerRequest {
    enum class State : std::uint8_t { free, asked, taken, answered };
    State state;
    bool abandoned;  ///< who has asked is gone; the drainer that has taken it frees it
    int slot;        ///< of the drainer that is to ask. It answers whatever happens, at its end too
    std::uint64_t number;  ///< the order in which they were asked
    uint32 asker;          ///< whose latch to set
    BrokerQuestion question;
    BrokerReply reply;
};

/// So many sessions of the server can ask at once; others wait for their turn.
inline constexpr int BROKER_REQUESTS = 16;

struct BrokerRequests {
    std::uint64_t last_number;
    BrokerRequest requests[BROKER_REQUESTS];
};

// For sessions.

/// Has a drainer of this database ask the broker, and waits for the answer, holding nothing.
/// `question` and `reply` may be large. Raises PostgreSQL errors (a cancel).
void ask_broker(const BrokerQuestion& question, TimestampTz deadline, BrokerReply& reply);

// For drainers.

/// Takes the request that this drainer was asked first and copies its question; gives its place,
/// nullopt when there is none.
std::optional<int> take_broker_request(int slot, BrokerQuestion& question);
/// Answers a request that was taken.
void answer_broker_request(int place, const BrokerReply& reply);
/// Answers whatever a drainer that ends was asked. The caller holds the lock.
void end_broker_requests(int slot);

}  // namespace outbox::postgres
