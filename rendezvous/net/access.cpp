// Each file is looked at with OpenSSL before gRPC gets it: gRPC would say of a wrong one that a handshake failed, and
// would say it to the other side as well.
#include "rendezvous/net/access.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

template <class T, auto release>
struct Releaser {
  void operator()(T* handle) const { release(handle); }
};
using Bio = std::unique_ptr<BIO, Releaser<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Releaser<X509, X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Releaser<EVP_PKEY, EVP_PKEY_free>>;

Bio reader_of(const std::string& pem) { return Bio{BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))}; }
// An encrypted key is refused, and nobody is asked for its password on the terminal of a job.
int no_password(char*, int, int, void*) { return -1; }
Certificate first_certificate(const std::string& pem) {
  return Certificate{PEM_read_bio_X509(reader_of(pem).get(), nullptr, no_password, nullptr)};
}
PrivateKey private_key(const std::string& pem) {
  return PrivateKey{PEM_read_bio_PrivateKey(reader_of(pem).get(), nullptr, no_password, nullptr)};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Reads what Access names, and gathers all that is wrong.
class Reader {
 public:
  std::string file(std::string_view name, const std::string& path) {
    auto bytes = files_.read_all(path, access_file_max);
    if (bytes.ok()) return std::string{as_text(*bytes)};
    problem(fmt::format("{}: {}", name, bytes.failure().what));
    return {};
  }
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }

 private:
  PosixFiles files_;
  std::vector<std::string> problems_;
};

void read_tls(const Access& access, AccessPeer peer, Reader& reader, Credentials& out) {
  const bool own = !access.certificate_file.empty() || !access.key_file.empty();
  if (access.ca_file.empty())
    reader.problem("cacert is missing: TLS needs the CA whose certificates are believed; give all of cacert, cert and key");
  if (own && access.certificate_file.empty())
    reader.problem(fmt::format("cert is missing: the certificate that belongs to key={}", access.key_file));
  if (own && access.key_file.empty())
    reader.problem(fmt::format("key is missing: the private key that belongs to cert={}", access.certificate_file));
  if (!own && peer == AccessPeer::coordinator)
    reader.problem("cert and key are missing: between elrun's processes both sides show a certificate");

  if (!access.ca_file.empty()) {
    out.ca = reader.file("cacert", access.ca_file);
    if (!out.ca.empty() && !first_certificate(out.ca))
      reader.problem(fmt::format("cacert: {} holds no certificate in PEM form", access.ca_file));
  }
  Certificate certificate;
  if (!access.certificate_file.empty()) {
    out.certificate = reader.file("cert", access.certificate_file);
    certificate = first_certificate(out.certificate);
    if (!out.certificate.empty() && !certificate)
      reader.problem(fmt::format("cert: {} holds no certificate in PEM form", access.certificate_file));
  }
  if (!access.key_file.empty()) {
    out.key = Secret{reader.file("key", access.key_file)};
    const PrivateKey key = private_key(out.key.reveal());
    if (!out.key.empty() && !key)
      reader.problem(fmt::format("key: {} holds no private key in PEM form that can be read without a password", access.key_file));
    if (key && certificate && X509_check_private_key(certificate.get(), key.get()) != 1)
      reader.problem(fmt::format("key: {} does not belong to the certificate in {}", access.key_file, access.certificate_file));
  }
  ERR_clear_error();
}

