// What a server sends, through all that handles it: framing, handshake, channels, returns. The
// first byte of an input says how the rest is taken:
//
//   bit 0   after a handshake that went well, rather than from the first byte on
//   bit 1   the rest is a list of (type, channel, size, payload) of which sound frames are made
//   bit 2   a question is open and a message is unconfirmed
//   bit 3   the client says goodbye before
//   4 to 7  bytes that arrive at a time, times 7; 0: all at once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "amqp/session.hpp"

namespace {

using namespace outbox::amqp;

void require(bool condition) {
    if (!condition) {
        __builtin_trap();
    }
}

void append_u16(std::string& bytes, std::size_t value) {
    bytes += static_cast<char>(value >> 8U);
    bytes += static_cast<char>(value);
}

std::string frame(std::uint8_t type, std::uint16_t channel, std::string_view payload) {
    std::string bytes(1, static_cast<char>(type));
    append_u16(bytes, channel);
    append_u16(bytes, payload.size() >> 16U);
    append_u16(bytes, payload.size());
    bytes += payload;
    bytes += '\xCE';
    return bytes;
}

std::string method(std::uint16_t channel, std::uint16_t class_id, std::uint16_t method_id,
                   std::string_view arguments) {
    std::string payload;
    append_u16(payload, class_id);
    append_u16(payload, method_id);
    payload += arguments;
    return frame(1, channel, payload);
}

std::string handshake() {
    constexpr std::string_view start(
        "\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05"
        "en_US",
        24);
    constexpr std::string_view tune("\0\0\0\0\x10\0\0\0", 8);  // frame_max 4096
    std::string bytes = method(0, 10, 10, start) + method(0, 10, 30, tune) +
                        method(0, 10, 41, std::string_view("\0", 1));
    for (const std::uint16_t channel : {1, 2, 3}) {
        bytes += method(channel, 20, 11, std::string_view("\0\0\0\0", 4));
        bytes += channel == 2 ? std::string() : method(channel, 85, 11, "");
    }
    return bytes;
}

/// Sound frames with the payloads of the input.
std::string framed(std::string_view input) {
    std::string bytes;
    constexpr std::size_t head = 4;
    while (input.size() > head) {
        const auto at = [input](std::size_t i) { return static_cast<unsigned char>(input[i]); };
        const std::uint8_t type = at(0);
        const std::uint16_t channel = at(1);
        const std::size_t size = std::size_t{at(2)} << 8U | at(3);
        input.remove_prefix(head);
        bytes += frame(type, channel, input.substr(0, size));
        input.remove_prefix(std::min(size, input.size()));
    }
    return bytes;
}

/// Takes all that the session tells.
void drain(Session& session) {
    (void)session.advance();
    while (const std::optional<Incoming> incoming = session.poll()) {
        if (const auto* closed = std::get_if<Closed>(&*incoming)) {
            require(!closed->failure.text.empty());
            require(!session.is_alive());
            require(!session.poll().has_value());
        } else if (const auto* returned = std::get_if<Returned>(&*incoming)) {
            require(returned->message_id.size() <= 255 && returned->app_id.size() <= 255);
        }
    }
    // Answers to what the broker does, which would be sent if there was a socket.
    require(session.unsent_bytes() == 0 || !session.is_alive());
}

void use(Session& session) {
    outbox::Message message;
    message.exchange = "events";
    message.message_id = "msg_1";
    (void)session.publish(outbox::Channel::main, message, true);
    Question question;
    question.exchange = "events";
    (void)session.ask(question);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::uint8_t how = data[0];
    std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
    Session session;
    (void)session.start(-1, outbox::BrokerUri(), Options());
    if ((how & 1U) != 0) {
        session.feed(handshake());
        drain(session);
        require(session.is_ready());
    }
    if ((how & 4U) != 0) {
        use(session);
    }
    if ((how & 8U) != 0) {
        session.start_close();
    }
    const std::string made = (how & 2U) != 0 ? framed(input) : std::string();
    std::string_view bytes = (how & 2U) != 0 ? made : input;
    const std::size_t step = how >> 4U == 0 ? bytes.size() : (how >> 4U) * std::size_t{7};
    while (!bytes.empty()) {
        session.feed(bytes.substr(0, step));
        bytes.remove_prefix(std::min(step, bytes.size()));
        drain(session);
    }
    session.close();
    return 0;
}
