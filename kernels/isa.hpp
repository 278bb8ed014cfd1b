#pragma once
/// \file Host loops for the instruction set that is there: the same source compiled for each, the same bits from all.
///
/// The binary runs on any x86-64, whose baseline has no fused multiply-add: there each one is a call of libm. So a loop
/// is a lambda, inlined once into a plain function and once into one that is compiled for AVX2 and FMA; the state hash's once more, for AVX-512. Function
/// attributes, not file flags: with flags, a template of the standard library compiled here could be the copy that the
/// linker keeps for everybody, and end a process on an old machine.

#include <cstdint>

#include "kernels/arithmetic.hpp"

namespace elrun::inline v0 {

/// Each has the ones before it.
enum class Isa : std::uint8_t { portable, avx2, avx512 };

/// The best that this processor has.
[[nodiscard]] Isa isa_of_this_machine() noexcept;

#if defined(__x86_64__)
template <class Loop>
[[gnu::target("avx2,fma")]] void run_with_avx2(const Loop& loop) {
  loop();
}
template <class Loop>
[[gnu::target("avx2,fma,avx512f,avx512dq,avx512vl")]] void run_with_avx512(const Loop& loop) {
  loop();
}
#endif

/// Runs `loop`, a lambda made with ELRUN_LOOP, with AVX2 at most.
template <class Loop>
void run_with(Isa isa, const Loop& loop) {
#if defined(__x86_64__)
  if (isa != Isa::portable) return run_with_avx2(loop);
#endif
  (void)isa;
  loop();
}
/// The same with AVX-512 where it is there: the first that multiplies vectors of 64-bit integers.
template <class Loop>
void run_with_wide_products(Isa isa, const Loop& loop) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return run_with_avx512(loop);
#endif
  run_with(isa, loop);
}

}  // namespace elrun::inline v0

/// `run_with(isa, ELRUN_LOOP { for (...) ...; });`: captures by value, and is always inlined.
#define ELRUN_LOOP [=]() __attribute__((always_inline))
