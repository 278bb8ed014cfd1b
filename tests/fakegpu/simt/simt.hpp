#pragma once
/// \file Included in front of a .cu when g++ compiles it as a twin (tests/fakegpu.cmake): CUDA's language for a host. FAKEGPU_TWIN_FILE is the
/// file's name.
///
/// Instrumentation tells each access of memory (hooks.cpp). What is not here is not supported, and does not compile; mma and ldmatrix are in
/// tensor_core.hpp.

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <typeinfo>

#include "tests/fakegpu/simt/device_side.hpp"
#include "tests/fakegpu/simt/twin.hpp"

namespace fakegpu {

/// Makes the twin of a kernel known when its library is loaded.
template <auto kernel>
struct TwinOf;

template <class... Parameters, void (*kernel)(Parameters...)>
struct TwinOf<kernel> {
  static void body(void** arguments) { call(arguments, std::index_sequence_for<Parameters...>{}); }
  template <std::size_t... i>
  static void call([[maybe_unused]] void** arguments, std::index_sequence<i...>) {
    kernel(*static_cast<Parameters*>(arguments[i])...);
  }
  static bool enroll() {
    static constexpr std::size_t sizes[] = {sizeof(Parameters)..., 0};
    register_twin({typeid(TwinOf).name(), FAKEGPU_TWIN_FILE, body, sizes, sizeof...(Parameters)});
    return true;
  }
  static inline const bool enrolled = enroll();
};

/// A value of up to eight bytes, as lanes hand it around.
template <class T>
std::uint64_t word_of(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T value_of(std::uint64_t word) {
  T value;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
T shuffle(unsigned mask, T value, unsigned from) {
  return value_of<T>(warp_exchange(WarpCall::shuffle, mask, word_of(value), from));
}

}  // namespace fakegpu

#include "tests/fakegpu/simt/tensor_core.hpp"

/// launch.cuh says this for each kernel that is launched anywhere.
#define ELRUN_TWIN(kernel) ((void)fakegpu::TwinOf<kernel>::enrolled)
#define ELRUN_TWIN_DYNAMIC_SHARED fakegpu::dynamic_shared_memory()

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ static  // blocks run one after another: one copy serves them all

#define threadIdx fakegpu::position.thread
#define blockIdx fakegpu::position.block
#define blockDim fakegpu::position.block_dim
#define gridDim fakegpu::position.grid_dim
inline constexpr int warpSize = 32;

inline void __syncthreads() { fakegpu::block_barrier(); }
inline int __syncthreads_count(int value) { return static_cast<int>(fakegpu::block_count(value != 0)); }
inline int __syncthreads_or(int value) { return fakegpu::block_count(value != 0) != 0; }
inline int __syncthreads_and(int value) { return fakegpu::block_count(value == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { fakegpu::warp_exchange(fakegpu::WarpCall::sync, mask, 0, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned segment = fakegpu::lane() & ~static_cast<unsigned>(width - 1);
  return fakegpu::shuffle(mask, value, segment | (static_cast<unsigned>(from) & static_cast<unsigned>(width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned from = fakegpu::lane() + by, last = fakegpu::lane() | static_cast<unsigned>(width - 1);
  return fakegpu::shuffle(mask, value, from > last ? fakegpu::lane() : from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned within = fakegpu::lane() & static_cast<unsigned>(width - 1);
  return fakegpu::shuffle(mask, value, within < by ? fakegpu::lane() : fakegpu::lane() - by);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const unsigned from = fakegpu::lane() ^ static_cast<unsigned>(with), last = fakegpu::lane() | static_cast<unsigned>(width - 1);
  return fakegpu::shuffle(mask, value, from > last ? fakegpu::lane() : from);
}
inline unsigned __ballot_sync(unsigned mask, int value) { return fakegpu::warp_ballot(mask, value != 0); }
inline int __any_sync(unsigned mask, int value) { return fakegpu::warp_ballot(mask, value != 0) != 0; }
inline int __all_sync(unsigned mask, int value) { return fakegpu::warp_ballot(mask, value == 0) == 0; }

#define FAKEGPU_ATOMIC \
  template <class T>   \
  __attribute__((no_sanitize_thread, noinline))
FAKEGPU_ATOMIC T atomicAdd(T* p, std::type_identity_t<T> value) {
  fakegpu::atomic_access_to(p, sizeof *p);
  const T before = *p;
  *p = before + value;
  return before;
}
FAKEGPU_ATOMIC T atomicMax(T* p, std::type_identity_t<T> value) {
  fakegpu::atomic_access_to(p, sizeof *p);
  const T before = *p;
  if (before < value) *p = value;
  return before;
}
FAKEGPU_ATOMIC T atomicOr(T* p, std::type_identity_t<T> value) {
  fakegpu::atomic_access_to(p, sizeof *p);
  const T before = *p;
  *p = before | value;
  return before;
}
FAKEGPU_ATOMIC T atomicExch(T* p, std::type_identity_t<T> value) {
  fakegpu::atomic_access_to(p, sizeof *p);
  const T before = *p;
  *p = value;
  return before;
}
FAKEGPU_ATOMIC T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  fakegpu::atomic_access_to(p, sizeof *p);
  const T before = *p;
  if (before == expected) *p = value;
  return before;
}
#undef FAKEGPU_ATOMIC

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
void __stwb(T* p, std::type_identity_t<T> value) {
  *p = value;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
