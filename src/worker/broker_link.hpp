#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "core/drain.hpp"
#include "postgres/slot.hpp"

namespace outbox::worker {

/// The drainer's connection to the broker: joins amqp::Connection to the state machine and tells
/// users, in the views and by one log line for each change of state, how it stands.
class BrokerLink {
  public:
    BrokerLink(Drain& drain, postgres::Slot& slot);

    /// Starts connecting to the broker of the settings.
    void open(Time now, const DrainSettings& settings);
    /// Takes in what the broker has sent, and goes on with connecting.
    void pump(Time now);
    /// Publishes the event that the machine asked for.
    void publish(Time now, const Event& event, const DrainSettings& settings);
    /// To be called before a wait: lets the kernel send what it holds back.
    void flush() { connection_.flush(); }
    /// Drops the connection; with a reason it counts as lost.
    void close(Time now, std::string_view reason);

    int fd() const { return connection_.fd(); }
    amqp::Connection::Wanted wanted() const { return connection_.wanted(); }
    Duration max_wait() const { return connection_.max_wait(); }

  private:
    void lost(Time now, amqp::Failure failure);
    void became_ready(Time now);
    void say_goodbye();
    void handle(Time now, const amqp::Incoming& incoming);
    void note_returned(const amqp::Returned& returned);
    void remember_mandatory(std::uint64_t tag, const Message& message);
    void forget_mandatory();

    Drain& drain_;
    postgres::Slot& slot_;
    amqp::Connection connection_;
    std::string broker_;  ///< host:port/vhost
    bool connecting_ = false;
    bool was_connected_ = false;
    std::string reported_failure_;  ///< logged last; the same again is not logged
    std::uint64_t failures_ = 0;    ///< since the last connection

    /// Unconfirmed mandatory messages by app_id and message_id, with their delivery tags.
    using Mandatory = std::multimap<std::string, std::uint64_t>;
    Mandatory mandatory_;
    std::deque<Mandatory::iterator> mandatory_order_;  ///< in the order of their tags
};

}  // namespace outbox::worker
