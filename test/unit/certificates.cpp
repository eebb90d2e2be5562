#include "certificates.hpp"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace certificates {

namespace {

constexpr long day = 24 * 60 * 60;

void add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
    EXPECT_NE(extension, nullptr) << value;
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
}

std::string text_of(BIO* writer) {
    char* text = nullptr;
    const long length = BIO_get_mem_data(writer, &text);
    std::string copy(text, static_cast<std::size_t>(length));
    BIO_free(writer);
    return copy;
}

}  // namespace

Identity::Identity(const Request& request, const Identity* issuer)
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate_(X509_new(), X509_free) {
    static long serial = 1;
    X509* certificate = certificate_.get();
    X509* signer = issuer != nullptr ? issuer->certificate() : certificate;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate), request.valid_from_days * day);
    X509_gmtime_adj(X509_getm_notAfter(certificate), request.valid_to_days * day);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(request.common_name.c_str()),
                               -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(signer));
    X509_set_pubkey(certificate, key_.get());
    add_extension(certificate, signer, NID_basic_constraints,
                  request.authority ? "critical,CA:TRUE" : "CA:FALSE");
    std::string names;
    for (const std::string& name : request.alternative_names) {
        names += (names.empty() ? "" : ",") + name;
    }
    if (!names.empty()) {
        add_extension(certificate, signer, NID_subject_alt_name, names);
    }
    EXPECT_NE(X509_sign(certificate, issuer != nullptr ? issuer->key() : key_.get(), EVP_sha256()),
              0);
}

std::string Identity::certificate_pem() const {
    BIO* writer = BIO_new(BIO_s_mem());
    EXPECT_EQ(PEM_write_bio_X509(writer, certificate_.get()), 1);
    return text_of(writer);
}

std::string Identity::key_pem(const std::string& passphrase) const {
    BIO* writer = BIO_new(BIO_s_mem());
    EXPECT_EQ(PEM_write_bio_PKCS8PrivateKey(writer, key_.get(),
                                            passphrase.empty() ? nullptr : EVP_aes_256_cbc(),
                                            passphrase.empty() ? nullptr : passphrase.c_str(),
                                            static_cast<int>(passphrase.size()), nullptr, nullptr),
              1);
    return text_of(writer);
}

Directory::Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "outbox_tls_XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    path_ = made != nullptr ? made : "/nonexistent";
}

Directory::~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string Directory::write(const std::string& name, const std::string& bytes, int mode) const {
    std::string path = path_ + "/" + name;
    {
        std::ofstream file(path, std::ios::binary | std::ios::trunc);
        file << bytes;
    }
    EXPECT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
    return path;
}

}  // namespace certificates
