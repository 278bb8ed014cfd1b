#include "kernels/state_hash.hpp"

#include <bit>
#include <cstring>

namespace elrun::inline v0 {

std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first_word, std::uint64_t salt, Isa isa) {
  static_assert(std::endian::native == std::endian::little);
  const std::uint64_t whole = data.size() / 8;
  const std::byte* const words = data.data();
  const std::uint64_t first = salt + first_word;
  std::uint64_t sum = 0;
  std::uint64_t* const out = &sum;
  run_with_wide_products(
      isa, ELRUN_LOOP {
        std::uint64_t all = 0;
        for (std::uint64_t i = 0; i < whole; ++i) {
          std::uint64_t word;
          std::memcpy(&word, words + i * 8, 8);
          all += Mix{}(word, first + i);
        }
        *out = all;
      });
  if (const std::size_t rest = data.size() % 8; rest != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + whole * 8, rest);
    sum += Mix{}(word, salt + first_word + whole);
  }
  return sum;
}

}  // namespace elrun::inline v0
