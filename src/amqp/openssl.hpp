#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace outbox::amqp {

template <auto Free>
struct OpensslFree {
    template <typename T>
    void operator()(T* object) const {
        Free(object);
    }
};

using BioPtr = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, OpensslFree<X509_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, OpensslFree<SSL_free>>;

/// OpenSSL's queue of errors is one for the process, and the server's own: ours is empty before and
/// after each use.
class ErrorQueue {
  public:
    ErrorQueue() { ERR_clear_error(); }
    ~ErrorQueue() { ERR_clear_error(); }
    ErrorQueue(const ErrorQueue&) = delete;
    ErrorQueue& operator=(const ErrorQueue&) = delete;
};

/// The words for an error code of the queue.
std::string openssl_reason(unsigned long code);

}  // namespace outbox::amqp
