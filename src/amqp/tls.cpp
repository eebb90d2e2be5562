#include "amqp/tls.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/x509v3.h>

#include "amqp/openssl.hpp"
#include "amqp/tls_files.hpp"
#include "amqp/tls_words.hpp"

namespace outbox::amqp {

namespace {

// What a server's first record may be.
constexpr char alert_record = 0x15;
constexpr char handshake_record = 0x16;

bool is_address(const std::string& host) {
    in6_addr parsed{};
    return ::inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
           ::inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

/// The host as certificates name it: an address without its zone, a name without the dot of the
/// root.
std::string verified_name(const std::string& host) {
    const std::size_t zone = host.find('%');
    if (zone != std::string::npos && is_address(host.substr(0, zone))) {
        return host.substr(0, zone);
    }
    if (host.size() > 1 && host.back() == '.') {
        return host.substr(0, host.size() - 1);
    }
    return host;
}

}  // namespace

struct TlsSession::Impl {
    TlsOptions options;
    std::string name;
    SslContextPtr context;
    SslPtr ssl;
    BIO* incoming = nullptr;  // both belong to ssl
    BIO* outgoing = nullptr;
    bool heard = false;  // something came from the peer
    bool established = false;
    bool over = true;
    Failure failure;

    // Set by callbacks.
    bool certificate_wanted = false;
    int verify_error = X509_V_OK;
    CertificatePtr refused;

    bool verifies() const;
    bool set_up_context();
    bool set_up_session();
    bool set_up_verification();
    bool check_first_byte(std::string_view bytes);
    bool fail(FailureClass failure_class, std::string text);
    bool fail_by_openssl();
    bool only_wants_more(int result);

