#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "amqp/connection.hpp"
#include "amqp/frame.hpp"
#include "amqp/link.hpp"
#include "amqp/questions.hpp"
#include "amqp/returned.hpp"

namespace outbox::amqp {

/// The number of a channel for publishing.
inline amqp_channel_t number_of(Channel channel) {
    return channel == Channel::main ? main_channel : trial_channel;
}

/// The three channels of a connection. Each is opened with all that belongs to it in one go, and
/// again when the broker has closed it:
///
///     open:  channel.open, confirm.select -> open-ok, select-ok
///     again: channel.close -> close-ok, channel.open, confirm.select -> open-ok, select-ok
///
/// The broker drops what it gets on a channel between its close and our close-ok, and sends nothing
/// there; so all that comes after it belongs to the new one.
class Channels {
  public:
    enum class Asked : std::uint8_t { sent, busy, too_long };

    /// Sends what opens all of them.
    void open(Link& link);
    bool all_open() const;
    bool is_open(Channel channel) const;
    /// The delivery tag of the message that has just been sent.
    std::uint64_t next_tag(Channel channel);
    Asked ask(Link& link, const Question& question);
    /// The connection is being closed: a channel that the broker closes now stays closed, without
    /// an answer.
    void stop_answering() { answering_ = false; }

    /// What a frame of one of the channels means; nullopt: nothing to tell. Closed: it has no place
    /// here.
    std::optional<Incoming> take(Link& link, const amqp_frame_t& frame);
    /// What the close of the connection says about the question that is open, if it does.
    std::optional<Answer> take_close(const amqp_connection_close_t& close);

  private:
    enum class Step : std::uint8_t { closed, opening, selecting, open };
    struct State {
        Step step = Step::closed;
        std::uint64_t last_tag = 0;
        ReturnReader returned;
    };

    State& state(amqp_channel_t channel) { return states_[channel - 1]; }
    const State& state(Channel channel) const;
    void open(Link& link, amqp_channel_t channel);
    std::optional<Incoming> take_method(Link& link, const amqp_frame_t& frame);
    std::optional<Incoming> take_opening(const amqp_frame_t& frame);
    std::optional<Incoming> take_publishing(const amqp_frame_t& frame);
    std::optional<Incoming> take_content(const amqp_frame_t& frame);
    std::optional<Incoming> take_close(Link& link, const amqp_frame_t& frame);
    Closed closed_while_opening(const amqp_frame_t& frame) const;

    std::array<State, channel_count> states_;
    Questions questions_;
    bool answering_ = true;
};

}  // namespace outbox::amqp
