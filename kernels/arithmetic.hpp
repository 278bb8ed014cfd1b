#pragma once
/// \file The operations that must round alike on host and device, by name. Plain + and * are safe too, as long as nothing contracts them:
/// -ffp-contract=off, --fmad=false. cmake/Elrun.cmake has these flags, and those that take back a -ffast-math of the project around elrun.

#include <bit>
#include <cstdint>

#include <elrun/hd.hpp>

// With such a flag the bits differ between instruction sets, and a NaN is not seen. Clang has a macro for the first two alone.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__) || \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error \
    "elrun's arithmetic is exact: compile it without -ffast-math, -Ofast and their parts, or with the flags of cmake/Elrun.cmake behind them"
#endif

/// For what a loop calls per element: inlined into a function compiled for a wider instruction set, it uses that set.
#define ELRUN_INLINE inline __attribute__((always_inline))

namespace elrun::inline v0 {

/// a * b + c with one rounding. On a host without the instruction this is a call of libm, with the same bits.
[[nodiscard]] ELRUN_HD ELRUN_INLINE float multiply_add(float a, float b, float c) noexcept {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

[[nodiscard]] ELRUN_HD ELRUN_INLINE float divide(float a, float b) noexcept {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

[[nodiscard]] ELRUN_HD ELRUN_INLINE float square_root(float a) noexcept {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

/// The one NaN that elrun keeps: which payload and sign survive an operation differs between processors, and between
/// a + b and b + a.
inline constexpr std::uint32_t canonical_nan_bits = 0x7fc00000u;

[[nodiscard]] ELRUN_HD ELRUN_INLINE constexpr float canonical(float x) noexcept {
  return x != x ? std::bit_cast<float>(canonical_nan_bits) : x;
}

}  // namespace elrun::inline v0
