#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

// A scripted AMQP server for tests: a socket on 127.0.0.1 whose one client is served by a function
// in a thread. It has its own encoding, so that it checks ours.
namespace fake {

/// Builds wire bytes.
class Writer {
  public:
    Writer& u8(std::uint8_t value);
    Writer& u16(std::uint16_t value);
    Writer& u32(std::uint32_t value);
    Writer& u64(std::uint64_t value);
    Writer& short_string(std::string_view text);
    Writer& long_string(std::string_view text);
    Writer& raw(std::string_view text);
    /// A field of a table with a text value.
    Writer& text_field(std::string_view key, std::string_view text);
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

/// Takes wire bytes apart; reads zeros past the end.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    std::uint8_t u8();
    std::uint16_t u16();
    std::uint32_t u32();
    std::uint64_t u64();
    std::string short_string();
    std::string long_string();
    std::string raw(std::size_t length);
    std::size_t left() const { return bytes_.size(); }

  private:
    std::string_view bytes_;
};

struct Frame {
    std::uint8_t type = 0;
    std::uint16_t channel = 0;
    std::string payload;

    bool is_method(std::uint16_t class_id, std::uint16_t method_id) const;
    /// The payload after class and method id.
    std::string_view arguments() const;
};

/// A message as the client sent it.
struct Published {
    std::uint16_t channel = 0;
    std::string exchange;
    std::string routing_key;
    bool mandatory = false;
    std::string header;  ///< payload of the content header frame
    std::string body;
    std::size_t body_frames = 0;
};

struct Tuning {
    std::uint16_t channel_max = 2047;
    std::uint32_t frame_max = 131072;
    std::uint16_t heartbeat = 0;
};

/// What the client said while it logged in.
struct Login {
    std::string client_properties;
    std::string mechanism;
    std::string response;
    Tuning tune_ok;
    std::string vhost;
};

/// The client as its script sees it. Reads give up after twenty seconds.
class Peer {
  public:
    explicit Peer(int fd) : fd_(fd) {}

    /// Exactly `length` bytes, fewer when the client has closed or is silent.
    std::string read_bytes(std::size_t length);
    std::optional<Frame> read_frame();
    std::optional<Published> read_message();
    /// Reads until the client closes; true when it did so in time.
    bool wait_for_close();

    void send(std::string_view bytes);
    void send_frame(std::uint8_t type, std::uint16_t channel, std::string_view payload);
    void send_method(std::uint16_t channel, std::uint16_t class_id, std::uint16_t method_id,
                     const Writer& arguments = {});
    /// Sends nothing more, and goes on reading.
    void shut_down_sending();
    /// Ends the connection with a reset instead of an orderly close.
    void reset();

    // The usual words.
    bool expect_header();
    void send_start(std::string_view mechanisms = "AMQPLAIN PLAIN");
    void send_tune(const Tuning& tuning);
    void send_ack(std::uint64_t tag, bool multiple = false, std::uint16_t channel = 1);
    void send_nack(std::uint64_t tag, bool multiple = false, std::uint16_t channel = 1);
    /// The method and the content header of a return; what is set of the properties is up to
    /// `flags` and `values`.
    void send_return(std::uint64_t body_size, std::uint16_t flags = 0, const Writer& values = {},
                     std::uint16_t channel = 1);
    /// `class_id` and `method_id`: of the method that is to blame.
    void send_connection_close(std::uint16_t code, std::string_view text,
                               std::uint16_t class_id = 0, std::uint16_t method_id = 0);
    void send_channel_close(std::uint16_t code, std::string_view text, std::uint16_t channel = 1);

    // The server's side of the usual dialogues. nullopt or false: the client did not play along.
    /// Up to connection.open-ok.
    std::optional<Login> login(const Tuning& tuning = {});
    /// Reads what opens the channel: channel.open, and confirm.select but for channel 2.
    bool read_open(std::uint16_t channel);
    void send_open_ok(std::uint16_t channel);
    /// login() and all channels.
    std::optional<Login> handshake(const Tuning& tuning = {});
    /// Closes the channel and lets the client open it again.
    bool close_and_reopen(std::uint16_t code, std::string_view text, std::uint16_t channel = 1);

  private:
    bool wait_readable();
    int fd_;
};

class Broker {
  public:
    using Script = std::function<void(Peer&)>;

    /// `receive_buffer`: size of the socket's receive buffer, 0 for the kernel's choice.
    /// `connections`: how many it serves, one after another.
    explicit Broker(Script script, int receive_buffer = 0, int connections = 1);
    /// Waits for the script to end.
    ~Broker();
    Broker(const Broker&) = delete;
    Broker& operator=(const Broker&) = delete;

    std::uint16_t port() const { return port_; }
    /// Waits until so many connections have been served and closed; false when that takes long.
    bool wait_served(int connections) const;
    void join();

  private:
    bool serve();

    Script script_;
    int listen_fd_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<int> served_ = 0;
    std::thread thread_;
};

}  // namespace fake
