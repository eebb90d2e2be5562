#include "amqp/handshake.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "amqp/replies.hpp"

namespace outbox::amqp {

namespace {

amqp_table_entry_t text_entry(std::string_view key, std::string_view text) {
    amqp_table_entry_t entry{};
    entry.key = to_bytes(key);
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes = to_bytes(text);
    return entry;
}

amqp_table_entry_t true_entry(std::string_view key) {
    amqp_table_entry_t entry{};
    entry.key = to_bytes(key);
    entry.value.kind = AMQP_FIELD_KIND_BOOLEAN;
    entry.value.value.boolean = 1;
    return entry;
}

amqp_table_entry_t table_entry(std::string_view key, amqp_table_t table) {
    amqp_table_entry_t entry{};
    entry.key = to_bytes(key);
    entry.value.kind = AMQP_FIELD_KIND_TABLE;
    entry.value.value.table = table;
    return entry;
}

std::string_view find_text(const amqp_table_t& table, std::string_view key) {
    for (int i = 0; i < table.num_entries; ++i) {
        const amqp_table_entry_t& entry = table.entries[i];
        const bool is_text =
            entry.value.kind == AMQP_FIELD_KIND_UTF8 || entry.value.kind == AMQP_FIELD_KIND_BYTES;
        if (is_text && to_view(entry.key) == key) {
            return to_view(entry.value.value.bytes);
        }
    }
    return {};
}

// `list` is separated by blanks (specification of connection.start).
bool list_contains(std::string_view list, std::string_view wanted) {
    while (!list.empty()) {
        const std::size_t end = std::min(list.find(' '), list.size());
        if (list.substr(0, end) == wanted) {
            return true;
        }
        list.remove_prefix(std::min(end + 1, list.size()));
    }
    return false;
}

// Zero means "no limit" or "none" to either peer.
template <typename T>
T smaller_limit(T ours, T theirs) {
    if (ours == 0 || theirs == 0) {
        return std::max(ours, theirs);
    }
    return std::min(ours, theirs);
}

std::uint16_t whole_seconds(Duration duration) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(duration).count();
    return static_cast<std::uint16_t>(
        std::clamp<std::int64_t>(seconds, 0, std::numeric_limits<std::uint16_t>::max()));
}

const char* mechanism_name(AuthMechanism mechanism) {
    return mechanism == AuthMechanism::external ? "EXTERNAL" : "PLAIN";
}

// What the mechanism wants to be told. EXTERNAL: who to be, if not whom the certificate says.
std::string sasl_response(const BrokerUri& uri) {
    if (uri.auth == AuthMechanism::external) {
        return uri.has_user ? uri.user : std::string();
    }
    // RFC 4616: no authorization identity, NUL, user, NUL, password. In one piece from the start,
    // so that it grows out of no memory which keeps a copy.
    std::string response;
    response.reserve(uri.user.size() + uri.password.size() + 2);
    response += '\0';
    response += uri.user;
    response += '\0';
    response += uri.password;
    return response;
}

std::string too_few_channels(const std::string& who, std::uint16_t channels) {
    return who + " allows " + std::to_string(channels) +
           (channels == 1 ? " channel" : " channels") + " per connection (channel_max), " +
           std::to_string(channel_count) + " are needed";
}

}  // namespace

Duration Handshake::wanted_heartbeat(const BrokerUri& uri, const Options& options) {
    return uri.heartbeat.value_or(options.heartbeat);
}

void Handshake::start(Link& link, const BrokerUri& uri, const Options& options) {
    uri_.set(uri);
    options_ = options;
    link.set_secret(true);
    link.send_protocol_header();
}

std::string Handshake::stage() const {
    switch (step_) {
        case Step::start:
            return "waiting for the broker's greeting";
        case Step::tune:
            return "logging in";
        case Step::open_ok:
            return "opening virtual host \"" + uri_.get().vhost + "\"";
        case Step::channels:
        case Step::done:
            break;
    }
    return "opening channels";
}

