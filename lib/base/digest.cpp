#include "lib/base/digest.hpp"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cerrno>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

Sha256 sha256(std::span<const std::byte> data) {
  Sha256 out;
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

Sha256 hmac_sha256(const Key256& key, std::span<const std::byte> data) {
  Sha256 out;
  unsigned length = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
                          data.size(), reinterpret_cast<unsigned char*>(out.data()), &length);
  ELRUN_ASSERT(made != nullptr && length == out.size());
  return out;
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
