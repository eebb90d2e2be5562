#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "amqp/out_buffer.hpp"
#include "amqp/socket.hpp"
#include "amqp/tls.hpp"

namespace outbox::amqp {

/// A connected socket as two buffers of bytes, perhaps with TLS in between. Nothing waits: what the
/// socket does not take stays in out(), what the peer has not sent is not there yet.
///
/// Without a socket (fd -1) it takes what feed() gives and swallows what is sent: for tests.
class Stream {
  public:
    enum class Read : std::uint8_t { some, nothing, failed };
    enum class Progress : std::uint8_t { in_progress, done, failed };

    Stream() = default;
    ~Stream() { drop(); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// Takes the connected, non-blocking socket; it is closed by drop().
    void attach(int fd);
    /// Before the first byte: from now on all goes through TLS. False: see failure().
    bool start_tls(const TlsOptions& options, const std::string& host);
    /// Goes on with the TLS handshake.
    Progress secure();
    /// Ends TLS in good order, as far as the socket takes it.
    void shut_down();
    void drop();

    int fd() const { return fd_; }

    /// Takes what has arrived, a limited amount of it, to the end of received().
    Read receive();
    std::string_view received() const { return std::string_view(in_).substr(in_begin_); }
    void consume(std::size_t bytes);
    /// As if the peer had sent this, decrypted.
    void feed(std::string_view bytes) { in_ += bytes; }

    /// What is to be sent, before encryption.
    OutBuffer& out() { return out_; }
    /// Sends what the socket takes. False: nothing can be sent any more, but what had arrived
    /// before can still be received.
    bool flush();
    /// As flush(), once as much has come together since the last time that a send is worth it.
    bool flush_burst();
    std::size_t unsent() const { return out_.size() + cipher_.size() - cipher_sent_; }

    Clock::time_point last_sent() const { return last_sent_; }
    Clock::time_point last_received() const { return last_received_; }
    /// Why the last call failed.
    const Failure& failure() const { return failure_; }

  private:
    bool decrypt(std::string_view bytes);
    bool encrypt();
    bool send_plain();
    bool send_cipher();
    // How much of the bytes the socket took: none if it is full. -1: it failed.
    std::ptrdiff_t send(std::string_view bytes);
    void note_loss(std::string text);
    void give_up_sending();

    int fd_ = -1;
    std::unique_ptr<TlsSession> tls_;
    bool secured_ = false;
    std::unique_ptr<char[]> chunk_;
    std::string in_;
    std::size_t in_begin_ = 0;
    bool ended_ = false;  ///< the peer sends no more, for the reason in failure_
    OutBuffer out_;
    std::size_t left_over_ = 0;  ///< of the last flush
    std::string cipher_;         ///< encrypted, not yet sent
    std::size_t cipher_sent_ = 0;
    bool deaf_ = false;  ///< the peer takes no more, for the reason in failure_
    Clock::time_point last_sent_{};
    Clock::time_point last_received_{};
    Failure failure_;
};

}  // namespace outbox::amqp
