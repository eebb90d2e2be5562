#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string>
#include <utility>
#include <vector>

#include "amqp/tls.hpp"
#include "certificates.hpp"

// What the tests of TLS share: a server's end, and a client that talks to it in memory.
namespace tls_test {

using certificates::Directory;
using certificates::Identity;
using certificates::Request;
using outbox::SslMode;
using outbox::TlsOptions;
using outbox::TlsVersion;
using outbox::amqp::Failure;
using outbox::amqp::FailureClass;
using outbox::amqp::TlsSession;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Progress = TlsSession::Progress;

/// The server's end of a session, by OpenSSL too, with bytes in and out.
class Peer {
  public:
    explicit Peer(const Identity& identity) {
        context_ = SSL_CTX_new(TLS_server_method());
        EXPECT_EQ(SSL_CTX_use_certificate(context_, identity.certificate()), 1);
        EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, identity.key()), 1);
    }
    ~Peer() {
        SSL_free(ssl_);
        SSL_CTX_free(context_);
    }
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

    SSL_CTX* context() { return context_; }
    void demand_certificate(const Identity& authority) {
        X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), authority.certificate());
        SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    void limit_versions(int least, int most) {
        SSL_CTX_set_security_level(context_, 0);
        SSL_CTX_set_min_proto_version(context_, least);
        SSL_CTX_set_max_proto_version(context_, most);
    }

    void feed(const std::string& bytes) {
        start();
        BIO_write(incoming_, bytes.data(), static_cast<int>(bytes.size()));
        if (SSL_is_init_finished(ssl_) == 0) {
            SSL_do_handshake(ssl_);
        }
        char buffer[4096];
        int got = 0;
        while (SSL_is_init_finished(ssl_) != 0 &&
               (got = SSL_read(ssl_, buffer, sizeof(buffer))) > 0) {
            received.append(buffer, static_cast<std::size_t>(got));
        }
        ERR_clear_error();
    }
    void write(const std::string& plain) {
        EXPECT_EQ(SSL_write(ssl_, plain.data(), static_cast<int>(plain.size())),
                  static_cast<int>(plain.size()));
    }
    void close() { SSL_shutdown(ssl_); }
    std::string take() {
        std::string bytes(BIO_ctrl_pending(outgoing_), '\0');
        if (!bytes.empty()) {
            BIO_read(outgoing_, bytes.data(), static_cast<int>(bytes.size()));
        }
        return bytes;
    }
    std::string asked_name() const {
        const char* name = SSL_get_servername(ssl_, TLSEXT_NAMETYPE_host_name);
        return name != nullptr ? name : "";
    }
    bool closed_by_peer() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }
    std::string subject_of_client() const {
        const X509* certificate = SSL_get0_peer_certificate(ssl_);
        char name[100] = "";
        if (certificate != nullptr) {
            X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                                      sizeof(name));
        }
        return name;
    }
    SSL* ssl() { return ssl_; }

    std::string received;

  private:
    void start() {
        if (ssl_ != nullptr) {
            return;
        }
        ssl_ = SSL_new(context_);
        incoming_ = BIO_new(BIO_s_mem());
        outgoing_ = BIO_new(BIO_s_mem());
        SSL_set_bio(ssl_, incoming_, outgoing_);
        SSL_set_accept_state(ssl_);
    }

    SSL_CTX* context_ = nullptr;
    SSL* ssl_ = nullptr;
    BIO* incoming_ = nullptr;
    BIO* outgoing_ = nullptr;
};

class Tls : public testing::Test {
  protected:
    ~Tls() override { EXPECT_EQ(ERR_peek_error(), 0U) << "an error is left in OpenSSL's queue"; }

    TlsOptions trusting() const {
        TlsOptions options;
        options.root_cert = ca_file_;
        return options;
    }
    Identity server(std::vector<std::string> names,
                    const std::string& common_name = "a broker") const {
        return Identity({common_name, std::move(names)}, &ca_);
    }

    /// Carries bytes between the two until the client is done, failed or out of words; as a caller
    /// would, decrypting all the time.
    Progress talk(Peer& peer, const TlsOptions& options, const std::string& host,
                  std::size_t piece = 1 << 20) {
        Progress progress = session_.start(options, host);
        for (int round = 0; round < 10; round++) {
            std::string bytes;
            session_.take_outgoing(bytes);
            peer.feed(bytes);
            const std::string answer = peer.take();
            if (bytes.empty() && answer.empty()) {
                break;
            }
            for (std::size_t at = 0; at < answer.size(); at += piece) {
                if (!session_.feed(answer.substr(at, piece))) {
                    return Progress::failed;
                }
                progress = session_.handshake();
                if (progress == Progress::failed ||
                    (progress == Progress::done && !session_.decrypt(plain_))) {
                    return Progress::failed;
                }
            }
        }
        return progress;
    }

    const std::string& text() const { return session_.failure().text; }
    bool is_configuration() const {
        return session_.failure().failure_class == FailureClass::configuration;
    }

    Directory directory_;
    Identity ca_{Request{"Test Authority", {}, true}};
    std::string ca_file_ = directory_.write("ca.pem", ca_.certificate_pem(), 0644);
    TlsSession session_;
    std::string plain_;
};

}  // namespace tls_test
