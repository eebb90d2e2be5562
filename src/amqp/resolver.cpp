#include "amqp/resolver.hpp"

#include <ares.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace outbox::amqp {

namespace {

// c-ares' own values differ from version to version. Each server is asked twice; the wait doubles
// in the second round. That one is down delays the next by two seconds.
constexpr int server_patience_ms = 2000;
constexpr int rounds = 2;

// The hosts file, then the name servers: what nsswitch.conf says almost everywhere, and c-ares
// understands it in part only ("resolve" without "dns" would mean no name server at all).
constexpr char lookup_order[] = "fb";

constexpr Duration no_deadline{3'600'000};

// More sockets than that are never open at once in practice; others wait for the next call.
constexpr std::size_t events_at_once = 16;

bool initialize_library() {
    // Counted by c-ares and never undone: the library stays for as long as the process does.
    static const int status = ares_library_init(ARES_LIB_INIT_ALL);
    return status == ARES_SUCCESS;
}

std::string reason_of(int status) {
    switch (status) {
        case ARES_ENOTFOUND:
            return "domain name not found";
        case ARES_ENODATA:
            return "the name has no address";
        case ARES_ETIMEOUT:
            return "no name server answered";
        case ARES_ECONNREFUSED:  // what c-ares says when the last server failed in any way
            return "no name server could be reached, or none had an answer";
        case ARES_ESERVFAIL:
            return "the name server failed";
        case ARES_EREFUSED:
            return "the name server refused to answer";
        case ARES_EBADNAME:
            return "the name is malformed";
        case ARES_ENOMEM:
            return "out of memory";
        default: {
            std::string text = ares_strerror(status);
            if (text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' &&
                !(text[1] >= 'A' && text[1] <= 'Z')) {
                text[0] = static_cast<char>(text[0] - 'A' + 'a');
            }
            return text;
        }
    }
}

void set_port(Address& address, std::uint16_t port) {
    if (address.storage.ss_family == AF_INET) {
        reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
    } else {
        reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
    }
}

bool append(std::vector<Address>& addresses, const sockaddr* from, socklen_t length,
            std::uint16_t port) {
    if (from == nullptr || length > sizeof(sockaddr_storage) ||
        (from->sa_family != AF_INET && from->sa_family != AF_INET6)) {
        return false;
    }
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, from, length);
    address.length = length;
    set_port(address, port);
    return true;
}

// With AI_NUMERICHOST getaddrinfo asks nobody. It knows zones ("fe80::1%eth0"), which c-ares does
// not in all versions.
bool parse_numeric(const std::string& host, std::uint16_t port, std::vector<Address>& addresses) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* list = nullptr;
    if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) {
        return false;
    }
    const bool usable = append(addresses, list->ai_addr, list->ai_addrlen, port);
    ::freeaddrinfo(list);
    return usable;
}

}  // namespace

struct Resolver::Impl {
    std::string host;
    std::uint16_t port = 0;
    std::string error;
    std::vector<Address> addresses;

    ares_channel channel = nullptr;
    int epoll_fd = -1;
    bool cannot_watch = false;
    // Set by on_result.
    bool finished = false;
    int status = ARES_SUCCESS;
    ares_addrinfo* result = nullptr;

    ~Impl() { release(); }

    bool begin(const std::string& servers);
    Progress settle();
    Progress fail(const std::string& reason);
    void watch(int socket_fd, bool readable, bool writable);
    void process_events();
    void release();

    // Both are called by C: they allocate nothing, and so throw nothing.
    static void on_result(void* impl, int status, int timeouts, ares_addrinfo* result);
    static void on_socket_state(void* impl, ares_socket_t socket_fd, int readable, int writable);
};

bool Resolver::Impl::begin(const std::string& servers) {
    if (!initialize_library()) {
        fail("the resolver cannot be initialized");
        return false;
    }
    epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) {
        fail(std::strerror(errno));
        return false;
    }
    ares_options options{};
    options.timeout = server_patience_ms;
    options.tries = rounds;
    options.lookups = const_cast<char*>(lookup_order);  // copied
    options.sock_state_cb = on_socket_state;
    options.sock_state_cb_data = this;
    // A new channel each time: resolv.conf may have changed.
    int result_code = ares_init_options(
        &channel, &options,
        ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB);
    if (result_code != ARES_SUCCESS) {
        channel = nullptr;
    } else if (!servers.empty()) {
        result_code = ares_set_servers_ports_csv(channel, servers.c_str());
    }
    if (result_code != ARES_SUCCESS) {
        fail(reason_of(result_code));
        return false;
    }
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    ares_getaddrinfo(channel, host.c_str(), nullptr, &hints, on_result, this);
    return true;
}

