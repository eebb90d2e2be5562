#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <string>
#include <utility>
#include <vector>

#include "tls_peer.hpp"

namespace {

using namespace tls_test;

TEST_F(Tls, SpeaksWithAServerThatItTrusts) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    EXPECT_EQ(peer.asked_name(), "broker.example");
    EXPECT_THAT(session_.description(), StartsWith("TLSv1.3, TLS_"));

    ASSERT_TRUE(session_.encrypt("AMQP"));
    std::string bytes;
    session_.take_outgoing(bytes);
    EXPECT_EQ(bytes.find("AMQP"), std::string::npos);
    peer.feed(bytes);
    EXPECT_EQ(peer.received, "AMQP");
    peer.write("start");
    ASSERT_TRUE(session_.feed(peer.take()));
    ASSERT_TRUE(session_.decrypt(plain_));
    EXPECT_EQ(plain_, "start");
}

TEST_F(Tls, SaysGoodbye) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    session_.shut_down();
    std::string bytes;
    session_.take_outgoing(bytes);
    peer.feed(bytes);
    EXPECT_TRUE(peer.closed_by_peer());
}

TEST_F(Tls, GoodbyeBeforeTheHandshakeIsHarmless) {
    session_.shut_down();
    EXPECT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    session_.shut_down();
    EXPECT_FALSE(session_.encrypt("too early"));
}

TEST_F(Tls, BytesMayComeOneByOne) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example", 1), Progress::done) << text();
    peer.write("hello");
    for (const char byte : peer.take()) {
        ASSERT_TRUE(session_.feed({&byte, 1}));
        ASSERT_TRUE(session_.decrypt(plain_));
    }
    EXPECT_EQ(plain_, "hello");
}

