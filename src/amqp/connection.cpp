#include "amqp/connection.hpp"

#include <utility>

#include "amqp/rabbitmq.hpp"
#include "amqp/resolver.hpp"
#include "amqp/session.hpp"
#include "amqp/socket.hpp"
#include "amqp/wipe.hpp"

namespace outbox::amqp {

namespace {

// Enough to keep a fast broker on a long line busy, with large messages too (bench/README.md).
constexpr std::size_t wanted_in_flight = std::size_t{32} * 1024 * 1024;

constexpr Duration no_deadline{3'600'000};

}  // namespace

std::string client_version() {
    return amqp_version();
}

/// The way to a connected socket. All that comes after is the session's.
struct Connection::Impl {
    enum class Phase : std::uint8_t { closed, resolving, connecting, session };

    Phase phase = Phase::closed;
    SecretUri uri;
    Options options;
    Resolver resolver;
    TcpConnect tcp;
    Session session;
    Failure failure;

    Progress resolve(Resolver::Progress progress);
    Progress connect(TcpConnect::Progress progress);
    Progress begin_session();
    Progress fail(Failure reason);
    void drop();
};

Connection::Progress Connection::Impl::resolve(Resolver::Progress progress) {
    switch (progress) {
        case Resolver::Progress::in_progress:
            phase = Phase::resolving;
            return Progress::in_progress;
        case Resolver::Progress::failed:
            return fail({FailureClass::infrastructure, resolver.error()});
        case Resolver::Progress::done:
            break;
    }
    std::vector<Address> addresses = resolver.addresses();
    resolver.drop();
    phase = Phase::connecting;
    const BrokerUri& to = uri.get();
    return connect(
        tcp.start(to.host, to.port, std::move(addresses), Session::user_timeout(to, options)));
}

Connection::Progress Connection::Impl::connect(TcpConnect::Progress progress) {
    switch (progress) {
        case TcpConnect::Progress::in_progress:
            return Progress::in_progress;
        case TcpConnect::Progress::failed:
            return fail({FailureClass::infrastructure, tcp.error()});
        case TcpConnect::Progress::connected:
            break;
    }
    return begin_session();
}

Connection::Progress Connection::Impl::begin_session() {
    phase = Phase::session;
    const int socket = tcp.release();
    tcp.drop();
    const Progress progress = session.start(socket, uri.get(), options);
    uri.forget();
    return progress;
}

Connection::Progress Connection::Impl::fail(Failure reason) {
    failure = std::move(reason);
    drop();
    return Progress::failed;
}

void Connection::Impl::drop() {
    resolver.drop();
    tcp.drop();
    uri.forget();
    phase = Phase::closed;
}

Connection::Connection() : impl_(std::make_unique<Impl>()) {}

Connection::~Connection() {
    close();
}

Connection::Progress Connection::open(const BrokerUri& uri, const Options& options) {
    close();
    impl_ = std::make_unique<Impl>();
    impl_->uri.set(uri);
    impl_->options = options;
    return impl_->resolve(impl_->resolver.start(uri.host, uri.port, options.name_servers));
}

Connection::Progress Connection::advance() {
    switch (impl_->phase) {
        case Impl::Phase::resolving:
            return impl_->resolve(impl_->resolver.advance());
        case Impl::Phase::connecting:
            return impl_->connect(impl_->tcp.advance());
        case Impl::Phase::session:
            return impl_->session.advance();
        case Impl::Phase::closed:
            break;
    }
    return Progress::failed;
}

std::string Connection::stage() const {
    switch (impl_->phase) {
        case Impl::Phase::resolving:
            return "resolving host \"" + impl_->uri.get().host + "\"";
        case Impl::Phase::connecting:
            return "connecting to " + impl_->tcp.target();
        case Impl::Phase::session:
            return impl_->session.stage();
        case Impl::Phase::closed:
            break;
    }
    return {};
}

const Failure& Connection::failure() const {
    return impl_->phase == Impl::Phase::session ? impl_->session.failure() : impl_->failure;
}

std::optional<Incoming> Connection::poll() {
    return impl_->session.poll();
}

bool Connection::is_open(Channel channel) const {
    return impl_->session.is_open(channel);
}

std::optional<std::uint64_t> Connection::publish(Channel channel, const Message& message,
                                                 bool mandatory) {
    return impl_->session.publish(channel, message, mandatory);
}

bool Connection::ask(const Question& question) {
    return impl_->session.ask(question);
}

bool Connection::flush() {
    return impl_->session.flush();
}

std::size_t Connection::unsent_bytes() const {
    return impl_->session.unsent_bytes();
}

void Connection::start_close() {
    impl_->session.start_close();
}

void Connection::close() {
    Failure last = failure();
    impl_->session.close();
    impl_->failure = std::move(last);
    impl_->drop();
}

bool Connection::is_open() const {
    return impl_->session.is_ready();
}

int Connection::fd() const {
    switch (impl_->phase) {
        case Impl::Phase::resolving:
            return impl_->resolver.fd();
        case Impl::Phase::connecting:
            return impl_->tcp.fd();
        case Impl::Phase::session:
        case Impl::Phase::closed:
            break;
    }
    return impl_->session.fd();
}

Connection::Wanted Connection::wanted() const {
    Wanted wanted;
    if (fd() >= 0) {
        wanted.write = impl_->phase == Impl::Phase::connecting || unsent_bytes() > 0;
        wanted.read = impl_->phase != Impl::Phase::connecting;
    }
    return wanted;
}

Duration Connection::max_wait() const {
    switch (impl_->phase) {
        case Impl::Phase::resolving:
            return impl_->resolver.max_wait();
        case Impl::Phase::connecting:
            return impl_->tcp.max_wait();
        case Impl::Phase::session:
            return impl_->session.max_wait();
        case Impl::Phase::closed:
            break;
    }
    return no_deadline;
}

std::size_t Connection::max_properties_bytes() const {
    return impl_->session.max_properties_bytes();
}

std::size_t Connection::send_buffer_bytes() const {
    return wanted_in_flight;
}

const std::string& Connection::broker_version() const {
    return impl_->session.broker_version();
}

}  // namespace outbox::amqp