// Takes the result, if there is one.
Resolver::Progress Resolver::Impl::settle() {
    if (!finished) {
        return cannot_watch ? fail("the sockets of the resolver cannot be watched")
                            : Progress::in_progress;
    }
    if (status == ARES_SUCCESS && result != nullptr) {
        for (const ares_addrinfo_node* node = result->nodes; node != nullptr;
             node = node->ai_next) {
            append(addresses, node->ai_addr, static_cast<socklen_t>(node->ai_addrlen), port);
        }
    }
    // RFC 6761: localhost is this machine, even where no hosts file says so.
    if (addresses.empty() && host == "localhost") {
        parse_numeric("::1", port, addresses);
        parse_numeric("127.0.0.1", port, addresses);
    }
    if (addresses.empty()) {
        return fail(reason_of(status == ARES_SUCCESS ? ARES_ENODATA : status));
    }
    release();
    return Progress::done;
}

Resolver::Progress Resolver::Impl::fail(const std::string& reason) {
    error = "could not resolve host \"" + host + "\": " + reason;
    release();
    return Progress::failed;
}

void Resolver::Impl::on_result(void* impl, int status, int /*timeouts*/, ares_addrinfo* result) {
    auto* self = static_cast<Impl*>(impl);
    self->finished = true;
    self->status = status;
    self->result = result;
}

void Resolver::Impl::on_socket_state(void* impl, ares_socket_t socket_fd, int readable,
                                     int writable) {
    static_cast<Impl*>(impl)->watch(socket_fd, readable != 0, writable != 0);
}

void Resolver::Impl::watch(int socket_fd, bool readable, bool writable) {
    if (!readable && !writable) {
        (void)::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, socket_fd, nullptr);
        return;
    }
    epoll_event event{};
    event.events = (readable ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                   (writable ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
    event.data.fd = socket_fd;
    if (::epoll_ctl(epoll_fd, EPOLL_CTL_MOD, socket_fd, &event) != 0 &&
        ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, socket_fd, &event) != 0) {
        cannot_watch = true;
    }
}

void Resolver::Impl::process_events() {
    std::array<epoll_event, events_at_once> events{};
    // It does not sleep, so no signal interrupts it. If it fails, the time-outs of c-ares go on.
    const int count = ::epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; i++) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        const bool broken = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
        const bool readable = broken || (event.events & EPOLLIN) != 0;
        const bool writable = broken || (event.events & EPOLLOUT) != 0;
        ares_process_fd(channel, readable ? event.data.fd : ARES_SOCKET_BAD,
                        writable ? event.data.fd : ARES_SOCKET_BAD);
    }
    // Time-outs.
    ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

void Resolver::Impl::release() {
    if (channel != nullptr) {
        // Calls both callbacks, so what they touch goes later.
        ares_destroy(channel);
        channel = nullptr;
    }
    if (result != nullptr) {
        ares_freeaddrinfo(result);
        result = nullptr;
    }
    if (epoll_fd >= 0) {
        ::close(epoll_fd);
        epoll_fd = -1;
    }
    finished = false;
    status = ARES_SUCCESS;
    cannot_watch = false;
}

Resolver::Resolver() : impl_(std::make_unique<Impl>()) {}
Resolver::~Resolver() = default;

Resolver::Progress Resolver::start(const std::string& host, std::uint16_t port,
                                   const std::string& servers) {
    drop();
    impl_->host = host;
    impl_->port = port;
    // A C string would end there, and name another host.
    if (host.empty() || host.find('\0') != std::string::npos) {
        return impl_->fail(reason_of(ARES_EBADNAME));
    }
    if (parse_numeric(host, port, impl_->addresses)) {
        return Progress::done;
    }
    return impl_->begin(servers) ? impl_->settle() : Progress::failed;
}

Resolver::Progress Resolver::advance() {
    if (impl_->channel == nullptr) {
        return impl_->addresses.empty() ? Progress::failed : Progress::done;
    }
    impl_->process_events();
    return impl_->settle();
}

void Resolver::drop() {
    impl_->release();
    impl_->addresses.clear();
    impl_->error.clear();
}

int Resolver::fd() const {
    return impl_->epoll_fd;
}

Duration Resolver::max_wait() const {
    timeval wait{};
    if (impl_->channel == nullptr || ares_timeout(impl_->channel, nullptr, &wait) == nullptr) {
        return no_deadline;
    }
    // c-ares rounds down: one more, so that who waits that long is never early.
    return Duration{wait.tv_sec * 1000 + wait.tv_usec / 1000 + 1};
}

const std::vector<Address>& Resolver::addresses() const {
    return impl_->addresses;
}

const std::string& Resolver::error() const {
    return impl_->error;
}

}  // namespace outbox::amqp
