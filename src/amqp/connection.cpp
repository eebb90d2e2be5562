#include "amqp/connection.hpp"

#include <deque>
#include <utility>

#include "amqp/encode.hpp"
#include "amqp/handshake.hpp"
#include "amqp/incoming.hpp"
#include "amqp/link.hpp"
#include "amqp/rabbitmq.hpp"
#include "amqp/replies.hpp"
#include "amqp/socket.hpp"

namespace outbox::amqp {

namespace {

constexpr Duration user_timeout_without_heartbeat{20000};

Duration user_timeout(const Options& options) {
    return options.heartbeat.count() > 0 ? 2 * options.heartbeat : user_timeout_without_heartbeat;
}

}  // namespace

struct Connection::Impl {
    enum class Phase : std::uint8_t { closed, connecting, handshaking, ready, closing };

    Phase phase = Phase::closed;
    BrokerUri uri;
    Options options;
    TcpConnect tcp;
    Link link;
    Handshake handshake;
    IncomingDecoder decoder;
    PropertiesEncoder encoder;
    Failure failure;
    std::string broker_version;
    /// What came before the caller asked for it: early news of the handshake, returns and confirms
    /// saved from a connection that then failed.
    std::deque<Incoming> pending;
    std::uint64_t last_tag = 0;
    std::size_t frame_payload = wanted_frame_max - frame_overhead;
    std::size_t send_buffer = 0;
    /// The kernel holds back the end of the last message (see Connection::flush).
    bool corked = false;

