#include "lib/base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace elrun::inline v0 {
namespace {

constexpr std::uint32_t polynomial = 0x82F63B78u;  // reflected

constexpr auto table = [] {
  std::array<std::uint32_t, 256> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
    t[i] = crc;
  }
  return t;
}();

std::uint32_t by_table(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  for (const std::byte b : data) crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint32_t>(b)) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_hardware(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  std::uint64_t wide = crc;
  while (data.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, data.data(), 8);
    wide = _mm_crc32_u64(wide, word);
    data = data.subspan(8);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (const std::byte b : data) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(b));
  return crc;
}
const bool has_hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif

// Polynomials over GF(2) as 32 x 32 bit matrices: appending zeros multiplies by a power of x.
using Matrix = std::array<std::uint32_t, 32>;

std::uint32_t times(const Matrix& m, std::uint32_t v) {
  std::uint32_t sum = 0;
  for (int i = 0; v != 0; v >>= 1, ++i)
    if (v & 1) sum ^= m[static_cast<std::size_t>(i)];
  return sum;
}

Matrix squared(const Matrix& m) {
  Matrix s{};
  for (std::size_t i = 0; i < 32; ++i) s[i] = times(m, m[i]);
  return s;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  crc = ~crc;
#if defined(__x86_64__)
  crc = has_hardware ? by_hardware(data, crc) : by_table(data, crc);
#else
  crc = by_table(data, crc);
#endif
  return ~crc;
}

std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t length_b) noexcept {
  Matrix shift{};  // by one zero bit, then squared: 2, 4, 8 bits = one byte
  shift[0] = polynomial;
  for (std::size_t i = 1; i < 32; ++i) shift[i] = 1u << (i - 1);
  shift = squared(squared(squared(shift)));
  for (; length_b != 0; length_b >>= 1) {
    if (length_b & 1) a = times(shift, a);
    shift = squared(shift);
  }
  return a ^ b;
}

}  // namespace elrun::inline v0
