#include "amqp/handshake.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "amqp/replies.hpp"

namespace outbox::amqp {

namespace {

// The frame type that rabbitmq-c gives a protocol header sent by the peer, which is how a server
// says that it wants another version. It has no public name.
constexpr std::uint8_t protocol_header_frame = 'A';

// First byte of a TLS alert record, which a TLS server answers to a plain protocol header.
constexpr char tls_alert = 0x15;

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

std::string not_amqp(std::string_view first_bytes) {
    if (first_bytes.starts_with(tls_alert)) {
        return "the server expects TLS on this port";
    }
    std::string text = "the server does not speak AMQP 0-9-1";
    if (!first_bytes.empty()) {
        const std::string_view first_line =
            first_bytes.substr(0, first_bytes.find_first_of("\r\n"));
        text += ": it answered \"" + printable(first_line) + "\"";
    }
    return text;
}

}  // namespace

Handshake::Progress Handshake::start(Link& link, const BrokerUri& uri, const Options& options) {
    *this = Handshake{};
    uri_ = uri;
    options_ = options;
    return link.send_protocol_header() ? Progress::in_progress : fail_read(link);
}

Handshake::Progress Handshake::advance(Link& link) {
    while (step_ != Step::done) {
        if (!looks_like_amqp(link)) {
            return Progress::failed;
        }
        amqp_frame_t frame;
        switch (link.read(frame)) {
            case Link::Read::nothing:
                return Progress::in_progress;
            case Link::Read::failed:
                return fail_read(link);
            case Link::Read::frame:
                break;
        }
        const Progress progress = take(link, frame);
        if (progress == Progress::failed) {
            return progress;
        }
        link.recycle(frame.channel);
    }
    return Progress::done;
}

// rabbitmq-c takes whatever comes for the head of a frame and may wait for the rest of it until the
// caller's deadline, so the first byte is looked at here: a method frame or a protocol header.
bool Handshake::looks_like_amqp(const Link& link) {
    if (greeted_) {
        return true;
    }
    const std::string first_bytes = peek(link.fd(), 40);
    if (first_bytes.empty()) {
        return true;
    }
    greeted_ = true;
    if (first_bytes[0] == static_cast<char>(AMQP_FRAME_METHOD) || first_bytes[0] == 'A') {
        return true;
    }
    (void)fail(FailureClass::infrastructure, not_amqp(first_bytes));
    return false;
}

Handshake::Progress Handshake::take(Link& link, const amqp_frame_t& frame) {
    if (frame.frame_type == protocol_header_frame) {
        const auto& header = frame.payload.protocol_header;
        return fail(FailureClass::infrastructure,
                    "the server does not speak AMQP 0-9-1: it asks for protocol version " +
                        std::to_string(header.transport_high) + "-" +
                        std::to_string(header.transport_low) + "-" +
                        std::to_string(header.protocol_version_major) + "-" +
                        std::to_string(header.protocol_version_minor));
    }
    if (std::optional<Failure> closed = take_close(link, frame)) {
        return fail(closed->failure_class, std::move(closed->text));
    }
    if (frame.frame_type == AMQP_FRAME_METHOD) {
        const amqp_method_t& method = frame.payload.method;
        std::optional<Progress> progress;
        if (frame.channel == 0) {
            progress = take_connection_method(link, method);
        } else if (frame.channel == publish_channel) {
            progress = take_channel_method(link, method);
        }
        if (progress) {
            return *progress;
        }
    }
    Failure failure = unexpected_frame(frame);
    return fail(failure.failure_class, failure.text + " during the handshake");
}

std::optional<Handshake::Progress> Handshake::take_connection_method(Link& link,
                                                                     const amqp_method_t& method) {
    if (method.id == AMQP_CONNECTION_START_METHOD && step_ == Step::start) {
        return take_start(link, *static_cast<const amqp_connection_start_t*>(method.decoded));
    }
    if (method.id == AMQP_CONNECTION_TUNE_METHOD && step_ == Step::tune) {
        return take_tune(link, *static_cast<const amqp_connection_tune_t*>(method.decoded));
    }
    if (method.id == AMQP_CONNECTION_OPEN_OK_METHOD && step_ == Step::open_ok) {
        amqp_channel_open_t open{};
        return send(link, publish_channel, AMQP_CHANNEL_OPEN_METHOD, &open, Step::channel_open_ok);
    }
    if (method.id == AMQP_CONNECTION_BLOCKED_METHOD && step_ > Step::open_ok) {
        const auto& blocked = *static_cast<const amqp_connection_blocked_t*>(method.decoded);
        blocked_ = printable(to_view(blocked.reason));
        return Progress::in_progress;
    }
    if (method.id == AMQP_CONNECTION_UNBLOCKED_METHOD && step_ > Step::open_ok) {
        blocked_.reset();
        return Progress::in_progress;
    }
    return std::nullopt;
}

std::optional<Handshake::Progress> Handshake::take_channel_method(Link& link,
                                                                  const amqp_method_t& method) {
    if (method.id == AMQP_CHANNEL_OPEN_OK_METHOD && step_ == Step::channel_open_ok) {
        amqp_confirm_select_t select{};
        return send(link, publish_channel, AMQP_CONFIRM_SELECT_METHOD, &select, Step::select_ok);
    }
    if (method.id == AMQP_CONFIRM_SELECT_OK_METHOD && step_ == Step::select_ok) {
        step_ = Step::done;
        uri_ = BrokerUri{};  // the password is not needed any more
        return Progress::done;
    }
    return std::nullopt;
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
    if (!list_contains(to_view(start.mechanisms), "PLAIN")) {
        return fail(FailureClass::configuration,
                    "the broker does not offer authentication mechanism PLAIN, only \"" +
                        printable(to_view(start.mechanisms)) + "\"");
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
    const std::string platform = std::string("C++20, rabbitmq-c ") + amqp_version();
    std::array properties{text_entry("product", options_.product),
                          text_entry("version", options_.version),
                          text_entry("platform", platform),
                          text_entry("information", "Transactional outbox for PostgreSQL"),
                          text_entry("connection_name", options_.connection_name),
                          table_entry("capabilities", capability_table)};
    std::string response;  // RFC 4616: no authorization identity, NUL, user, NUL, password
    response += '\0';
    response += uri_.user;
    response += '\0';
    response += uri_.password;
    amqp_connection_start_ok_t start_ok{};
    start_ok.client_properties = {static_cast<int>(properties.size()), properties.data()};
    start_ok.mechanism = to_bytes("PLAIN");
    start_ok.response = to_bytes(response);
    start_ok.locale = to_bytes("en_US");
    return send(link, 0, AMQP_CONNECTION_START_OK_METHOD, &start_ok, Step::tune);
}

Handshake::Progress Handshake::take_tune(Link& link, const amqp_connection_tune_t& tune) {
    amqp_connection_tune_ok_t tune_ok{};
    tune_ok.channel_max = smaller_limit<std::uint16_t>(publish_channel, tune.channel_max);
    tune_ok.frame_max = smaller_limit<std::uint32_t>(wanted_frame_max, tune.frame_max);
    tune_ok.heartbeat =
        smaller_limit<std::uint16_t>(whole_seconds(options_.heartbeat), tune.heartbeat);
    if (tune_ok.frame_max < AMQP_FRAME_MIN_SIZE) {
        return fail(FailureClass::configuration, "the broker allows frames of " +
                                                     std::to_string(tune_ok.frame_max) +
                                                     " bytes, the protocol needs at least " +
                                                     std::to_string(AMQP_FRAME_MIN_SIZE));
    }
    frame_max_ = tune_ok.frame_max;
    if (!link.tune(tune_ok.channel_max, static_cast<int>(tune_ok.frame_max),
                   std::chrono::seconds(tune_ok.heartbeat))) {
        return fail_read(link);
    }
    const Progress tuned = send(link, 0, AMQP_CONNECTION_TUNE_OK_METHOD, &tune_ok, Step::open_ok);
    if (tuned == Progress::failed) {
        return tuned;
    }
    amqp_connection_open_t open{};
    open.virtual_host = to_bytes(uri_.vhost);
    return send(link, 0, AMQP_CONNECTION_OPEN_METHOD, &open, Step::open_ok);
}

// These few hundred bytes go into an empty send buffer, so no send of the handshake waits.
Handshake::Progress Handshake::send(Link& link, amqp_channel_t channel, amqp_method_number_t id,
                                    void* method, Step next) {
    if (!link.send_method(channel, id, method)) {
        return fail_read(link);
    }
    step_ = next;
    return Progress::in_progress;
}

Handshake::Progress Handshake::fail(FailureClass failure_class, std::string text) {
    failure_ = {failure_class, std::move(text)};
    return Progress::failed;
}

Handshake::Progress Handshake::fail_read(const Link& link) {
    if (step_ == Step::start && link.error_status() == AMQP_STATUS_BAD_AMQP_DATA) {
        return fail(FailureClass::infrastructure, not_amqp({}));
    }
    return fail(FailureClass::infrastructure, link.error() + " during the handshake");
}

}  // namespace outbox::amqp
