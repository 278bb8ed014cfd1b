#pragma once
/// \file The state hash: a sum modulo 2^64 over words mixed with their places. A sum does not depend on order, so any
/// cut of the state over ranks, threads and blocks gives the same hash; the place makes an exchange of two words show.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>

#include "kernels/arithmetic.hpp"
#include "kernels/isa.hpp"

namespace elrun::inline v0 {

/// Hashes a word with its place.
struct Mix {
  [[nodiscard]] ELRUN_HD ELRUN_INLINE constexpr std::uint64_t operator()(std::uint64_t word, std::uint64_t index) const noexcept {
    std::uint64_t x = word ^ (0x9e3779b97f4a7c15u * (index + 1));  // then splitmix64's finaliser: a weaker one lets
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;                     // pairs of flipped top bits cancel in the sum
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
};

/// What a kind of state ("parameter", "exp_avg") adds to its indices, so that kinds cannot stand for each other:
/// FNV-1a of the name, mixed.
[[nodiscard]] constexpr std::uint64_t salt_of(std::string_view kind) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : kind) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix{}(hash, 0);
}

/// The sum of mix(word, salt + index) over the little-endian 64-bit words of `data`, whose first word has the index
/// `first_word` in the whole state. A last word that is cut short counts as filled up with zeros.
[[nodiscard]] std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first_word, std::uint64_t salt,
                                    Isa isa = isa_of_this_machine());
/// Adds it to `*sum`, in the device's memory. `data` is aligned to 8 bytes.
void mix_sum_async(DeviceSpan<const std::byte> data, std::uint64_t first_word, std::uint64_t salt, std::uint64_t* sum, Stream stream);

}  // namespace elrun::inline v0
