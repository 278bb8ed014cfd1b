// SHA256() and HMAC() of OpenSSL 3 ask its providers: libelrun, which carries what it links, would grow by 4 MB of libcrypto.a, and would read
// openssl.cnf in a process that is the user's. SHA256_Update does not; it is deprecated for that reason, and still there.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "lib/base/digest.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cerrno>
#include <initializer_list>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

Sha256 sha256_of(std::initializer_list<std::span<const std::byte>> parts) {
  Sha256 out;
  SHA256_CTX state;
  SHA256_Init(&state);
  for (const auto& part : parts) SHA256_Update(&state, part.data(), part.size());
  SHA256_Final(reinterpret_cast<unsigned char*>(out.data()), &state);
  OPENSSL_cleanse(&state, sizeof state);
  return out;
}

/// A key of at most one block, filled up with zeros, with each byte turned by `pad` (RFC 2104).
class PaddedKey {
 public:
  PaddedKey(const Key256& key, std::byte pad) {
    bytes_.fill(pad);
    for (std::size_t i = 0; i < key.size(); ++i) bytes_[i] ^= key[i];
  }
  PaddedKey(const PaddedKey&) = delete;
  PaddedKey& operator=(const PaddedKey&) = delete;
  ~PaddedKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::array<std::byte, SHA256_CBLOCK> bytes_;
};

}  // namespace

Sha256 sha256(std::span<const std::byte> data) { return sha256_of({data}); }

Sha256 hmac_sha256(const Key256& key, std::span<const std::byte> data) {
  const PaddedKey inner{key, std::byte{0x36}}, outer{key, std::byte{0x5c}};
  return sha256_of({outer.bytes(), sha256_of({inner.bytes(), data})});
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error{from_errno(errno, "draw random bytes")};
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::string to_hex(std::span<const std::byte> data) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(data.size() * 2);
  for (const std::byte b : data) {
    text += digits[static_cast<unsigned>(b) >> 4];
    text += digits[static_cast<unsigned>(b) & 15];
  }
  return text;
}

}  // namespace elrun::inline v0
