#include "amqp/tls_files.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "amqp/openssl.hpp"

namespace outbox::amqp {

namespace {

// The bundles of whole systems have a fifth of it.
constexpr std::size_t max_file_bytes = 1024 * 1024;

/// A file's bytes, wiped when they are no longer needed: they may be a private key.
struct Contents {
    std::string bytes;
    uid_t owner = 0;
    mode_t mode = 0;

    Contents() = default;
    ~Contents() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    BioPtr reader() const {
        return BioPtr(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
    }
};

std::string quoted(const char* kind, const std::string& path) {
    return std::string(kind) + " file \"" + path + "\"";
}

FileProblem read_open_file(int fd, const std::string& name, Contents& contents) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return "could not read " + name + ": " + std::strerror(errno);
    }
    if (!S_ISREG(status.st_mode)) {
        return name + " is not a regular file";
    }
    contents.owner = status.st_uid;
    contents.mode = status.st_mode;
    // One allocation, so that no copy of a key is left behind.
    contents.bytes.resize(max_file_bytes + 1);
    std::size_t size = 0;
    while (size < contents.bytes.size()) {
        const ssize_t got = ::read(fd, contents.bytes.data() + size, contents.bytes.size() - size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return "could not read " + name + ": " + std::strerror(errno);
        }
        if (got == 0) {
            break;
        }
        size += static_cast<std::size_t>(got);
    }
    if (size > max_file_bytes) {
        return name + " is larger than 1 MB";
    }
    contents.bytes.resize(size);
    return std::nullopt;
}

FileProblem read_file(const char* kind, const std::string& path, Contents& contents) {
    const std::string name = quoted(kind, path);
    // O_NONBLOCK: a named pipe must not make us wait.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return "could not open " + name + ": " + std::strerror(errno);
    }
    FileProblem problem = read_open_file(fd, name, contents);
    ::close(fd);
    return problem;
}

// Instead of OpenSSL's own, which asks on the terminal.
int refuse_passphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
    *static_cast<bool*>(asked) = true;
    return -1;
}

bool is_end_of_pem(unsigned long code) {
    return ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
}

// The decoders of OpenSSL 3 say no more when none of them finds a key.
bool is_no_key(unsigned long code) {
    return is_end_of_pem(code) ||
           (ERR_GET_LIB(code) == ERR_LIB_OSSL_DECODER && ERR_GET_REASON(code) == ERR_R_UNSUPPORTED);
}

/// Gives each certificate of a PEM text to `take`, which returns whether it could be used.
template <typename Take>
FileProblem each_certificate(const std::string& name, const Contents& contents, Take take) {
    const BioPtr reader = contents.reader();
    bool asked = false;
    int count = 0;
    while (reader != nullptr) {
        CertificatePtr certificate(
            PEM_read_bio_X509_AUX(reader.get(), nullptr, refuse_passphrase, &asked));
        if (certificate == nullptr) {
            if (count > 0 && is_end_of_pem(ERR_peek_last_error())) {
                return std::nullopt;
            }
            break;
        }
        if (!take(std::move(certificate), count)) {
            break;
        }
        count++;
        ERR_clear_error();
    }
    if (asked) {
        return name + " is encrypted";
    }
    const unsigned long code = ERR_peek_error();
    return is_end_of_pem(code) ? name + " contains no certificate in PEM format"
                               : "could not use " + name + ": " + openssl_reason(code);
}

FileProblem load_chain(SSL_CTX* context, const std::string& path) {
    Contents contents;
    if (FileProblem problem = read_file("certificate", path, contents)) {
        return problem;
    }
    return each_certificate(
        quoted("certificate", path), contents, [&](CertificatePtr certificate, int index) {
            return index == 0 ? SSL_CTX_use_certificate(context, certificate.get()) == 1
                              : SSL_CTX_add1_chain_cert(context, certificate.get()) == 1;
        });
}

// libpq's rule and libpq's words.
FileProblem check_permissions(const std::string& name, const Contents& contents) {
    const mode_t forbidden =
        contents.owner == 0 ? (S_IWGRP | S_IXGRP | S_IRWXO) : (S_IRWXG | S_IRWXO);
    if ((contents.mode & forbidden) == 0) {
        return std::nullopt;
    }
    return name +
           " has group or world access; file must have permissions u=rw (0600) or less if owned by "
           "the current user, or permissions u=rw,g=r (0640) or less if owned by root";
}

FileProblem load_key(SSL_CTX* context, const std::string& path, const std::string& cert) {
    const std::string name = quoted("private key", path);
    Contents contents;
    if (FileProblem problem = read_file("private key", path, contents)) {
        return problem;
    }
    if (FileProblem problem = check_permissions(name, contents)) {
        return problem;
    }
    const BioPtr reader = contents.reader();
    bool asked = false;
    const KeyPtr key(reader == nullptr ? nullptr
                                       : PEM_read_bio_PrivateKey(reader.get(), nullptr,
                                                                 refuse_passphrase, &asked));
    if (asked) {
        return name + " is encrypted, and there is nobody to ask for its passphrase";
    }
    if (key == nullptr) {
        const unsigned long code = ERR_peek_error();
        return is_no_key(code) ? name + " contains no private key in PEM format"
                               : "could not use " + name + ": " + openssl_reason(code);
    }
    if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        const unsigned long code = ERR_peek_error();
        const bool differs = ERR_GET_LIB(code) == ERR_LIB_X509 &&
                             (ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH ||
                              ERR_GET_REASON(code) == X509_R_KEY_TYPE_MISMATCH);
        return differs ? name + " does not belong to " + quoted("certificate", cert)
                       : "could not use " + name + ": " + openssl_reason(code);
    }
    return std::nullopt;
}

}  // namespace

std::string openssl_reason(unsigned long code) {
    if (code == 0) {
        return "no reason was given";
    }
    if (ERR_SYSTEM_ERROR(code)) {
        return std::strerror(static_cast<int>(ERR_GET_REASON(code)));
    }
    const char* reason = ERR_reason_error_string(code);
    return reason != nullptr ? reason : "OpenSSL error " + std::to_string(code);
}

FileProblem load_authorities(SSL_CTX* context, const std::string& path) {
    const ErrorQueue errors;
    if (path.empty() || path == "system") {
        if (SSL_CTX_set_default_verify_paths(context) != 1) {
            return "could not use the system's trusted certificates: " +
                   openssl_reason(ERR_peek_error());
        }
        return std::nullopt;
    }
    Contents contents;
    if (FileProblem problem = read_file("root certificate", path, contents)) {
        return problem;
    }
    X509_STORE* store = SSL_CTX_get_cert_store(context);
    return each_certificate(quoted("root certificate", path), contents,
                            [&](CertificatePtr certificate, int /*index*/) {
                                return X509_STORE_add_cert(store, certificate.get()) == 1;
                            });
}

FileProblem load_identity(SSL_CTX* context, const std::string& cert, const std::string& key) {
    const ErrorQueue errors;
    if (cert.empty()) {
        return key.empty() ? std::nullopt
                           : FileProblem(quoted("private key", key) +
                                         " is given without a certificate (sslcert)");
    }
    if (FileProblem problem = load_chain(context, cert)) {
        return problem;
    }
    ERR_clear_error();
    return load_key(context, key.empty() ? cert : key, cert);
}

}  // namespace outbox::amqp
