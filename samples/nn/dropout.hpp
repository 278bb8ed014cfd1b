#pragma once
/// \file Which elements dropout keeps: by the numbers of a slot and an element's place, so that a slot drops the same wherever it is computed.

#include <cstddef>
#include <cstdint>

#include <elrun/random.hpp>

namespace nn {

/// A value, for host and device. `dropped` of 256: 0 keeps everything as it is, which is what a test wants.
struct Dropout {
  elrun::RandomStream random{};
  std::uint32_t dropped = 0;

  /// What element `index` is multiplied with. Each has a byte of random numbers: a quarter and a half need no more. Its word is chosen without an array that an
  /// index leads into, which a kernel would keep in the device's memory.
  [[nodiscard]] ELRUN_HD constexpr float factor(std::uint64_t index) const {
    const elrun::Philox4x32::Counter four = random.four_bits(index / 16);
    const std::uint64_t word = index / 4 % 4;
    return of(word < 2 ? (word == 0 ? four[0] : four[1]) : (word == 2 ? four[2] : four[3]), index % 4);
  }
  /// The same of elements 16 * `block` to 16 * `block` + 15, for the price of one.
  ELRUN_HD constexpr void factors(std::uint64_t block, float* out) const {
    const elrun::Philox4x32::Counter bits = random.four_bits(block);
    for (std::size_t i = 0; i < 16; ++i) out[i] = of(bits[i / 4], i % 4);
  }

 private:
  [[nodiscard]] ELRUN_HD constexpr float of(std::uint32_t bits, std::uint64_t byte) const {
    return (bits >> (byte * 8) & 255) >= dropped ? 256.0f / static_cast<float>(256 - dropped) : 0.0f;
  }
};

}  // namespace nn