    // Called by OpenSSL: they allocate nothing, and so throw nothing.
    static int on_verified(int is_good, X509_STORE_CTX* store);
    static int on_certificate_wanted(SSL* ssl, X509** certificate, EVP_PKEY** key);
};

// As with libpq, a root certificate file that is named is used, with `require` too.
bool TlsSession::Impl::verifies() const {
    return options.mode != SslMode::require ||
           (!options.root_cert.empty() && options.root_cert != "system");
}

bool TlsSession::Impl::set_up_context() {
    context.reset(SSL_CTX_new(TLS_client_method()));
    if (context == nullptr) {
        return fail_by_openssl();
    }
    SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    const int least = options.min_version == TlsVersion::tls_1_3 ? TLS1_3_VERSION : TLS1_2_VERSION;
    if (SSL_CTX_set_min_proto_version(context.get(), least) != 1) {
        return fail_by_openssl();
    }
    if (verifies()) {
        if (FileProblem problem = load_authorities(context.get(), options.root_cert)) {
            return fail(FailureClass::configuration, *std::move(problem));
        }
        SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, on_verified);
    }
    if (FileProblem problem = load_identity(context.get(), options.cert, options.key)) {
        return fail(FailureClass::configuration, *std::move(problem));
    }
    SSL_CTX_set_client_cert_cb(context.get(), on_certificate_wanted);
    return true;
}

bool TlsSession::Impl::set_up_session() {
    ssl.reset(SSL_new(context.get()));
    if (ssl == nullptr) {
        return fail_by_openssl();
    }
    incoming = BIO_new(BIO_s_mem());
    outgoing = BIO_new(BIO_s_mem());
    if (incoming == nullptr || outgoing == nullptr) {
        BIO_free(incoming);
        BIO_free(outgoing);
        incoming = outgoing = nullptr;
        return fail_by_openssl();
    }
    BIO_set_mem_eof_return(incoming, -1);  // empty: more may come
    SSL_set_bio(ssl.get(), incoming, outgoing);
    SSL_set_app_data(ssl.get(), this);
    SSL_set_connect_state(ssl.get());
    return true;
}

bool TlsSession::Impl::set_up_verification() {
    const bool address = is_address(name);
    if (!address && SSL_set_tlsext_host_name(ssl.get(), name.c_str()) != 1) {
        return fail(FailureClass::configuration,
                    "\"" + name + "\" cannot be a server's name in TLS");
    }
    if (options.mode != SslMode::verify_full) {
        return true;
    }
    X509_VERIFY_PARAM* parameters = SSL_get0_param(ssl.get());
    X509_VERIFY_PARAM_set_hostflags(parameters, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    // An empty name would mean that none is verified.
    const bool is_set =
        !name.empty() &&
        (address ? X509_VERIFY_PARAM_set1_ip_asc(parameters, name.c_str()) == 1
                 : X509_VERIFY_PARAM_set1_host(parameters, name.data(), name.size()) == 1);
    return is_set || fail(FailureClass::configuration,
                          "host \"" + name + "\" cannot be verified in a certificate");
}

// What speaks no TLS is found out here: OpenSSL would call it a wrong version number.
bool TlsSession::Impl::check_first_byte(std::string_view bytes) {
    if (heard || bytes.empty()) {
        return true;
    }
    heard = true;
    if (bytes[0] == handshake_record || bytes[0] == alert_record) {
        return true;
    }
    const bool is_amqp = bytes.substr(0, 4) == "AMQP";
    return fail(FailureClass::configuration,
                "the server does not speak TLS on this port: it answered \"" +
                    quotable(bytes.substr(0, is_amqp ? 4 : bytes.size()), 20) + "\"");
}

bool TlsSession::Impl::fail(FailureClass failure_class, std::string text) {
    over = true;
    failure = {failure_class, std::move(text)};
    return false;
}

bool TlsSession::Impl::fail_by_openssl() {
    over = true;
    failure = explain_tls_failure(
        {options, name, established, certificate_wanted, verify_error, refused.get()});
    return false;
}

/// After a call of OpenSSL that was not done: false, unless it only wants more bytes.
bool TlsSession::Impl::only_wants_more(int result) {
    switch (SSL_get_error(ssl.get(), result)) {
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            return true;
        case SSL_ERROR_ZERO_RETURN:
            return fail(FailureClass::infrastructure, established
                                                          ? "the server closed the TLS session"
                                                          : "the server ended the TLS handshake");
        default:
            return fail_by_openssl();
    }
}

int TlsSession::Impl::on_verified(int is_good, X509_STORE_CTX* store) {
    auto* ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* impl = ssl == nullptr ? nullptr : static_cast<Impl*>(SSL_get_app_data(ssl));
    if (is_good == 0 && impl != nullptr && impl->verify_error == X509_V_OK) {
        impl->verify_error = X509_STORE_CTX_get_error(store);
        X509* certificate = X509_STORE_CTX_get_current_cert(store);
        if (certificate != nullptr && X509_up_ref(certificate) == 1) {
            impl->refused.reset(certificate);
        }
    }
    return is_good;
}

// Called only when we have none.
int TlsSession::Impl::on_certificate_wanted(SSL* ssl, X509** /*certificate*/, EVP_PKEY** /*key*/) {
    auto* impl = static_cast<Impl*>(SSL_get_app_data(ssl));
    if (impl != nullptr) {
        impl->certificate_wanted = true;
    }
    return 0;
}

TlsSession::TlsSession() : impl_(std::make_unique<Impl>()) {}
TlsSession::~TlsSession() = default;

TlsSession::Progress TlsSession::start(const TlsOptions& options, const std::string& host) {
    const ErrorQueue errors;
    impl_ = std::make_unique<Impl>();
    impl_->options = options;
    impl_->name = verified_name(options.server_name.empty() ? host : options.server_name);
    if (!impl_->set_up_context() || !impl_->set_up_session() || !impl_->set_up_verification()) {
        return Progress::failed;
    }
    impl_->over = false;
    return handshake();
}

bool TlsSession::feed(std::string_view bytes) {
    const ErrorQueue errors;
    if (impl_->over || !impl_->check_first_byte(bytes)) {
        return false;
    }
    std::size_t written = 0;
    if (!bytes.empty() &&
        (BIO_write_ex(impl_->incoming, bytes.data(), bytes.size(), &written) != 1 ||
         written != bytes.size())) {
        return impl_->fail(FailureClass::infrastructure, "out of memory for TLS");
    }
    return true;
}

TlsSession::Progress TlsSession::handshake() {
    if (impl_->over) {
        return Progress::failed;
    }
    if (impl_->established) {
        return Progress::done;
    }
    const ErrorQueue errors;
    const int result = SSL_do_handshake(impl_->ssl.get());
    if (result == 1) {
        impl_->established = true;
        return Progress::done;
    }
    return impl_->only_wants_more(result) ? Progress::in_progress : Progress::failed;
}

bool TlsSession::decrypt(std::string& plain) {
    if (impl_->over || !impl_->established) {
        return !impl_->over;
    }
    const ErrorQueue errors;
    char buffer[SSL3_RT_MAX_PLAIN_LENGTH];
    while (true) {
        std::size_t got = 0;
        const int result = SSL_read_ex(impl_->ssl.get(), buffer, sizeof(buffer), &got);
        if (result != 1) {
            return impl_->only_wants_more(result);
        }
        plain.append(buffer, got);
    }
}

bool TlsSession::encrypt(std::string_view plain) {
    if (impl_->over) {
        return false;
    }
    const ErrorQueue errors;
    if (!impl_->established) {
        return impl_->fail(FailureClass::infrastructure, "the TLS handshake is not done");
    }
    std::size_t written = 0;
    if (plain.empty() ||
        SSL_write_ex(impl_->ssl.get(), plain.data(), plain.size(), &written) == 1) {
        return true;
    }
    return impl_->fail_by_openssl();
}

void TlsSession::take_outgoing(std::string& bytes) {
    if (impl_->outgoing == nullptr) {
        return;
    }
    const std::size_t waiting = BIO_ctrl_pending(impl_->outgoing);
    if (waiting == 0) {
        return;
    }
    const std::size_t before = bytes.size();
    bytes.resize(before + waiting);
    std::size_t got = 0;
    if (BIO_read_ex(impl_->outgoing, bytes.data() + before, waiting, &got) != 1) {
        got = 0;
    }
    bytes.resize(before + got);
}

void TlsSession::shut_down() {
    if (impl_->over || !impl_->established) {
        return;
    }
    const ErrorQueue errors;
    // Ours goes out; the peer's is nothing to wait for.
    (void)SSL_shutdown(impl_->ssl.get());
}

const Failure& TlsSession::failure() const {
    return impl_->failure;
}

std::string TlsSession::description() const {
    if (!impl_->established) {
        return {};
    }
    return std::string(SSL_get_version(impl_->ssl.get())) + ", " + SSL_get_cipher(impl_->ssl.get());
}

}  // namespace outbox::amqp
