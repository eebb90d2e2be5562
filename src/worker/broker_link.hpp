#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "core/announcement_limit.hpp"
#include "core/drain.hpp"
#include "postgres/slot.hpp"

namespace outbox::worker {

/// The drainer's connection to the broker: joins amqp::Connection to the state machine and tells
/// users, in the views and by one log line for each change of state, how it stands.
class BrokerLink {
  public:
    BrokerLink(Drain& drain, postgres::Slot& slot);

    /// Starts connecting to that broker of the settings' list.
    void open(Time now, const DrainSettings& settings, std::size_t broker);
    /// Takes in what the broker has sent, and goes on with connecting.
    void pump(Time now);
    /// Publishes the event that the machine asked for.
    void publish(Time now, const Event& event, Channel channel, const DrainSettings& settings);
    /// To be called before a wait and before a transaction: sends what was published. If that
    /// breaks the connection, the machine hears of it by the next pump(): by now it may have a
    /// plan.
    void flush();
    /// Drops the connection; with a reason it counts as lost.
    void close(Time now, std::string_view reason);

    /// The machine's own question, whether an exchange exists.
    void ask_for_exchange(const std::string& exchange);
    /// Whether somebody else may ask: connected, and no question of theirs is open.
    bool may_ask() const;
    /// Asks for them; take_answer() follows some time. False: not now.
    bool ask(const amqp::Question& question);
    /// The answer, once. After a lost connection it says so, with code 0.
    std::optional<amqp::Answer> take_answer();

    int fd() const { return connection_.fd(); }
    amqp::Connection::Wanted wanted() const { return connection_.wanted(); }
    Duration max_wait() const { return broken_ ? Duration{0} : connection_.max_wait(); }

  private:
    struct Asked {
        amqp::Question question;
        bool by_machine = true;
    };

    std::optional<BrokerUri> read_uri(Time now, const DrainSettings& settings, std::size_t broker);
    void lost(Time now, amqp::Failure failure);
    void became_ready(Time now);
    void say_goodbye();
    void handle(Time now, const amqp::Incoming& incoming);
    void take_last_words(Time now);
    void note_closed_channel(Time now, const amqp::ChannelClosed& closed);
    void report_closed_channel(Time now, const std::string& text);
    void note_answer(Time now, const amqp::Answer& answer);
    void ask_next();
    bool answer_is_overdue(Time now) const;
    void end_questions(const std::string& why);
    void note_returned(const amqp::Returned& returned);
    void remember_mandatory(Channel channel, std::uint64_t tag, const Message& message);
    void forget_mandatory(Channel channel);

    Drain& drain_;
    postgres::Slot& slot_;
    amqp::Connection connection_;
    std::string broker_;  ///< host:port/vhost
    bool connecting_ = false;
    bool was_connected_ = false;
    bool broken_ = false;           ///< the last flush failed
    std::string reported_failure_;  ///< logged last; the same again is not logged
    std::string reported_close_;    ///< likewise, of a channel
    AnnouncementLimit closes_;      ///< of channels
    std::uint64_t failures_ = 0;    ///< since the last connection

    std::deque<Asked> questions_;  ///< one after the other; the first is with the broker
    bool asking_ = false;
    Time asked_at_{};
    Duration answer_timeout_{0};
    bool blocked_ = false;
    std::optional<amqp::Answer> answer_;

    /// Unconfirmed mandatory messages of a channel by app_id and message_id, with their delivery
    /// tags.
    struct Mandatory {
        using Tags = std::multimap<std::string, std::uint64_t>;
        Tags tags;
        std::deque<Tags::iterator> order;  ///< in the order of their tags
    };
    Mandatory& mandatory_of(Channel channel) {
        return channel == Channel::main ? mandatory_ : mandatory_on_trial_;
    }
    Mandatory mandatory_;
    Mandatory mandatory_on_trial_;
};

}  // namespace outbox::worker
