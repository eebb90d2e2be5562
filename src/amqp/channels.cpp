#include "amqp/channels.hpp"

#include <algorithm>
#include <utility>

#include "amqp/replies.hpp"

namespace outbox::amqp {

namespace {

// Not for the channel of questions.
Channel channel_of(amqp_channel_t number) {
    return number == main_channel ? Channel::main : Channel::trial;
}

template <typename T>
const T& decoded(const amqp_frame_t& frame) {
    return *static_cast<const T*>(frame.payload.method.decoded);
}

}  // namespace

const Channels::State& Channels::state(Channel channel) const {
    return states_[number_of(channel) - 1];
}

void Channels::open(Link& link) {
    for (amqp_channel_t channel = 1; channel <= channel_count; ++channel) {
        open(link, channel);
    }
}

void Channels::open(Link& link, amqp_channel_t channel) {
    amqp_channel_open_t open{};
    (void)link.send_method(channel, AMQP_CHANNEL_OPEN_METHOD, &open);
    if (channel != question_channel) {
        amqp_confirm_select_t select{};
        (void)link.send_method(channel, AMQP_CONFIRM_SELECT_METHOD, &select);
    }
    state(channel) = State{Step::opening, 0, {}};
}

bool Channels::all_open() const {
    return std::all_of(states_.begin(), states_.end(),
                       [](const State& state) { return state.step == Step::open; });
}

bool Channels::is_open(Channel channel) const {
    return state(channel).step == Step::open;
}

std::uint64_t Channels::next_tag(Channel channel) {
    return ++state(number_of(channel)).last_tag;
}

Channels::Asked Channels::ask(Link& link, const Question& question) {
    // A channel that is being opened takes it too: nothing but its open-ok can come before the
    // answer.
    if (questions_.open() || state(question_channel).step == Step::closed) {
        return Asked::busy;
    }
    return questions_.ask(link, question) ? Asked::sent : Asked::too_long;
}

std::optional<Incoming> Channels::take(Link& link, const amqp_frame_t& frame) {
    if (frame.channel == 0 || frame.channel > channel_count ||
        state(frame.channel).step == Step::closed) {
        return Closed{unexpected_frame(frame)};
    }
    return frame.frame_type == AMQP_FRAME_METHOD ? take_method(link, frame) : take_content(frame);
}

std::optional<Incoming> Channels::take_method(Link& link, const amqp_frame_t& frame) {
    if (frame.payload.method.id == AMQP_CHANNEL_CLOSE_METHOD) {
        return take_close(link, frame);
    }
    if (state(frame.channel).step != Step::open) {
        return take_opening(frame);
    }
    if (frame.channel != question_channel) {
        return take_publishing(frame);
    }
    if (std::optional<Answer> answer = questions_.take(frame.payload.method)) {
        return *std::move(answer);
    }
    return Closed{unexpected_frame(frame)};
}

std::optional<Incoming> Channels::take_opening(const amqp_frame_t& frame) {
    const amqp_method_number_t method = frame.payload.method.id;
    Step& step = state(frame.channel).step;
    if (method == AMQP_CHANNEL_OPEN_OK_METHOD && step == Step::opening) {
        step = frame.channel == question_channel ? Step::open : Step::selecting;
        return std::nullopt;
    }
    if (method == AMQP_CONFIRM_SELECT_OK_METHOD && step == Step::selecting) {
        step = Step::open;
        return ChannelOpened{channel_of(frame.channel)};
    }
    return Closed{unexpected_frame(frame)};
}

std::optional<Incoming> Channels::take_publishing(const amqp_frame_t& frame) {
    const Channel channel = channel_of(frame.channel);
    ReturnReader& returned = state(frame.channel).returned;
    if (!returned.idle()) {
        return Closed{unexpected_frame(frame)};
    }
    switch (frame.payload.method.id) {
        case AMQP_BASIC_ACK_METHOD: {
            const auto& ack = decoded<amqp_basic_ack_t>(frame);
            return Confirm{channel, ack.delivery_tag, ack.multiple != 0, true};
        }
        case AMQP_BASIC_NACK_METHOD: {
            const auto& nack = decoded<amqp_basic_nack_t>(frame);
            return Confirm{channel, nack.delivery_tag, nack.multiple != 0, false};
        }
        case AMQP_BASIC_RETURN_METHOD:
            returned.begin(channel, decoded<amqp_basic_return_t>(frame));
            return std::nullopt;
        default:
            return Closed{unexpected_frame(frame)};
    }
}

std::optional<Incoming> Channels::take_content(const amqp_frame_t& frame) {
    ReturnReader& returned = state(frame.channel).returned;
    if (!returned.take(frame)) {
        return Closed{unexpected_frame(frame)};
    }
    if (!returned.complete()) {
        return std::nullopt;
    }
    return returned.finish();
}

// A content that is under way ends with it, as the protocol has it for any method.
std::optional<Incoming> Channels::take_close(Link& link, const amqp_frame_t& frame) {
    const auto& close = decoded<amqp_channel_close_t>(frame);
    if (state(frame.channel).step != Step::open) {
        return closed_while_opening(frame);
    }
    state(frame.channel) = State{};
    if (answering_) {
        amqp_channel_close_ok_t close_ok{};
        (void)link.send_method(frame.channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &close_ok);
        open(link, frame.channel);
    }
    if (frame.channel != question_channel) {
        return ChannelClosed{channel_of(frame.channel), close.reply_code,
                             reply_text(close.reply_code, close.reply_text)};
    }
    if (!questions_.open()) {
        return std::nullopt;
    }
    return questions_.refuse(close.reply_code, close.reply_text);
}

// Only the open itself can be the cause, so another one would fare no better.
Closed Channels::closed_while_opening(const amqp_frame_t& frame) const {
    const auto& close = decoded<amqp_channel_close_t>(frame);
    return Closed{
        {FailureClass::infrastructure,
         "broker closed channel " + std::to_string(frame.channel) +
             " while it was being opened: " + reply_text(close.reply_code, close.reply_text)}};
}

std::optional<Answer> Channels::take_close(const amqp_connection_close_t& close) {
    if (!questions_.is_about(close.class_id, close.method_id)) {
        return std::nullopt;
    }
    return questions_.refuse(close.reply_code, close.reply_text);
}

}  // namespace outbox::amqp