void read_token(const Access& access, Reader& reader, Credentials& out) {
  if (!access.token.empty() && !access.token_file.empty()) return reader.problem("token and token_file are both given; keep token_file");
  std::string text = access.token.reveal();
  std::string source = "token";
  if (!access.token_file.empty()) {
    const std::size_t before = reader.problems().size();
    text = reader.file("token_file", access.token_file);
    source = fmt::format("token_file: {}", access.token_file);
    if (reader.problems().size() > before) return;
  }
  const std::string_view token = trimmed(text);
  if (token.empty()) reader.problem(fmt::format("{} is empty", source));
  else if (token.size() > token_size_max)
    reader.problem(fmt::format("{} has {} bytes, more than {}", source, token.size(), token_size_max));
  else if (std::any_of(token.begin(), token.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    reader.problem(fmt::format("{} has a line end or another control character inside", source));
  out.token = Secret{std::string{token}};
}

Sha256 digest_of(std::string_view text) { return sha256(std::as_bytes(std::span{text})); }

}  // namespace

Result<Credentials> read_credentials(const Access& access, AccessPeer peer) {
  Reader reader;
  Credentials out;
  if (access.has_tls()) read_tls(access, peer, reader, out);
  if (access.has_token()) read_token(access, reader, out);
  if (!reader.problems().empty()) return invalid(reader.problems());
  return out;
}

std::vector<std::string> access_warnings(const Access& access, std::int64_t wall_seconds) {
  std::vector<std::string> warnings;
  for (const auto& [name, path] : {std::pair{"key", &access.key_file}, std::pair{"token_file", &access.token_file}}) {
    struct stat info {};
    if (!path->empty() && ::stat(path->c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0)
      warnings.push_back(fmt::format("{}: every user of this machine can read {}; chmod 600 it", name, *path));
  }
  const auto credentials = read_credentials(access, AccessPeer::etcd);
  if (!credentials) return warnings;
  if (!credentials->token.empty() && credentials->token.reveal().size() < token_size_advised)
    warnings.push_back(fmt::format("the token has {} bytes and can be guessed; 32 random ones cannot: head -c 32 /dev/urandom | base64",
                                   credentials->token.reveal().size()));
  if (const Certificate certificate = first_certificate(credentials->certificate)) {
    auto now = static_cast<std::time_t>(wall_seconds), soon = static_cast<std::time_t>(wall_seconds + 7 * 86400);
    if (X509_cmp_time(X509_get0_notBefore(certificate.get()), &now) > 0)
      warnings.push_back(fmt::format("cert: {} is not valid yet, by this machine's clock", access.certificate_file));
    if (X509_cmp_time(X509_get0_notAfter(certificate.get()), &now) < 0)
      warnings.push_back(fmt::format("cert: {} is not valid any more, by this machine's clock", access.certificate_file));
    else if (X509_cmp_time(X509_get0_notAfter(certificate.get()), &soon) < 0)
      warnings.push_back(
          fmt::format("cert: {} ends within a week; a new one in its place is taken up without a restart", access.certificate_file));
  }
  ERR_clear_error();
  return warnings;
}

std::string open_access_warning(std::string_view endpoint) {
  return fmt::format(
      "there is neither TLS nor a token: anyone who can reach {} can join this job, read its data, corrupt its results and end it. Give all nodes a token "
      "(ELRUN_RDZV_TOKEN_FILE), or certificates (--rdzv_conf cacert=...,cert=...,key=...), or use a network that you trust",
      endpoint);
}

std::string token_proof(const Secret& token) { return to_hex(digest_of("elrun rendezvous token: " + token.reveal())); }

std::optional<std::string> token_refusal(const Secret& wanted, std::string_view shown) {
  if (wanted.empty() && shown.empty()) return std::nullopt;
  if (wanted.empty())
    return "this node has a token and the coordinator has none: start the coordinator with the same token (ELRUN_RDZV_TOKEN_FILE, or "
           "--rdzv_conf token_file=FILE), or this node without";
  if (shown.empty())
    return "the coordinator has a token and this node has none: give this node the job's token (ELRUN_RDZV_TOKEN_FILE, or --rdzv_conf "
           "token_file=FILE)";
  // Digests of both: of one length, and their first different byte tells nothing of the proof's.
  if (equal_constant_time(digest_of(shown), digest_of(token_proof(wanted)))) return std::nullopt;
  return "this node's token is not the coordinator's: give all nodes and the coordinator the same token, or another endpoint";
}

}  // namespace elrun::inline v0
