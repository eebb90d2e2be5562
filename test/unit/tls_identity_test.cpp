#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tls_peer.hpp"

// Client certificates: mutual TLS, and the files they come from.
namespace {

using namespace tls_test;

class TlsIdentity : public Tls {
  protected:
    TlsOptions with_identity() const {
        TlsOptions options = trusting();
        options.cert = directory_.write("client.pem", client_.certificate_pem(), 0644);
        options.key = directory_.write("client.key", client_.key_pem(), 0600);
        return options;
    }

    /// Expects that a session cannot even be started.
    std::string refused(const TlsOptions& options) {
        EXPECT_EQ(session_.start(options, "broker.example"), Progress::failed);
        EXPECT_TRUE(is_configuration());
        std::string bytes;
        session_.take_outgoing(bytes);
        EXPECT_EQ(bytes, "") << "nothing is sent";
        return text();
    }

    Identity client_{Request{"drainer", {}}, &ca_};
};

TEST_F(TlsIdentity, IsShownToAServerThatAsks) {
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        Peer peer(server({"DNS:broker.example"}));
        peer.limit_versions(version, version);
        peer.demand_certificate(ca_);
        ASSERT_EQ(talk(peer, with_identity(), "broker.example"), Progress::done) << text();
        EXPECT_EQ(peer.subject_of_client(), "drainer");
    }
}

TEST_F(TlsIdentity, MayBeOneFileWithTheKey) {
    TlsOptions options = trusting();
    options.cert = directory_.write("both.pem", client_.certificate_pem() + client_.key_pem());
    Peer peer(server({"DNS:broker.example"}));
    peer.demand_certificate(ca_);
    ASSERT_EQ(talk(peer, options, "broker.example"), Progress::done) << text();
    EXPECT_EQ(peer.subject_of_client(), "drainer");
}

TEST_F(TlsIdentity, BringsItsChain) {
    const Identity middle({"Middle Authority", {}, true}, &ca_);
    const Identity leaf({"drainer", {}}, &middle);
    TlsOptions options = trusting();
    options.cert = directory_.write("chain.pem", leaf.certificate_pem() + middle.certificate_pem());
    options.key = directory_.write("leaf.key", leaf.key_pem());
    Peer peer(server({"DNS:broker.example"}));
    peer.demand_certificate(ca_);
    ASSERT_EQ(talk(peer, options, "broker.example"), Progress::done) << text();
    EXPECT_EQ(peer.subject_of_client(), "drainer");
}

TEST_F(TlsIdentity, IsMissedByAServerThatDemandsIt) {
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        Peer peer(server({"DNS:broker.example"}));
        peer.limit_versions(version, version);
        peer.demand_certificate(ca_);
        EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
        EXPECT_EQ(text(),
                  std::string("the server asks for a client certificate (sslcert), and none is "
                              "set: ") +
                      (version == TLS1_2_VERSION ? "handshake failure" : "certificate required"));
        EXPECT_TRUE(is_configuration());
    }
}

TEST_F(TlsIdentity, OfAnotherAuthorityIsRefusedByTheServer) {
    const Identity other({"Other Authority", {}, true});
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        Peer peer(server({"DNS:broker.example"}));
        peer.limit_versions(version, version);
        peer.demand_certificate(other);
        const TlsOptions options = with_identity();
        EXPECT_EQ(talk(peer, options, "broker.example"), Progress::failed);
        EXPECT_EQ(text(),
                  "the server refused the client certificate \"" + options.cert + "\": unknown CA");
        EXPECT_TRUE(is_configuration());
    }
}

TEST_F(TlsIdentity, MissingFilesAreNamed) {
    const std::string nowhere = directory_.path() + "/nowhere.pem";
    TlsOptions options;
    options.root_cert = nowhere;
    EXPECT_EQ(refused(options), "could not open root certificate file \"" + nowhere +
                                    "\": No such file or directory");
    options = with_identity();
    options.cert = nowhere;
    EXPECT_EQ(refused(options),
              "could not open certificate file \"" + nowhere + "\": No such file or directory");
    options = with_identity();
    options.key = nowhere;
    EXPECT_EQ(refused(options),
              "could not open private key file \"" + nowhere + "\": No such file or directory");
}

