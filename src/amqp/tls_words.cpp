#include "amqp/tls_words.hpp"

#include <arpa/inet.h>
#include <openssl/sslerr.h>
#include <openssl/tls1.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <vector>

#include "amqp/openssl.hpp"

namespace outbox::amqp {

namespace {

constexpr std::size_t max_names = 8;

using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>>;

std::string_view bytes_of(const ASN1_STRING* text) {
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
            static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string text_of_address(const ASN1_STRING* address) {
    char text[INET6_ADDRSTRLEN] = "?";
    const std::string_view bytes = bytes_of(address);
    if (bytes.size() == 4 || bytes.size() == 16) {
        ::inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
    }
    return text;
}

std::string common_name(const X509* certificate) {
    const X509_NAME* subject = X509_get_subject_name(certificate);
    const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (index < 0) {
        return {};
    }
    return quotable(bytes_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index))));
}

/// The hosts that a certificate is for, as the verification sees them: the common name counts only
/// where no host name is among the alternative names.
std::vector<std::string> hosts_of(const X509* certificate) {
    std::vector<std::string> hosts;
    bool has_host_name = false;
    const GeneralNamesPtr names(static_cast<GENERAL_NAMES*>(
        X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
    for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); i++) {
        const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
        if (name->type == GEN_DNS) {
            has_host_name = true;
            hosts.push_back(quotable(bytes_of(name->d.dNSName)));
        } else if (name->type == GEN_IPADD) {
            hosts.push_back(text_of_address(name->d.iPAddress));
        }
    }
    if (!has_host_name) {
        std::string name = common_name(certificate);
        if (!name.empty()) {
            hosts.push_back(std::move(name));
        }
    }
    return hosts;
}

std::string list_of(const std::vector<std::string>& hosts) {
    std::string text;
    for (std::size_t i = 0; i < hosts.size() && i < max_names; i++) {
        text += (i == 0 ? "\"" : ", \"") + hosts[i] + "\"";
    }
    if (hosts.size() > max_names) {
        text += " and " + std::to_string(hosts.size() - max_names) + " more";
    }
    return text;
}

std::string text_of_name(const X509_NAME* name) {
    const BioPtr writer(BIO_new(BIO_s_mem()));
    if (writer == nullptr || name == nullptr ||
        X509_NAME_print_ex(writer.get(), name, 0, XN_FLAG_RFC2253) < 0) {
        return "?";
    }
    char* text = nullptr;
    const long length = BIO_get_mem_data(writer.get(), &text);
    return quotable({text, static_cast<std::size_t>(length > 0 ? length : 0)}, 200);
}

std::string text_of_time(const ASN1_TIME* time) {
    std::tm fields{};
    if (time == nullptr || ASN1_TIME_to_tm(time, &fields) != 1) {
        return "?";
    }
    char text[64];
    std::snprintf(text, sizeof(text), "%04d-%02d-%02d %02d:%02d:%02d UTC", fields.tm_year + 1900,
                  fields.tm_mon + 1, fields.tm_mday, fields.tm_hour, fields.tm_min, fields.tm_sec);
    return text;
}

std::string authorities_of(const TlsOptions& options) {
    return options.root_cert.empty() || options.root_cert == "system"
               ? "trusted are the system's authorities"
               : "trusted are the authorities of file \"" + options.root_cert + "\"";
}

std::string explain_verification(const TlsContext& context) {
    const X509* certificate = context.refused;
    const int error = context.verify_error;
    if (certificate != nullptr &&
        (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH)) {
        const std::vector<std::string> hosts = hosts_of(certificate);
        return "the server's certificate is not for host \"" + context.name + "\": it " +
               (hosts.empty() ? "names no host" : "is for " + list_of(hosts));
    }
    std::string text = "could not verify the server's certificate: ";
    text += X509_verify_cert_error_string(error);
    if (certificate == nullptr) {
        return text;
    }
    if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
        text += " on " + text_of_time(X509_get0_notAfter(certificate));
    } else if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
        text += " before " + text_of_time(X509_get0_notBefore(certificate));
    }
    return text + " (subject \"" + text_of_name(X509_get_subject_name(certificate)) +
           "\", issuer \"" + text_of_name(X509_get_issuer_name(certificate)) + "\"; " +
           authorities_of(context.options) + ")";
}

/// The alert that the server has sent, if the error is one.
std::optional<int> alert_of(unsigned long code) {
    const int reason = ERR_GET_REASON(code);
    if (ERR_GET_LIB(code) != ERR_LIB_SSL || reason < SSL_AD_REASON_OFFSET ||
        reason > SSL_AD_REASON_OFFSET + 255) {
        return std::nullopt;
    }
    return reason - SSL_AD_REASON_OFFSET;
}

