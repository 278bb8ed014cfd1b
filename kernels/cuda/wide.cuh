#pragma once
/// \file Accesses of 16 bytes to arrays that may begin anywhere: how many elements to leave out until all arrays are on a border, and loads and stores
/// that are narrower where an address asks for it.

#include <cstdint>

#include <elrun/hd.hpp>
#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

inline constexpr std::uint64_t four = 4;  ///< floats of one access

[[nodiscard]] ELRUN_HD inline bool on_border(const void* pointer, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// How many elements of `array` lie before its next border of `bytes`. The array lies as its type demands.
template <class T>
[[nodiscard]] ELRUN_HD std::uint64_t until_border(const T* array, std::uint64_t bytes) {
  return (bytes - reinterpret_cast<std::uintptr_t>(array) % bytes) % bytes / sizeof(T);
}

}  // namespace elrun::inline v0