Handshake::Progress Handshake::advance(Link& link, Channels& channels) {
    int reads = Link::reads_at_once;
    while (step_ != Step::done) {
        amqp_frame_t frame;
        switch (link.read(frame, reads)) {
            case Link::Read::nothing:
                return Progress::in_progress;
            case Link::Read::failed:
                return fail_read(link);
            case Link::Read::frame:
                break;
        }
        const Progress progress = take(link, channels, frame);
        link.recycle(frame.channel);
        if (progress == Progress::failed) {
            return progress;
        }
    }
    uri_.forget();
    link.set_secret(false);
    return Progress::done;
}

Handshake::Progress Handshake::take(Link& link, Channels& channels, const amqp_frame_t& frame) {
    if (const amqp_connection_close_t* close = take_connection_close(link, frame)) {
        failure_ = failure_of(*close);
        return Progress::failed;
    }
    if (frame.channel != 0 && step_ == Step::channels) {
        return take_channel_frame(link, channels, frame);
    }
    if (frame.channel == 0 && frame.frame_type == AMQP_FRAME_METHOD) {
        if (const std::optional<Progress> progress =
                take_connection_method(link, channels, frame.payload.method)) {
            return *progress;
        }
    }
    return fail_unexpected(frame);
}

std::optional<Handshake::Progress> Handshake::take_connection_method(Link& link, Channels& channels,
                                                                     const amqp_method_t& method) {
    if (method.id == AMQP_CONNECTION_START_METHOD && step_ == Step::start) {
        return take_start(link, *static_cast<const amqp_connection_start_t*>(method.decoded));
    }
    if (method.id == AMQP_CONNECTION_TUNE_METHOD && step_ == Step::tune) {
        return take_tune(link, *static_cast<const amqp_connection_tune_t*>(method.decoded));
    }
    if (method.id == AMQP_CONNECTION_OPEN_OK_METHOD && step_ == Step::open_ok) {
        channels.open(link);
        step_ = Step::channels;
        return Progress::in_progress;
    }
    if (method.id == AMQP_CONNECTION_BLOCKED_METHOD && step_ == Step::channels) {
        const auto& blocked = *static_cast<const amqp_connection_blocked_t*>(method.decoded);
        blocked_ = printable(to_view(blocked.reason));
        return Progress::in_progress;
    }
    if (method.id == AMQP_CONNECTION_UNBLOCKED_METHOD && step_ == Step::channels) {
        blocked_.reset();
        return Progress::in_progress;
    }
    return std::nullopt;
}

Handshake::Progress Handshake::take_channel_frame(Link& link, Channels& channels,
                                                  const amqp_frame_t& frame) {
    const std::optional<Incoming> incoming = channels.take(link, frame);
    if (channels.all_open()) {
        step_ = Step::done;
        return Progress::done;
    }
    if (!incoming || std::holds_alternative<ChannelOpened>(*incoming)) {
        return Progress::in_progress;
    }
    if (const auto* closed = std::get_if<Closed>(&*incoming)) {
        return fail(closed->failure.failure_class, closed->failure.text);
    }
    return fail_unexpected(frame);
}

Handshake::Progress Handshake::take_start(Link& link, const amqp_connection_start_t& start) {
    if (start.version_major != AMQP_PROTOCOL_VERSION_MAJOR ||
        start.version_minor != AMQP_PROTOCOL_VERSION_MINOR) {
        return fail(FailureClass::infrastructure,
                    "the broker speaks AMQP " + std::to_string(start.version_major) + "-" +
                        std::to_string(start.version_minor) + ", not 0-9-1");
    }
    broker_version_ = printable(find_text(start.server_properties, "product"));
    const std::string version = printable(find_text(start.server_properties, "version"));
    if (!broker_version_.empty() && !version.empty()) {
        broker_version_ += ' ';
    }
    broker_version_ += version;
    const char* mechanism = mechanism_name(uri_.get().auth);
    if (!list_contains(to_view(start.mechanisms), mechanism)) {
        return fail(FailureClass::configuration,
                    std::string("the broker does not offer authentication mechanism ") + mechanism +
                        ", only \"" + printable(to_view(start.mechanisms)) + "\"");
    }
    return send_start_ok(link);
}

