#pragma once

#include "core/message.hpp"
#include "postgres/broker_requests.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "utils/jsonb.h"
}

namespace outbox::postgres {

/// Puts the arguments of an exchange, a queue or a binding into the question; raises an error for
/// those that cannot be sent.
void put_arguments(const Jsonb* arguments, BrokerQuestion& question);

/// The arguments of a question in a drainer; without any, an empty table. False when memory is out.
bool read_arguments(const BrokerQuestion& question, Table& table);

}  // namespace outbox::postgres