TEST_F(Tls, LargeDataBothWays) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    std::string data(5'000'000, 'x');
    for (std::size_t i = 0; i < data.size(); i += 7) {
        data[i] = static_cast<char>(i % 251);
    }
    ASSERT_TRUE(session_.encrypt(data));
    std::string bytes = "before";
    session_.take_outgoing(bytes);
    EXPECT_EQ(bytes.substr(0, 6), "before");
    peer.feed(bytes.substr(6));
    EXPECT_TRUE(peer.received == data);

    peer.write(data);
    const std::string answer = peer.take();
    for (std::size_t at = 0; at < answer.size(); at += 10'007) {
        ASSERT_TRUE(session_.feed(std::string_view(answer).substr(at, 10'007)));
        ASSERT_TRUE(session_.decrypt(plain_));
    }
    EXPECT_TRUE(plain_ == data);
}

TEST_F(Tls, AnOldVersionThatIsAllowed) {
    Peer peer(server({"DNS:broker.example"}));
    peer.limit_versions(TLS1_2_VERSION, TLS1_2_VERSION);
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    EXPECT_THAT(session_.description(), StartsWith("TLSv1.2, "));
}

TEST_F(Tls, AnOlderVersionIsRefused) {
    Peer peer(server({"DNS:broker.example"}));
    peer.limit_versions(TLS1_VERSION, TLS1_1_VERSION);
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(), StartsWith("the server speaks no version of TLS that is allowed here "
                                   "(TLS 1.2 at least): "));
    EXPECT_TRUE(is_configuration());
}

TEST_F(Tls, TheLeastVersionCanBeRaised) {
    Peer peer(server({"DNS:broker.example"}));
    peer.limit_versions(TLS1_2_VERSION, TLS1_2_VERSION);
    TlsOptions options = trusting();
    options.min_version = TlsVersion::tls_1_3;
    EXPECT_EQ(talk(peer, options, "broker.example"), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("(TLS 1.3 at least)"));
    EXPECT_TRUE(is_configuration());
}

TEST_F(Tls, AnotherHostIsRefusedAndNamed) {
    Peer peer(server({"DNS:other.example", "DNS:*.wild.example", "IP:192.0.2.1"}));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_EQ(text(),
              "the server's certificate is not for host \"broker.example\": it is for "
              "\"other.example\", \"*.wild.example\", \"192.0.2.1\"");
    EXPECT_TRUE(is_configuration());
    EXPECT_FALSE(session_.encrypt("secret"));
    std::string more;
    EXPECT_FALSE(session_.decrypt(more));
    EXPECT_FALSE(session_.feed("x"));
    EXPECT_EQ(session_.handshake(), Progress::failed);
}

TEST_F(Tls, WildcardsStandForOneWholeLabel) {
    const Identity identity = server({"DNS:*.example.com", "DNS:part*.example.org"});
    for (const auto& [host, expected] :
         std::vector<std::pair<std::string, Progress>>{{"broker.example.com", Progress::done},
                                                       {"BROKER.example.com", Progress::done},
                                                       {"broker.example.com.", Progress::done},
                                                       {"a.broker.example.com", Progress::failed},
                                                       {"example.com", Progress::failed},
                                                       {"partial.example.org", Progress::failed}}) {
        Peer peer(identity);
        EXPECT_EQ(talk(peer, trusting(), host), expected) << host << ": " << text();
    }
}

TEST_F(Tls, AnAddressNeedsItsOwnEntry) {
    for (const auto& [host, entry] : std::vector<std::pair<std::string, std::string>>{
             {"127.0.0.1", "IP:127.0.0.1"}, {"::1", "IP:::1"}, {"fe80::1%lo", "IP:fe80::1"}}) {
        Peer peer(server({entry}));
        EXPECT_EQ(talk(peer, trusting(), host), Progress::done) << host << ": " << text();
        EXPECT_EQ(peer.asked_name(), "") << "an address is no server name";
    }
    Peer peer(server({"DNS:127.0.0.1", "IP:127.0.0.2"}, "127.0.0.1"));
    EXPECT_EQ(talk(peer, trusting(), "127.0.0.1"), Progress::failed);
    EXPECT_EQ(text(),
              "the server's certificate is not for host \"127.0.0.1\": it is for "
              "\"127.0.0.1\", \"127.0.0.2\"");
}

TEST_F(Tls, TheCommonNameCountsOnlyWithoutHostNames) {
    Peer without(server({}, "broker.example"));
    EXPECT_EQ(talk(without, trusting(), "broker.example"), Progress::done) << text();
    Peer with(server({"DNS:other.example"}, "broker.example"));
    EXPECT_EQ(talk(with, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("it is for \"other.example\""));
}

TEST_F(Tls, AnotherNameCanBeVerified) {
    Peer peer(server({"DNS:broker.example"}));
    TlsOptions options = trusting();
    options.server_name = "broker.example";
    ASSERT_EQ(talk(peer, options, "10.0.0.7"), Progress::done) << text();
    EXPECT_EQ(peer.asked_name(), "broker.example");
    Peer again(server({"DNS:broker.example"}));
    options.server_name = "elsewhere.example";
    EXPECT_EQ(talk(again, options, "broker.example"), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("not for host \"elsewhere.example\""));
}

TEST_F(Tls, VerifyCaTakesAnyHost) {
    TlsOptions options = trusting();
    options.mode = SslMode::verify_ca;
    Peer peer(server({"DNS:other.example"}));
    EXPECT_EQ(talk(peer, options, "broker.example"), Progress::done) << text();
    Peer stranger(Identity({"broker.example", {"DNS:broker.example"}}));
    EXPECT_EQ(talk(stranger, options, "broker.example"), Progress::failed);
}

TEST_F(Tls, RequireTakesAnyCertificate) {
    TlsOptions options;
    options.mode = SslMode::require;
    Peer peer(Identity({"whoever", {}, false, -20, -10}));
    EXPECT_EQ(talk(peer, options, "broker.example"), Progress::done) << text();
    // As with libpq, a file that is named is used.
    options.root_cert = ca_file_;
    Peer again(Identity({"whoever", {}}));
    EXPECT_EQ(talk(again, options, "broker.example"), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("self-signed certificate"));
}

TEST_F(Tls, AnExpiredCertificateIsRefused) {
    Peer peer(Identity({"a broker", {"DNS:broker.example"}, false, -20, -10}, &ca_));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(), AllOf(StartsWith("could not verify the server's certificate: certificate "
                                         "has expired on 20"),
                              HasSubstr(" UTC (subject \"CN=a broker\", issuer \"CN=Test "
                                        "Authority\"; trusted are the authorities of file \"" +
                                        ca_file_ + "\")")));
    EXPECT_TRUE(is_configuration());
}

TEST_F(Tls, ACertificateOfTheFutureIsRefused) {
    Peer peer(Identity({"a broker", {"DNS:broker.example"}, false, 10, 20}, &ca_));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("certificate is not yet valid before 20"));
}