TEST_F(TlsIdentity, FilesWithSomethingElseAreNamed) {
    TlsOptions options;
    options.root_cert = directory_.write("text.pem", "hello\n");
    EXPECT_EQ(refused(options), "root certificate file \"" + options.root_cert +
                                    "\" contains no certificate in PEM format");
    options.root_cert = directory_.write("empty.pem", "");
    EXPECT_EQ(refused(options), "root certificate file \"" + options.root_cert +
                                    "\" contains no certificate in PEM format");
    options.root_cert = directory_.write(
        "broken.pem",
        ca_.certificate_pem() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    EXPECT_THAT(refused(options),
                StartsWith("could not use root certificate file \"" + options.root_cert + "\": "));
    options.root_cert = directory_.path();
    EXPECT_EQ(refused(options),
              "root certificate file \"" + directory_.path() + "\" is not a regular file");
    options.root_cert = directory_.write("large.pem", std::string(2'000'000, '\n'));
    EXPECT_EQ(refused(options),
              "root certificate file \"" + options.root_cert + "\" is larger than 1 MB");

    options = with_identity();
    options.key = options.cert;
    ::chmod(options.key.c_str(), 0600);
    EXPECT_EQ(refused(options),
              "private key file \"" + options.key + "\" contains no private key in PEM format");
}

TEST_F(TlsIdentity, ANamedPipeDoesNotBlock) {
    TlsOptions options = with_identity();
    options.key = directory_.path() + "/pipe";
    ASSERT_EQ(::mkfifo(options.key.c_str(), 0600), 0);
    EXPECT_EQ(refused(options), "private key file \"" + options.key + "\" is not a regular file");
}

TEST_F(TlsIdentity, AKeyThatOthersCanReadIsRefused) {
    TlsOptions options = with_identity();
    const bool is_root = ::geteuid() == 0;
    for (const int mode : {0644, 0660, 0604, 0610}) {
        ASSERT_EQ(::chmod(options.key.c_str(), static_cast<mode_t>(mode)), 0);
        EXPECT_EQ(refused(options),
                  "private key file \"" + options.key +
                      "\" has group or world access; file must have permissions u=rw (0600) or "
                      "less if owned by the current user, or permissions u=rw,g=r (0640) or less "
                      "if owned by root");
    }
    ASSERT_EQ(::chmod(options.key.c_str(), 0640), 0);
    EXPECT_EQ(session_.start(options, "broker.example"),
              is_root ? Progress::in_progress : Progress::failed);
    ASSERT_EQ(::chmod(options.key.c_str(), 0400), 0);
    EXPECT_EQ(session_.start(options, "broker.example"), Progress::in_progress) << text();
}

TEST_F(TlsIdentity, AnEncryptedKeyIsRefusedWithoutAQuestion) {
    TlsOptions options = with_identity();
    options.key = directory_.write("secret.key", client_.key_pem("a passphrase"));
    EXPECT_EQ(refused(options), "private key file \"" + options.key +
                                    "\" is encrypted, and there is nobody to ask for its "
                                    "passphrase");
}

TEST_F(TlsIdentity, AKeyOfAnotherCertificateIsRefused) {
    TlsOptions options = with_identity();
    options.key = directory_.write("other.key", ca_.key_pem());
    EXPECT_EQ(refused(options), "private key file \"" + options.key +
                                    "\" does not belong to certificate file \"" + options.cert +
                                    "\"");
}

TEST_F(TlsIdentity, AKeyAloneIsRefused) {
    TlsOptions options = trusting();
    options.key = directory_.write("client.key", client_.key_pem());
    EXPECT_EQ(refused(options),
              "private key file \"" + options.key + "\" is given without a certificate (sslcert)");
}

}  // namespace