    Progress start_connecting();
    Progress advance_connect();
    Progress advance_handshake();
    Progress become_ready();
    Progress fail(Failure reason);
    std::optional<Incoming> read_next();
    void note(const Incoming& incoming);
    void fail_publish();
    void drop();
};

Connection::Progress Connection::Impl::start_connecting() {
    phase = Phase::connecting;
    switch (tcp.start(uri.host, uri.port, user_timeout(options))) {
        case TcpConnect::Progress::failed:
            return fail({FailureClass::infrastructure, tcp.error()});
        case TcpConnect::Progress::in_progress:
        case TcpConnect::Progress::connected:
            break;
    }
    return Progress::in_progress;
}

Connection::Progress Connection::Impl::advance_connect() {
    switch (tcp.advance()) {
        case TcpConnect::Progress::in_progress:
            return Progress::in_progress;
        case TcpConnect::Progress::failed:
            return fail({FailureClass::infrastructure, tcp.error()});
        case TcpConnect::Progress::connected:
            break;
    }
    if (!link.attach(tcp.release())) {
        return fail({FailureClass::infrastructure, link.error()});
    }
    tcp.drop();
    send_buffer = send_buffer_capacity(link.fd());
    phase = Phase::handshaking;
    if (handshake.start(link, uri, options) == Handshake::Progress::failed) {
        return fail(handshake.failure());
    }
    return advance_handshake();
}

Connection::Progress Connection::Impl::advance_handshake() {
    const Handshake::Progress progress = handshake.advance(link);
    broker_version = handshake.broker_version();
    switch (progress) {
        case Handshake::Progress::in_progress:
            return Progress::in_progress;
        case Handshake::Progress::failed:
            return fail(handshake.failure());
        case Handshake::Progress::done:
            break;
    }
    return become_ready();
}

Connection::Progress Connection::Impl::become_ready() {
    phase = Phase::ready;
    uri = BrokerUri{};  // the password is not needed any more
    frame_payload = handshake.frame_max() - frame_overhead;
    if (handshake.blocked()) {
        pending.emplace_back(Blocked{*handshake.blocked()});
        note(pending.back());
    }
    return Progress::ready;
}

Connection::Progress Connection::Impl::fail(Failure reason) {
    failure = std::move(reason);
    drop();
    return Progress::failed;
}

/// The next thing to tell among the frames that have arrived. Ends the connection when that is
/// Closed.
std::optional<Incoming> Connection::Impl::read_next() {
    for (;;) {
        amqp_frame_t frame;
        switch (link.read(frame)) {
            case Link::Read::nothing:
                return std::nullopt;
            case Link::Read::failed:
                return Closed{{FailureClass::infrastructure, link.error()}};
            case Link::Read::frame:
                break;
        }
        std::optional<Incoming> incoming = decoder.decode(link, frame);
        link.recycle(frame.channel);
        if (incoming) {
            note(*incoming);
            return incoming;
        }
    }
}

/// A broker that has blocked us stops reading, perhaps for hours, but it lives and sends
/// heartbeats. So meanwhile a full window is no reason for the kernel to end the connection.
void Connection::Impl::note(const Incoming& incoming) {
    if (std::holds_alternative<Blocked>(incoming)) {
        set_user_timeout(link.fd(), Duration{0});
    } else if (std::holds_alternative<Unblocked>(incoming)) {
        set_user_timeout(link.fd(), user_timeout(options));
    }
}

/// The broker may have said why before it hung up, and confirms that came until then still count:
/// with the returns before them, or an ack would be taken for more than it is.
void Connection::Impl::fail_publish() {
    Failure reason{FailureClass::infrastructure, link.error()};
    while (std::optional<Incoming> incoming = read_next()) {
        if (auto* closed = std::get_if<Closed>(&*incoming)) {
            // After a failed read it is only the end of the stream, which explains nothing.
            const bool read_failed = link.error_status() < 0;
            if (!read_failed) {
                reason = std::move(closed->failure);
            }
            break;
        }
        if (std::holds_alternative<Confirm>(*incoming) ||
            std::holds_alternative<Returned>(*incoming)) {
            pending.push_back(std::move(*incoming));
        }
    }
    (void)fail(std::move(reason));
}

void Connection::Impl::drop() {
    tcp.drop();
    link.drop();
    phase = Phase::closed;
    uri = BrokerUri{};
    corked = false;
}

Connection::Connection() : impl_(std::make_unique<Impl>()) {}

Connection::~Connection() {
    close();
}

Connection::Progress Connection::open(const BrokerUri& uri, const Options& options) {
    close();
    impl_ = std::make_unique<Impl>();
    impl_->uri = uri;
    impl_->options = options;
    return impl_->start_connecting();
}

Connection::Progress Connection::advance() {
    switch (impl_->phase) {
        case Impl::Phase::connecting:
            return impl_->advance_connect();
        case Impl::Phase::handshaking:
            return impl_->advance_handshake();
        case Impl::Phase::ready:
            return Progress::ready;
        case Impl::Phase::closing:
        case Impl::Phase::closed:
            break;
    }
    return Progress::failed;
}

const Failure& Connection::failure() const {
    return impl_->failure;
}

std::optional<Incoming> Connection::poll() {
    if (!impl_->pending.empty()) {
        Incoming first = std::move(impl_->pending.front());
        impl_->pending.pop_front();
        return first;
    }
    if (!is_open() && impl_->phase != Impl::Phase::closing) {
        return std::nullopt;
    }
    std::optional<Incoming> incoming = impl_->read_next();
    if (!incoming && !impl_->link.beat()) {
        incoming = Closed{{FailureClass::infrastructure, impl_->link.error()}};
    }
    if (incoming) {
        if (const auto* closed = std::get_if<Closed>(&*incoming)) {
            (void)impl_->fail(closed->failure);
        }
    }
    return incoming;
}

std::optional<std::uint64_t> Connection::publish(const Message& message, bool mandatory) {
    if (!is_open()) {
        return std::nullopt;
    }
    const amqp_basic_properties_t& properties = impl_->encoder.encode(message);
    if (!impl_->link.publish(publish_channel, to_bytes(message.exchange),
                             to_bytes(message.routing_key), mandatory, properties,
                             to_bytes(message.body))) {
        // Whatever part of the message is out, the rest can never follow.
        impl_->fail_publish();
        return std::nullopt;
    }
    // rabbitmq-c sends a full body frame as if another one followed it, also the last one.
    impl_->corked = !message.body.empty() && message.body.size() % impl_->frame_payload == 0;
    return ++impl_->last_tag;
}

void Connection::flush() {
    if (impl_->corked) {
        push_corked(impl_->link.fd());
        impl_->corked = false;
    }
}

void Connection::start_close() {
    if (is_open()) {
        say_goodbye(impl_->link);
        impl_->phase = Impl::Phase::closing;
    }
}

void Connection::close() {
    start_close();
    impl_->drop();
    impl_->pending.clear();
}

bool Connection::is_open() const {
    return impl_->phase == Impl::Phase::ready;
}

int Connection::fd() const {
    return impl_->phase == Impl::Phase::connecting ? impl_->tcp.fd() : impl_->link.fd();
}

Connection::Wanted Connection::wanted() const {
    Wanted wanted;
    wanted.write = impl_->phase == Impl::Phase::connecting;
    wanted.read = impl_->phase == Impl::Phase::handshaking || impl_->phase == Impl::Phase::ready ||
                  impl_->phase == Impl::Phase::closing;
    return wanted;
}

Duration Connection::max_wait() const {
    return impl_->phase == Impl::Phase::connecting ? impl_->tcp.max_wait() : impl_->link.max_wait();
}

std::size_t Connection::max_properties_bytes() const {
    return impl_->frame_payload;
}

std::size_t Connection::send_buffer_bytes() const {
    return impl_->send_buffer;
}

const std::string& Connection::broker_version() const {
    return impl_->broker_version;
}

}  // namespace outbox::amqp