TEST_F(Tls, ASelfSignedCertificateIsRefused) {
    const Identity own({"broker.example", {"DNS:broker.example"}});
    Peer peer(own);
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(), StartsWith("could not verify the server's certificate: self-signed "
                                   "certificate (subject \"CN=broker.example\", issuer "
                                   "\"CN=broker.example\"; trusted are"));
    EXPECT_TRUE(is_configuration());
    // Unless it is the one that is trusted.
    TlsOptions options;
    options.root_cert = directory_.write("own.pem", own.certificate_pem());
    Peer again(own);
    EXPECT_EQ(talk(again, options, "broker.example"), Progress::done) << text();
}

TEST_F(Tls, AnUnknownAuthorityIsRefused) {
    const Identity other({"Other Authority", {}, true});
    Peer peer(Identity({"a broker", {"DNS:broker.example"}}, &other));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_THAT(text(),
                HasSubstr("unable to get local issuer certificate (subject \"CN=a broker\", "
                          "issuer \"CN=Other Authority\""));
    EXPECT_TRUE(is_configuration());
}

TEST_F(Tls, TheSystemDoesNotTrustATestAuthority) {
    for (const char* root : {"", "system"}) {
        TlsOptions options;
        options.root_cert = root;
        Peer peer(server({"DNS:broker.example"}));
        EXPECT_EQ(talk(peer, options, "broker.example"), Progress::failed);
        EXPECT_THAT(text(), HasSubstr("trusted are the system's authorities"));
    }
}

TEST_F(Tls, SeveralAuthoritiesInOneFile) {
    const Identity other({"Other Authority", {}, true});
    TlsOptions options;
    options.root_cert = directory_.write(
        "both.pem", "# comment\n" + other.certificate_pem() + ca_.certificate_pem());
    Peer peer(server({"DNS:broker.example"}));
    EXPECT_EQ(talk(peer, options, "broker.example"), Progress::done) << text();
}

TEST_F(Tls, ServersChainIsFollowed) {
    const Identity middle({"Middle Authority", {}, true}, &ca_);
    const Identity leaf({"a broker", {"DNS:broker.example"}}, &middle);
    Peer with(leaf);
    SSL_CTX_add1_chain_cert(with.context(), middle.certificate());
    EXPECT_EQ(talk(with, trusting(), "broker.example"), Progress::done) << text();
    Peer without(leaf);
    EXPECT_EQ(talk(without, trusting(), "broker.example"), Progress::failed);
}

TEST_F(Tls, TextFromACertificateIsShownHarmless) {
    Peer peer(Identity({"evil\n\"log line\x1b[31m", {}}, &ca_));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::failed);
    EXPECT_EQ(text(),
              "the server's certificate is not for host \"broker.example\": it is for "
              "\"evil??log line?[31m\"");
}

class PlainAnswer : public Tls,
                    public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(PlainAnswer, IsCalledWhatItIs) {
    const auto& [answer, shown] = GetParam();
    ASSERT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    EXPECT_FALSE(session_.feed(answer));
    EXPECT_EQ(text(), std::string("the server does not speak TLS on this port: it answered \"") +
                          shown + "\"");
    EXPECT_TRUE(is_configuration());
    EXPECT_EQ(session_.handshake(), Progress::failed);
}

