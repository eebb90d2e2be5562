#pragma once

#include <optional>

#include "amqp/connection.hpp"
#include "amqp/encode.hpp"
#include "amqp/link.hpp"

namespace outbox::amqp {

/// What is asked on the channel for questions: one at a time.
class Questions {
  public:
    bool open() const { return expected_ != 0; }
    /// Sends it; the channel is open or is being opened. False: it does not fit into a frame.
    bool ask(Link& link, const Question& question);
    /// The answer, if the method is the one that is waited for.
    std::optional<Answer> take(const amqp_method_t& method);
    /// The answer when the broker closes the channel, or the connection, for it.
    Answer refuse(std::uint16_t code, amqp_bytes_t text);
    /// Whether the open question is what this method, named in a close, was sent for.
    bool is_about(std::uint16_t class_id, std::uint16_t method_id) const;
    void forget() { expected_ = asked_ = 0; }

  private:
    void send(Link& link, amqp_method_number_t id, void* method, amqp_method_number_t expected);
    void declare_exchange(Link& link, const Question& question, bool passive);
    void declare_queue(Link& link, const Question& question, bool passive);
    void bind_queue(Link& link, const Question& question);

    TableEncoder arguments_;
    amqp_method_number_t asked_ = 0;
    amqp_method_number_t expected_ = 0;
};

}  // namespace outbox::amqp