/// Alerts about our certificate.
bool is_about_certificate(int alert) {
    return alert == SSL_AD_BAD_CERTIFICATE || alert == SSL_AD_UNSUPPORTED_CERTIFICATE ||
           alert == SSL_AD_CERTIFICATE_REVOKED || alert == SSL_AD_CERTIFICATE_EXPIRED ||
           alert == SSL_AD_CERTIFICATE_UNKNOWN || alert == SSL_AD_UNKNOWN_CA;
}

/// Alerts that come again until somebody changes a setting, here or there.
bool is_configuration(int alert) {
    return is_about_certificate(alert) || alert == SSL_AD_CERTIFICATE_REQUIRED ||
           alert == SSL_AD_HANDSHAKE_FAILURE || alert == SSL_AD_ACCESS_DENIED ||
           alert == SSL_AD_PROTOCOL_VERSION || alert == SSL_AD_INSUFFICIENT_SECURITY ||
           alert == SSL_AD_UNRECOGNIZED_NAME || alert == SSL_AD_NO_APPLICATION_PROTOCOL;
}

/// OpenSSL calls the younger alerts of TLS 1.3 unknown.
std::string words_of(int alert) {
    switch (alert) {
        case SSL_AD_MISSING_EXTENSION:
            return "missing extension";
        case SSL_AD_CERTIFICATE_REQUIRED:
            return "certificate required";
        default: {
            const std::string words = SSL_alert_desc_string_long(alert);
            return words == "unknown" ? "alert " + std::to_string(alert) : words;
        }
    }
}

const char* least_version(const TlsOptions& options) {
    return options.min_version == TlsVersion::tls_1_3 ? "TLS 1.3" : "TLS 1.2";
}

Failure explain_alert(int alert, const TlsContext& context) {
    Failure failure;
    failure.failure_class =
        is_configuration(alert) ? FailureClass::configuration : FailureClass::infrastructure;
    const std::string words = words_of(alert);
    if (alert == SSL_AD_CERTIFICATE_REQUIRED ||
        (context.certificate_wanted &&
         (alert == SSL_AD_HANDSHAKE_FAILURE || is_about_certificate(alert)))) {
        failure.text =
            "the server asks for a client certificate (sslcert), and none is set: " + words;
    } else if (is_about_certificate(alert) && !context.options.cert.empty()) {
        failure.text =
            "the server refused the client certificate \"" + context.options.cert + "\": " + words;
    } else if (alert == SSL_AD_PROTOCOL_VERSION) {
        failure.text = std::string("the server speaks no version of TLS that is allowed here (") +
                       least_version(context.options) + " at least): " + words;
    } else {
        failure.text = std::string(context.established ? "the server ended the TLS session: "
                                                       : "the server refused the TLS handshake: ") +
                       words;
    }
    return failure;
}

bool is_version_error(unsigned long code) {
    if (ERR_GET_LIB(code) != ERR_LIB_SSL) {
        return false;
    }
    switch (ERR_GET_REASON(code)) {
        case SSL_R_UNSUPPORTED_PROTOCOL:
        case SSL_R_WRONG_SSL_VERSION:
        case SSL_R_VERSION_TOO_LOW:
        case SSL_R_VERSION_TOO_HIGH:
        case SSL_R_NO_PROTOCOLS_AVAILABLE:
            return true;
        default:
            return false;
    }
}

bool is_verification_error(unsigned long code) {
    return ERR_GET_LIB(code) == ERR_LIB_SSL &&
           ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED;
}

}  // namespace

Failure explain_tls_failure(const TlsContext& context) {
    const unsigned long first = ERR_peek_error();
    while (const unsigned long code = ERR_get_error()) {
        if (is_verification_error(code)) {
            return {FailureClass::configuration, explain_verification(context)};
        }
        if (const std::optional<int> alert = alert_of(code)) {
            return explain_alert(*alert, context);
        }
        if (is_version_error(code)) {
            return {FailureClass::configuration,
                    std::string("the server speaks no version of TLS that is allowed here (") +
                        least_version(context.options) + " at least): " + openssl_reason(code)};
        }
    }
    return {FailureClass::infrastructure, "TLS error: " + openssl_reason(first)};
}

std::string quotable(std::string_view text, std::size_t limit) {
    std::string shown;
    for (const char c : text.substr(0, limit)) {
        shown += c >= ' ' && c <= '~' && c != '"' ? c : '?';
    }
    if (text.size() > limit) {
        shown += "...";
    }
    return shown;
}

}  // namespace outbox::amqp