INSTANTIATE_TEST_SUITE_P(, PlainAnswer,
                         testing::Values(std::pair("AMQP\1\1\0\11", "AMQP"), std::pair("A", "A"),
                                         std::pair("HTTP/1.1 400 Bad Request\r\n",
                                                   "HTTP/1.1 400 Bad Req..."),
                                         std::pair("\1\2\3", "???")));

TEST_F(Tls, WhatIsSentFirstIsTls) {
    ASSERT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    std::string bytes;
    session_.take_outgoing(bytes);
    EXPECT_EQ(bytes.substr(0, 2), "\x16\x03");
    EXPECT_EQ(bytes.find("AMQP"), std::string::npos);
}

TEST_F(Tls, AnAlertIsInfrastructureUnlessItIsAboutTheSetUp) {
    ASSERT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    ASSERT_TRUE(session_.feed(std::string("\x15\3\3\0\2\2\x50", 7)));
    EXPECT_EQ(session_.handshake(), Progress::failed);
    EXPECT_EQ(text(), "the server refused the TLS handshake: internal error");
    EXPECT_FALSE(is_configuration());

    ASSERT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    ASSERT_TRUE(session_.feed(std::string("\x15\3\3\0\2\2\x28", 7)));
    EXPECT_EQ(session_.handshake(), Progress::failed);
    EXPECT_EQ(text(), "the server refused the TLS handshake: handshake failure");
    EXPECT_TRUE(is_configuration());

    ASSERT_EQ(session_.start(trusting(), "broker.example"), Progress::in_progress);
    ASSERT_TRUE(session_.feed(std::string("\x15\3\3\0\2\2\xc8", 7)));
    EXPECT_EQ(session_.handshake(), Progress::failed);
    EXPECT_THAT(text(), HasSubstr("alert"));
}

TEST_F(Tls, ACleanEndIsToldFromAnUncleanOne) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    peer.write("last words");
    peer.close();
    ASSERT_TRUE(session_.feed(peer.take()));
    EXPECT_FALSE(session_.decrypt(plain_));
    EXPECT_EQ(plain_, "last words");
    EXPECT_EQ(text(), "the server closed the TLS session");
    EXPECT_FALSE(is_configuration());
}

TEST_F(Tls, GarbageInMidStreamEndsTheSession) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    peer.write("good");
    std::string bytes = peer.take();
    ASSERT_TRUE(session_.feed(bytes));
    ASSERT_TRUE(session_.decrypt(plain_));
    peer.write("changed on the way");
    bytes = peer.take();
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    ASSERT_TRUE(session_.feed(bytes));
    EXPECT_FALSE(session_.decrypt(plain_));
    EXPECT_EQ(plain_, "good");
    EXPECT_EQ(text(), "TLS error: decryption failed or bad record mac");
    EXPECT_FALSE(is_configuration());
    EXPECT_FALSE(session_.encrypt("more"));
}

TEST_F(Tls, NoiseInsteadOfARecordEndsTheSession) {
    Peer peer(server({"DNS:broker.example"}));
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    ASSERT_TRUE(session_.feed(std::string(100, 'z')));
    EXPECT_FALSE(session_.decrypt(plain_));
    EXPECT_THAT(text(), StartsWith("TLS error: "));
}

TEST_F(Tls, ARenegotiationIsRefused) {
    Peer peer(server({"DNS:broker.example"}));
    peer.limit_versions(TLS1_2_VERSION, TLS1_2_VERSION);
    ASSERT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
    SSL_renegotiate(peer.ssl());
    SSL_do_handshake(peer.ssl());
    ASSERT_TRUE(session_.feed(peer.take()));
    (void)session_.decrypt(plain_);
    std::string bytes;
    session_.take_outgoing(bytes);
    EXPECT_EQ(bytes.substr(0, 1), "\x15") << "an alert, not a handshake";
}

TEST_F(Tls, StartsOver) {
    Peer stranger(Identity({"broker.example", {"DNS:broker.example"}}));
    EXPECT_EQ(talk(stranger, trusting(), "broker.example"), Progress::failed);
    Peer peer(server({"DNS:broker.example"}));
    EXPECT_EQ(talk(peer, trusting(), "broker.example"), Progress::done) << text();
}

}  // namespace
