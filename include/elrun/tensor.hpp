#pragma once
/// \file Element types and views of tensors: pointer, shape, device; they own nothing.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <elrun/device.hpp>

namespace elrun::inline v0 {

/// The upper half of a float, 16 bits. Arithmetic happens in float; rounding is to nearest, ties to even.
struct bf16 {  // NOLINT: named like the type it is
  std::uint16_t bits = 0;
  friend constexpr bool operator==(const bf16&, const bf16&) = default;
};

enum class DType : std::uint8_t { f32, bf16, f64, i32, i64, u8, u32, u64 };

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::u8: return 1;
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    default: return 8;
  }
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct DTypeOf<std::uint64_t> {
  static constexpr DType value = DType::u64;
};

/// Extents in elements, the slowest first (row-major); empty for a single number.
using Shape = std::vector<std::uint64_t>;

/// The product of the extents; wraps around where that has more than 64 bits.
[[nodiscard]] constexpr std::uint64_t element_count(const Shape& shape) {
  std::uint64_t n = 1;
  for (const std::uint64_t extent : shape) n *= extent;
  return n;
}

}  // namespace elrun::inline v0
