#include "fake_broker.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace fake {

namespace {

constexpr int patience_ms = 20000;
constexpr std::uint8_t method_frame = 1;
constexpr std::uint8_t header_frame = 2;
constexpr std::uint8_t body_frame = 3;
constexpr std::uint8_t heartbeat_frame = 8;
constexpr std::uint16_t question_channel = 2;
constexpr char frame_end = static_cast<char>(0xCE);

std::string table(const Writer& fields) {
    return Writer()
        .u32(static_cast<std::uint32_t>(fields.bytes().size()))
        .raw(fields.bytes())
        .bytes();
}

}  // namespace

Writer& Writer::u8(std::uint8_t value) {
    bytes_ += static_cast<char>(value);
    return *this;
}

Writer& Writer::u16(std::uint16_t value) {
    return u8(static_cast<std::uint8_t>(value >> 8)).u8(static_cast<std::uint8_t>(value));
}

Writer& Writer::u32(std::uint32_t value) {
    return u16(static_cast<std::uint16_t>(value >> 16)).u16(static_cast<std::uint16_t>(value));
}

Writer& Writer::u64(std::uint64_t value) {
    return u32(static_cast<std::uint32_t>(value >> 32)).u32(static_cast<std::uint32_t>(value));
}

Writer& Writer::short_string(std::string_view text) {
    return u8(static_cast<std::uint8_t>(text.size())).raw(text);
}

Writer& Writer::long_string(std::string_view text) {
    return u32(static_cast<std::uint32_t>(text.size())).raw(text);
}

Writer& Writer::raw(std::string_view text) {
    bytes_ += text;
    return *this;
}

Writer& Writer::text_field(std::string_view key, std::string_view text) {
    return short_string(key).u8('S').long_string(text);
}

std::uint8_t Reader::u8() {
    if (bytes_.empty()) {
        return 0;
    }
    const auto value = static_cast<std::uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return value;
}

std::uint16_t Reader::u16() {
    const std::uint16_t high = u8();
    return static_cast<std::uint16_t>((high << 8) | u8());
}

std::uint32_t Reader::u32() {
    const std::uint32_t high = u16();
    return (high << 16) | u16();
}

std::uint64_t Reader::u64() {
    const std::uint64_t high = u32();
    return (high << 32) | u32();
}

std::string Reader::short_string() {
    return raw(u8());
}

std::string Reader::long_string() {
    return raw(u32());
}

std::string Reader::raw(std::size_t length) {
    const std::string_view taken = bytes_.substr(0, length);
    bytes_.remove_prefix(taken.size());
    return std::string(taken);
}

bool Frame::is_method(std::uint16_t class_id, std::uint16_t method_id) const {
    Reader reader(payload);
    return type == method_frame && reader.u16() == class_id && reader.u16() == method_id;
}

std::string_view Frame::arguments() const {
    return std::string_view(payload).substr(4);
}

bool Peer::wait_readable() {
    pollfd entry{fd_, POLLIN, 0};
    return ::poll(&entry, 1, patience_ms) > 0;
}

std::string Peer::read_bytes(std::size_t length) {
    std::string bytes(length, '\0');
    std::size_t have = 0;
    while (have < length && wait_readable()) {
        const ssize_t got = ::recv(fd_, bytes.data() + have, length - have, 0);
        if (got <= 0) {
            break;
        }
        have += static_cast<std::size_t>(got);
    }
    bytes.resize(have);
    return bytes;
}

std::optional<Frame> Peer::read_frame() {
    for (;;) {
        const std::string head = read_bytes(7);
        if (head.size() < 7) {
            return std::nullopt;
        }
        Reader reader(head);
        Frame frame;
        frame.type = reader.u8();
        frame.channel = reader.u16();
        const std::size_t size = reader.u32();
        frame.payload = read_bytes(size);
        const std::string end = read_bytes(1);
        if (frame.payload.size() < size || end.empty() || end[0] != frame_end) {
            return std::nullopt;
        }
        if (frame.type != heartbeat_frame) {
            return frame;
        }
    }
}

std::optional<Published> Peer::read_message() {
    std::optional<Frame> frame = read_frame();
    if (!frame || !frame->is_method(60, 40)) {
        return std::nullopt;
    }
    Published message;
    message.channel = frame->channel;
    Reader arguments(frame->arguments());
    arguments.u16();
    message.exchange = arguments.short_string();
    message.routing_key = arguments.short_string();
    message.mandatory = (arguments.u8() & 1U) != 0;
    frame = read_frame();
    if (!frame || frame->type != header_frame) {
        return std::nullopt;
    }
    message.header = frame->payload;
    Reader header(frame->payload);
    header.u32();
    const std::uint64_t size = header.u64();
    while (message.body.size() < size) {
        frame = read_frame();
        if (!frame || frame->type != body_frame) {
            return std::nullopt;
        }
        message.body += frame->payload;
        ++message.body_frames;
    }
    return message;
}

bool Peer::wait_for_close() {
    char buffer[65536];
    while (wait_readable()) {
        if (::recv(fd_, buffer, sizeof(buffer), 0) <= 0) {
            return true;
        }
    }
    return false;
}

void Peer::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
}

void Peer::send_frame(std::uint8_t type, std::uint16_t channel, std::string_view payload) {
    send(Writer()
             .u8(type)
             .u16(channel)
             .long_string(payload)
             .u8(static_cast<std::uint8_t>(frame_end))
             .bytes());
}

void Peer::send_method(std::uint16_t channel, std::uint16_t class_id, std::uint16_t method_id,
                       const Writer& arguments) {
    send_frame(method_frame, channel,
               Writer().u16(class_id).u16(method_id).raw(arguments.bytes()).bytes());
}

