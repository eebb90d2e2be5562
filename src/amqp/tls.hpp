#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "amqp/connection.hpp"
#include "core/broker_uri.hpp"

namespace outbox::amqp {

/// The client's side of a TLS connection as a transformation of bytes: it owns no socket, so
/// nothing in it can wait. What comes from the peer is given to feed(), what is for the peer is
/// taken from outgoing().
class TlsSession {
  public:
    enum class Progress : std::uint8_t { in_progress, done, failed };

    TlsSession();
    ~TlsSession();
    TlsSession(const TlsSession&) = delete;
    TlsSession& operator=(const TlsSession&) = delete;

    /// Loads certificates and begins the handshake with `host`. `failed`: a file cannot be used.
    Progress start(const TlsOptions& options, const std::string& host);
    /// Bytes from the peer.
    bool feed(std::string_view bytes);
    /// Goes on with the handshake as far as what was fed allows.
    Progress handshake();
    /// Appends to `plain` what can be decrypted of what was fed. False: the session is over (see
    /// failure(); a peer that said goodbye in good order is one too).
    bool decrypt(std::string& plain);
    /// Encrypts; false: the session is over.
    bool encrypt(std::string_view plain);
    /// Moves what is for the peer to the end of `bytes`.
    void take_outgoing(std::string& bytes);
    /// Says goodbye (close_notify), if the handshake was done.
    void shut_down();

    /// Why the last call failed, in words for a user: "certificate verify failed: ... (host name
    /// ...)", "private key file ... has group or world access". Certificates and names are matters
    /// of configuration.
    const Failure& failure() const;
    /// "TLSv1.3, TLS_AES_256_GCM_SHA384", once the handshake is done.
    std::string description() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace outbox::amqp
