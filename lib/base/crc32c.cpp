#include "lib/base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace elrun::inline v0 {
namespace {

constexpr std::uint32_t polynomial = 0x82F63B78u;  // reflected

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
    t[i] = crc;
  }
  return t;
}();

std::uint32_t by_table(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  for (const std::byte b : data) crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<std::uint32_t>(b)) & 0xFF];
  return crc;
}

// Polynomials over GF(2) as 32 x 32 bit matrices: appending zeros multiplies by a power of x.
using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t times(const Matrix& m, std::uint32_t v) {
  std::uint32_t sum = 0;
  for (int i = 0; v != 0; v >>= 1, ++i)
    if (v & 1) sum ^= m[static_cast<std::size_t>(i)];
  return sum;
}

constexpr Matrix squared(const Matrix& m) {
  Matrix s{};
  for (std::size_t i = 0; i < 32; ++i) s[i] = times(m, m[i]);
  return s;
}

/// What one more zero bit does to a checksum's register.
constexpr Matrix zero_bit = [] {
  Matrix shift{};
  shift[0] = polynomial;
  for (std::size_t i = 1; i < 32; ++i) shift[i] = 1u << (i - 1);
  return shift;
}();

/// What 2^i zero bytes do to it, for each i.
constexpr auto zero_bytes = [] {
  std::array<Matrix, 64> powers{};
  powers[0] = squared(squared(squared(zero_bit)));  // 2, 4, 8 bits: one byte
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = squared(powers[i - 1]);
  return powers;
}();

#if defined(__x86_64__)
// The instruction gives its result three cycles later and can be begun in each of them: three runs of bytes at the same time
// take as long as one. Joining them is a shift of the register over a run of zeros, looked up byte by byte. Runs are short, so that memory sees one reader that goes
// straight on, and fetches ahead for it: from memory, runs of 1024 bytes take two and a half times as long.
constexpr std::size_t run = 256;

constexpr auto after_run = [] {
  Matrix shift = zero_bit;
  for (std::size_t bits = 1; bits < 8 * run; bits *= 2) shift = squared(shift);
  std::array<std::array<std::uint32_t, 256>, 4> t{};
  for (std::uint32_t place = 0; place < 4; ++place)
    for (std::uint32_t byte = 0; byte < 256; ++byte) t[place][byte] = times(shift, byte << (8 * place));
  return t;
}();
static_assert((run & (run - 1)) == 0 && run % 8 == 0);

std::uint32_t over_run(std::uint32_t crc) noexcept {
  return after_run[0][crc & 0xFF] ^ after_run[1][(crc >> 8) & 0xFF] ^ after_run[2][(crc >> 16) & 0xFF] ^ after_run[3][crc >> 24];
}

std::uint64_t word_at(const std::byte* from) noexcept {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) std::uint32_t by_hardware(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  while (data.size() >= 3 * run) {
    std::uint64_t first = crc, second = 0, third = 0;
    for (std::size_t at = 0; at < run; at += 8) {
      first = _mm_crc32_u64(first, word_at(data.data() + at));
      second = _mm_crc32_u64(second, word_at(data.data() + run + at));
      third = _mm_crc32_u64(third, word_at(data.data() + 2 * run + at));
    }
    crc = over_run(over_run(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second)) ^ static_cast<std::uint32_t>(third);
    data = data.subspan(3 * run);
  }
  std::uint64_t wide = crc;
  for (; data.size() >= 8; data = data.subspan(8)) wide = _mm_crc32_u64(wide, word_at(data.data()));
  crc = static_cast<std::uint32_t>(wide);
  for (const std::byte b : data) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(b));
  return crc;
}
const bool has_hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif

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

Crc32cShift::Crc32cShift(std::uint64_t length) noexcept {
  for (std::size_t i = 0; i < shift_.size(); ++i) shift_[i] = 1u << i;
  for (std::size_t i = 0; length != 0; ++i, length >>= 1)
    if (length & 1)
      for (std::uint32_t& column : shift_) column = times(zero_bytes[i], column);
}

std::uint32_t Crc32cShift::combine(std::uint32_t a, std::uint32_t b) const noexcept { return times(shift_, a) ^ b; }

std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t length_b) noexcept {
  return Crc32cShift{length_b}.combine(a, b);
}

}  // namespace elrun::inline v0
