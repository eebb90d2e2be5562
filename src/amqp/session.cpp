#include "amqp/session.hpp"

#include <utility>
#include <variant>

#include "amqp/replies.hpp"

namespace outbox::amqp {

namespace {

constexpr Duration user_timeout_without_heartbeat{20000};

// What is read at most from a broker that takes nothing more.
constexpr std::size_t most_last_words = 100'000;

bool counts_after_the_end(const Incoming& incoming) {
    return std::holds_alternative<Confirm>(incoming) ||
           std::holds_alternative<Returned>(incoming) ||
           std::holds_alternative<ChannelClosed>(incoming) ||
           std::holds_alternative<Answer>(incoming);
}

}  // namespace

Duration Session::user_timeout(const BrokerUri& uri, const Options& options) {
    const Duration heartbeat = Handshake::wanted_heartbeat(uri, options);
    return heartbeat.count() > 0 ? 2 * heartbeat : user_timeout_without_heartbeat;
}

Session::Progress Session::start(int fd, const BrokerUri& uri, const Options& options) {
    user_timeout_ = user_timeout(uri, options);
    if (!link_.attach(fd)) {
        return fail(link_.failure());
    }
    uri_.set(uri);
    options_ = options;
    if (uri.tls) {
        phase_ = Phase::securing;
        return link_.stream().start_tls(*uri.tls, uri.host) ? advance_tls()
                                                            : fail(link_.stream().failure());
    }
    phase_ = Phase::handshaking;
    handshake_.start(link_, uri, options);
    uri_.forget();
    return advance_handshake();
}

Session::Progress Session::advance() {
    switch (phase_) {
        case Phase::securing:
            return advance_tls();
        case Phase::handshaking:
            return advance_handshake();
        case Phase::ready:
            return Progress::ready;
        case Phase::closing:
        case Phase::closed:
            break;
    }
    return Progress::failed;
}

Session::Progress Session::advance_tls() {
    switch (link_.stream().secure()) {
        case Stream::Progress::in_progress:
            return Progress::in_progress;
        case Stream::Progress::failed:
            return fail(link_.stream().failure());
        case Stream::Progress::done:
            break;
    }
    phase_ = Phase::handshaking;
    handshake_.start(link_, uri_.get(), options_);
    uri_.forget();
    return advance_handshake();
}

Session::Progress Session::advance_handshake() {
    const Handshake::Progress progress = handshake_.advance(link_, channels_);
    const bool alive = link_.beat();
    const bool sent = link_.stream().flush();
    if (progress == Handshake::Progress::failed) {
        return fail(handshake_.failure());
    }
    if (!sent) {
        // The broker may have said why.
        return handshake_.advance(link_, channels_) == Handshake::Progress::failed
                   ? fail(handshake_.failure())
                   : fail(link_.stream().failure());
    }
    if (progress == Handshake::Progress::in_progress) {
        return alive ? Progress::in_progress : fail(link_.failure());
    }
    phase_ = Phase::ready;
    if (handshake_.blocked()) {
        pending_.emplace_back(Blocked{*handshake_.blocked()});
        note(pending_.back());
    }
    return Progress::ready;
}

std::string Session::stage() const {
    switch (phase_) {
        case Phase::securing:
            return "in the TLS handshake";
        case Phase::handshaking:
            return handshake_.stage();
        case Phase::ready:
        case Phase::closing:
        case Phase::closed:
            break;
    }
    return {};
}

Session::Progress Session::fail(Failure reason) {
    failure_ = std::move(reason);
    drop();
    return Progress::failed;
}

void Session::drop() {
    link_.drop();
    handshake_.drop();
    uri_.forget();
    phase_ = Phase::closed;
}

std::optional<Incoming> Session::poll() {
    if (pending_.empty() && is_alive() && !read_next()) {
        if (!link_.beat()) {
            pending_.emplace_back(Closed{link_.failure()});
        } else if (!link_.stream().flush()) {
            Failure reason = last_words();
            pending_.emplace_back(Closed{std::move(reason)});
        }
    }
    if (pending_.empty()) {
        return std::nullopt;
    }
    Incoming first = std::move(pending_.front());
    pending_.pop_front();
    if (const auto* closed = std::get_if<Closed>(&first)) {
        (void)fail(closed->failure);
    }
    return first;
}

// Reads frames until there is something to tell. False: nothing more has arrived, or so much that
// means nothing that the rest is left for the next call.
bool Session::read_next() {
    int reads = Link::reads_at_once;
    while (pending_.empty()) {
        amqp_frame_t frame;
        switch (link_.read(frame, reads)) {
            case Link::Read::nothing:
                return false;
            case Link::Read::failed:
                pending_.emplace_back(Closed{link_.failure()});
                return true;
            case Link::Read::frame:
                break;
        }
        take(frame);
        link_.recycle(frame.channel);
    }
    note(pending_.back());
    return true;
}

void Session::take(const amqp_frame_t& frame) {
    if (const amqp_connection_close_t* close = take_connection_close(link_, frame)) {
        take_close(*close);
    } else if (frame.channel == 0 && frame.frame_type == AMQP_FRAME_METHOD) {
        take_connection_method(frame);
    } else if (std::optional<Incoming> incoming = channels_.take(link_, frame)) {
        pending_.push_back(*std::move(incoming));
    }
}

void Session::take_connection_method(const amqp_frame_t& frame) {
    const amqp_method_t& method = frame.payload.method;
    if (method.id == AMQP_CONNECTION_BLOCKED_METHOD) {
        const auto& blocked = *static_cast<const amqp_connection_blocked_t*>(method.decoded);
        pending_.emplace_back(Blocked{printable(to_view(blocked.reason))});
    } else if (method.id == AMQP_CONNECTION_UNBLOCKED_METHOD) {
        pending_.emplace_back(Unblocked{});
    } else if (method.id == AMQP_CONNECTION_CLOSE_OK_METHOD && phase_ == Phase::closing) {
        pending_.emplace_back(Closed{{FailureClass::infrastructure, "connection closed as asked"}});
    } else {
        pending_.emplace_back(Closed{unexpected_frame(frame)});
    }
}

// A question may be what the broker could not take (an exchange of a type that it does not know):
// then the answer comes first, lest it is asked again.
void Session::take_close(const amqp_connection_close_t& close) {
    if (std::optional<Answer> answer = channels_.take_close(close)) {
        pending_.emplace_back(*std::move(answer));
    }
    pending_.emplace_back(Closed{failure_of(close)});
    broker_said_why_ = true;
}

// A broker that has blocked us stops reading, perhaps for hours, but it lives and sends
// heartbeats. So meanwhile a full window is no reason for the kernel to end the connection.
void Session::note(const Incoming& incoming) {
    if (std::holds_alternative<Blocked>(incoming)) {
        set_user_timeout(fd(), Duration{0});
    } else if (std::holds_alternative<Unblocked>(incoming)) {
        set_user_timeout(fd(), user_timeout_);
    }
}

// After a send has failed. The broker may have said why before it hung up, and what it said until
// then still counts: confirms with the returns before them, or an ack would be taken for more than
// it is. All of that comes into pending_.
Failure Session::last_words() {
    Failure reason = link_.stream().failure();
    std::deque<Incoming> kept;
    bool ended = false;
    do {
        for (Incoming& incoming : pending_) {
            if (const auto* closed = std::get_if<Closed>(&incoming)) {
                ended = true;
                // Otherwise it is only the end of the stream, which explains nothing.
                reason = broker_said_why_ ? closed->failure : reason;
            } else if (counts_after_the_end(incoming)) {
                kept.push_back(std::move(incoming));
            }
        }
        pending_.clear();
    } while (!ended && kept.size() < most_last_words && read_next());
    pending_ = std::move(kept);
    return reason;
}

std::optional<std::uint64_t> Session::publish(Channel channel, const Message& message,
                                              bool mandatory) {
    if (!is_open(channel)) {
        failure_ = {FailureClass::infrastructure, "published on a channel that is not open"};
        return std::nullopt;
    }
    amqp_basic_publish_t method{};
    method.exchange = to_bytes(message.exchange);
    method.routing_key = to_bytes(message.routing_key);
    method.mandatory = mandatory ? 1 : 0;
    const amqp_channel_t number = number_of(channel);
    if (!link_.send_message(number, method, encoder_.encode(message), message.body)) {
        failure_ = {FailureClass::infrastructure,
                    "published a message whose names or properties do not fit into a frame"};
        return std::nullopt;
    }
    if (!link_.stream().flush_burst()) {
        (void)fail(last_words());
        return std::nullopt;
    }
    return channels_.next_tag(channel);
}

bool Session::ask(const Question& question) {
    if (!is_ready()) {
        return false;
    }
    switch (channels_.ask(link_, question)) {
        case Channels::Asked::busy:
            return false;
        case Channels::Asked::too_long: {
            Answer answer;
            answer.text = "a name or the arguments are too long";
            pending_.emplace_back(std::move(answer));
            return true;
        }
        case Channels::Asked::sent:
            break;
    }
    return true;
}

bool Session::flush() {
    if (!is_alive()) {
        return false;
    }
    if (!link_.stream().flush()) {
        (void)fail(last_words());
        return false;
    }
    return true;
}

void Session::start_close() {
    if (is_ready()) {
        channels_.stop_answering();
        say_goodbye(link_);
        (void)link_.stream().flush();
        phase_ = Phase::closing;
    }
}

void Session::close() {
    start_close();
    if (is_alive()) {
        link_.stream().shut_down();
    }
    drop();
    pending_.clear();
}

}  // namespace outbox::amqp
