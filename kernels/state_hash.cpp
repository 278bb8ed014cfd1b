#include "kernels/state_hash.hpp"

#include <bit>
#include <cstring>

namespace elrun::inline v0 {

std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first_word, std::uint64_t salt) {
  static_assert(std::endian::native == std::endian::little);
  const std::uint64_t whole = data.size() / 8;
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < whole; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data.data() + i * 8, 8);
    sum += Mix{}(word, salt + first_word + i);
  }
  if (const std::size_t rest = data.size() % 8; rest != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + whole * 8, rest);
    sum += Mix{}(word, salt + first_word + whole);
  }
  return sum;
}

}  // namespace elrun::inline v0