Handshake::Progress Handshake::send_start_ok(Link& link) {
    // connection.blocked and authentication_failure_close change what the broker sends; it may
    // refuse confirms to a client that does not know basic.nack.
    std::array capabilities{true_entry("publisher_confirms"), true_entry("basic.nack"),
                            true_entry("connection.blocked"),
                            true_entry("authentication_failure_close")};
    const amqp_table_t capability_table{static_cast<int>(capabilities.size()), capabilities.data()};
    const std::string platform = "C++20, rabbitmq-c " + client_version();
    std::array properties{text_entry("product", options_.product),
                          text_entry("version", options_.version),
                          text_entry("platform", platform),
                          text_entry("information", "Transactional outbox for PostgreSQL"),
                          text_entry("connection_name", options_.connection_name),
                          table_entry("capabilities", capability_table)};
    std::string response = sasl_response(uri_.get());
    amqp_connection_start_ok_t start_ok{};
    start_ok.client_properties = {static_cast<int>(properties.size()), properties.data()};
    start_ok.mechanism = to_bytes(mechanism_name(uri_.get().auth));
    start_ok.response = to_bytes(response);
    start_ok.locale = to_bytes("en_US");
    const Progress sent = send(link, AMQP_CONNECTION_START_OK_METHOD, &start_ok, Step::tune);
    wipe(response);
    return sent;
}

Handshake::Progress Handshake::take_tune(Link& link, const amqp_connection_tune_t& tune) {
    const std::uint16_t wish = uri_.get().channel_max;
    if (wish != 0 && wish < channel_count) {
        return fail(FailureClass::configuration, too_few_channels("the broker URI", wish));
    }
    if (tune.channel_max != 0 && tune.channel_max < channel_count) {
        return fail(FailureClass::configuration, too_few_channels("the broker", tune.channel_max));
    }
    amqp_connection_tune_ok_t tune_ok{};
    tune_ok.channel_max =
        smaller_limit<std::uint16_t>(wish != 0 ? wish : channel_count, tune.channel_max);
    tune_ok.frame_max = smaller_limit<std::uint32_t>(wanted_frame_max, tune.frame_max);
    tune_ok.heartbeat = smaller_limit<std::uint16_t>(
        whole_seconds(wanted_heartbeat(uri_.get(), options_)), tune.heartbeat);
    if (tune_ok.frame_max < AMQP_FRAME_MIN_SIZE) {
        return fail(FailureClass::configuration, "the broker allows frames of " +
                                                     std::to_string(tune_ok.frame_max) +
                                                     " bytes, the protocol needs at least " +
                                                     std::to_string(AMQP_FRAME_MIN_SIZE));
    }
    frame_max_ = tune_ok.frame_max;
    if (!link.tune(frame_max_, std::chrono::seconds(tune_ok.heartbeat))) {
        return fail(link.failure().failure_class, link.failure().text);
    }
    amqp_connection_open_t open{};
    open.virtual_host = to_bytes(uri_.get().vhost);
    const Progress tuned = send(link, AMQP_CONNECTION_TUNE_OK_METHOD, &tune_ok, Step::open_ok);
    return tuned == Progress::failed
               ? tuned
               : send(link, AMQP_CONNECTION_OPEN_METHOD, &open, Step::open_ok);
}

Handshake::Progress Handshake::send(Link& link, amqp_method_number_t id, void* method, Step next) {
    if (!link.send_method(0, id, method)) {
        return fail(FailureClass::configuration,
                    describe_method(id) +
                        " does not fit into a frame: user, password or virtual "
                        "host are too long");
    }
    step_ = next;
    return Progress::in_progress;
}

Handshake::Progress Handshake::fail(FailureClass failure_class, std::string text) {
    failure_ = {failure_class, std::move(text)};
    return Progress::failed;
}

Handshake::Progress Handshake::fail_read(const Link& link) {
    // What TLS says of certificates is clear by itself.
    const bool is_clear =
        link.is_foreign() || link.failure().failure_class == FailureClass::configuration;
    return fail(link.failure().failure_class,
                link.failure().text + (is_clear ? "" : " during the handshake"));
}

Handshake::Progress Handshake::fail_unexpected(const amqp_frame_t& frame) {
    Failure failure = unexpected_frame(frame);
    return fail(failure.failure_class, failure.text + " during the handshake");
}

}  // namespace outbox::amqp
