#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

// Certificates for tests, made by OpenSSL's functions when they are needed.
namespace certificates {

/// What a certificate says.
struct Request {
    std::string common_name;
    std::vector<std::string> alternative_names;  ///< "DNS:x", "IP:127.0.0.1"
    bool authority = false;
    int valid_from_days = -1;  ///< from now
    int valid_to_days = 30;
};

/// A certificate with its key.
class Identity {
  public:
    /// Signed by `issuer`, or by itself.
    explicit Identity(const Request& request, const Identity* issuer = nullptr);

    X509* certificate() const { return certificate_.get(); }
    EVP_PKEY* key() const { return key_.get(); }
    std::string certificate_pem() const;
    std::string key_pem(const std::string& passphrase = {}) const;

  private:
    std::shared_ptr<EVP_PKEY> key_;
    std::shared_ptr<X509> certificate_;
};

/// A directory that is removed with what is in it.
class Directory {
  public:
    Directory();
    ~Directory();
    Directory(const Directory&) = delete;
    Directory& operator=(const Directory&) = delete;

    /// Writes a file and gives its path.
    std::string write(const std::string& name, const std::string& bytes, int mode = 0600) const;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace certificates
