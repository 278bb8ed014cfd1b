#include "tests/support/certificates.hpp"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace elrun::test {
namespace {

void demand(bool so, const char* what) {
  if (!so) throw std::runtime_error(what);
}

template <class Write>
std::string pem_of(Write write) {
  const std::unique_ptr<BIO, void (*)(BIO*)> out{BIO_new(BIO_s_mem()), [](BIO* b) { BIO_free_all(b); }};
  demand(write(out.get()) == 1, "write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string path_in(const std::string& directory, const std::string& name, const char* ending) {
  std::string path = directory;
  path.append("/").append(name).append(ending);
  return path;
}

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

Key make_key() {
  Key key{EVP_EC_gen("P-256"), EVP_PKEY_free};
  demand(key != nullptr, "make a key");
  return key;
}

void add(X509* to, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  demand(extension != nullptr, "make an extension");
  X509_add_ext(to, extension, -1);
  X509_EXTENSION_free(extension);
}

// By `issuer`, or by itself without one.
Certificate make_certificate(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                             const std::vector<std::string>& hosts, long valid_seconds) {
  Certificate made{X509_new(), X509_free};
  X509_set_version(made.get(), 2);
  std::uint32_t serial = 0;
  demand(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "draw a serial number");
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -86400);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), valid_seconds);
  X509_set_pubkey(made.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()),
                             -1, -1, 0);
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer != nullptr ? issuer : made.get()));
  add(made.get(), issuer != nullptr ? issuer : made.get(), NID_basic_constraints,
      issuer != nullptr ? "critical,CA:FALSE" : "critical,CA:TRUE");
  std::string names;
  for (const std::string& host : hosts) {
    const bool address = host.find_first_not_of("0123456789.") == std::string::npos || host.find(':') != std::string::npos;
    if (!names.empty()) names += ',';
    names += address ? "IP:" : "DNS:";
    names += host;
  }
  if (!names.empty()) add(made.get(), issuer, NID_subject_alt_name, names);
  demand(X509_sign(made.get(), issuer_key, EVP_sha256()) > 0, "sign");
  return made;
}

std::string text_of(X509* certificate) {
  return pem_of([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
}

}  // namespace

struct CertificateAuthority::Keys {
  Key key = make_key();
  Certificate certificate{nullptr, X509_free};
};

CertificateAuthority::CertificateAuthority(std::string directory, const std::string& name)
    : directory_{std::move(directory)}, file_{path_in(directory_, name, ".crt")}, keys_{std::make_unique<Keys>()} {
  keys_->certificate = make_certificate(name, keys_->key.get(), nullptr, keys_->key.get(), {}, 3600);
  write_file(file_, text_of(keys_->certificate.get()));
}
CertificateAuthority::~CertificateAuthority() = default;

CertificateFiles CertificateAuthority::sign(const std::string& name, const std::vector<std::string>& for_hosts, long valid_seconds) const {
  const Key key = make_key();
  const Certificate certificate = make_certificate(name, key.get(), keys_->certificate.get(), keys_->key.get(), for_hosts, valid_seconds);
  CertificateFiles files{file_, path_in(directory_, name, ".crt"), path_in(directory_, name, ".key")};
  write_file(files.key, pem_of([&](BIO* out) { return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr); }));
  write_file(files.certificate, text_of(certificate.get()));
  return files;
}

void write_file(const std::string& path, const std::string& text, unsigned mode) {
  const std::string beside = path + ".new";
  {
    std::ofstream out{beside, std::ios::binary};
    out << text;
    demand(out.good(), "write a file");
  }
  demand(::chmod(beside.c_str(), mode) == 0 && std::rename(beside.c_str(), path.c_str()) == 0, "put a file in place");
}

}  // namespace elrun::test