void Peer::shut_down_sending() {
    (void)::shutdown(fd_, SHUT_WR);
}

void Peer::reset() {
    const linger at_once{1, 0};
    (void)::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

bool Peer::expect_header() {
    return read_bytes(8) == std::string_view("AMQP\0\0\x09\x01", 8);
}

void Peer::send_start(std::string_view mechanisms) {
    const std::string properties =
        table(Writer().text_field("product", "FakeMQ").text_field("version", "1.2"));
    send_method(0, 10, 10,
                Writer().u8(0).u8(9).raw(properties).long_string(mechanisms).long_string("en_US"));
}

void Peer::send_tune(const Tuning& tuning) {
    send_method(0, 10, 30,
                Writer().u16(tuning.channel_max).u32(tuning.frame_max).u16(tuning.heartbeat));
}

void Peer::send_ack(std::uint64_t tag, bool multiple, std::uint16_t channel) {
    send_method(channel, 60, 80, Writer().u64(tag).u8(multiple ? 1 : 0));
}

void Peer::send_nack(std::uint64_t tag, bool multiple, std::uint16_t channel) {
    send_method(channel, 60, 120, Writer().u64(tag).u8(multiple ? 1 : 0));
}

void Peer::send_return(std::uint64_t body_size, std::uint16_t flags, const Writer& values,
                       std::uint16_t channel) {
    send_method(
        channel, 60, 50,
        Writer().u16(312).short_string("NO_ROUTE").short_string("events").short_string("k"));
    send_frame(header_frame, channel,
               Writer().u16(60).u16(0).u64(body_size).u16(flags).raw(values.bytes()).bytes());
}

void Peer::send_connection_close(std::uint16_t code, std::string_view text, std::uint16_t class_id,
                                 std::uint16_t method_id) {
    send_method(0, 10, 50, Writer().u16(code).short_string(text).u16(class_id).u16(method_id));
}

void Peer::send_channel_close(std::uint16_t code, std::string_view text, std::uint16_t channel) {
    send_method(channel, 20, 40, Writer().u16(code).short_string(text).u16(60).u16(40));
}

std::optional<Login> Peer::login(const Tuning& tuning) {
    if (!expect_header()) {
        return std::nullopt;
    }
    Login login;
    send_start();
    std::optional<Frame> frame = read_frame();
    if (!frame || frame->channel != 0 || !frame->is_method(10, 11)) {
        return std::nullopt;
    }
    Reader start_ok(frame->arguments());
    login.client_properties = start_ok.long_string();
    login.mechanism = start_ok.short_string();
    login.response = start_ok.long_string();
    send_tune(tuning);
    frame = read_frame();
    if (!frame || frame->channel != 0 || !frame->is_method(10, 31)) {
        return std::nullopt;
    }
    Reader tune_ok(frame->arguments());
    login.tune_ok.channel_max = tune_ok.u16();
    login.tune_ok.frame_max = tune_ok.u32();
    login.tune_ok.heartbeat = tune_ok.u16();
    frame = read_frame();
    if (!frame || frame->channel != 0 || !frame->is_method(10, 40)) {
        return std::nullopt;
    }
    login.vhost = Reader(frame->arguments()).short_string();
    send_method(0, 10, 41, Writer().short_string(""));
    return login;
}

bool Peer::read_open(std::uint16_t channel) {
    const std::optional<Frame> open = read_frame();
    if (!open || open->channel != channel || !open->is_method(20, 10)) {
        return false;
    }
    if (channel == question_channel) {
        return true;
    }
    const std::optional<Frame> select = read_frame();
    return select && select->channel == channel && select->is_method(85, 10);
}

void Peer::send_open_ok(std::uint16_t channel) {
    send_method(channel, 20, 11, Writer().long_string(""));
    if (channel != question_channel) {
        send_method(channel, 85, 11);
    }
}

std::optional<Login> Peer::handshake(const Tuning& tuning) {
    std::optional<Login> said = login(tuning);
    if (!said || !read_open(1) || !read_open(2) || !read_open(3)) {
        return std::nullopt;
    }
    for (const std::uint16_t channel : {1, 2, 3}) {
        send_open_ok(channel);
    }
    return said;
}

bool Peer::close_and_reopen(std::uint16_t code, std::string_view text, std::uint16_t channel) {
    send_channel_close(code, text, channel);
    const std::optional<Frame> close_ok = read_frame();
    if (!close_ok || close_ok->channel != channel || !close_ok->is_method(20, 41) ||
        !read_open(channel)) {
        return false;
    }
    send_open_ok(channel);
    return true;
}

Broker::Broker(Script script, int receive_buffer, int connections) : script_(std::move(script)) {
    listen_fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) {
        (void)::setsockopt(listen_fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer,
                           sizeof(receive_buffer));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    (void)::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), length);
    (void)::listen(listen_fd_, 1);
    (void)::getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, connections] {
        for (int i = 0; i < connections && serve(); ++i) {
        }
    });
}

Broker::~Broker() {
    join();
    ::close(listen_fd_);
}

bool Broker::wait_served(int connections) const {
    for (int waited = 0; served_ < connections && waited < patience_ms; ++waited) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return served_ >= connections;
}

void Broker::join() {
    if (thread_.joinable()) {
        thread_.join();
    }
}

bool Broker::serve() {
    pollfd entry{listen_fd_, POLLIN, 0};
    if (::poll(&entry, 1, patience_ms) <= 0) {
        return false;
    }
    const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const int one = 1;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    Peer peer(fd);
    script_(peer);
    ::close(fd);
    ++served_;
    return true;
}

}  // namespace fake
