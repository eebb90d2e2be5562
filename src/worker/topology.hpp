#pragma once

#include <optional>

#include "postgres/broker_requests.hpp"
#include "postgres/slot.hpp"
#include "worker/broker_link.hpp"

namespace outbox::worker {

/// What sessions want to know of the broker, or want declared there (outbox.check_topology,
/// declare_exchange, declare_queue): takes their requests, one after the other, and answers them.
class Topology {
  public:
    Topology(BrokerLink& link, postgres::Slot& slot);

    /// Hands on what has come since the last call: to be called after the link was pumped.
    void look();

  private:
    bool answer_taken();
    void ask(const postgres::BrokerQuestion& question);
    void answer(const postgres::BrokerReply& reply);

    BrokerLink& link_;
    postgres::Slot& slot_;
    bool asked_ = false;        ///< there may be requests
    std::optional<int> taken_;  ///< the place of the request whose answer is awaited
};

}  // namespace outbox::worker
