#pragma once
/// \file Accesses of 16 bytes to arrays that may begin anywhere: how many elements to leave out until all arrays are on a border, and the kernel that runs
/// a body over elements side by side, with several loads in flight.

#include <cstdint>
#include <optional>

#include <elrun/device.hpp>
#include <elrun/hd.hpp>
#include <elrun/tensor.hpp>

#include "kernels/convert.hpp"
#include "kernels/cuda/launch.cuh"

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

/// After how many elements, fewer than `width`, all arrays are on a border of 16 bytes; nothing where they never are at once.
template <class... T>
[[nodiscard]] std::optional<std::uint64_t> head_of(unsigned width, const T*... arrays) {
  for (std::uint64_t head = 0; head < width; ++head)
    if ((on_border(arrays + head, 16) && ...)) return head;
  return std::nullopt;
}

/// One access of a T, which the address is aligned for. By intrinsics: the compiler takes apart a plain access to a vector where it likes, and makes one of
/// wide and narrow accesses that stand in two branches, all of them narrow then. tests/gpu/registers.sh looks.
template <class T>
__device__ T load_wide(const void* from) {
  return __ldca(static_cast<const T*>(from));
}
template <class T>
__device__ void store_wide(void* to, const T& x) {
  __stwb(static_cast<T*>(to), x);
}

__device__ inline ushort4 to_bf16(float4 x) { return {to_bf16(x.x).bits, to_bf16(x.y).bits, to_bf16(x.z).bits, to_bf16(x.w).bits}; }
__device__ inline float4 to_float(ushort4 x) {
  return {to_float(bf16{x.x}), to_float(bf16{x.y}), to_float(bf16{x.z}), to_float(bf16{x.w})};
}
/// Eight of them, as one access takes them.
__device__ inline uint4 join(ushort4 a, ushort4 b) {
  return {a.x | unsigned{a.y} << 16, a.z | unsigned{a.w} << 16, b.x | unsigned{b.y} << 16, b.z | unsigned{b.w} << 16};
}
__device__ inline ushort4 halves(unsigned low, unsigned high) {
  return {static_cast<unsigned short>(low), static_cast<unsigned short>(low >> 16), static_cast<unsigned short>(high),
          static_cast<unsigned short>(high >> 16)};
}
__device__ inline ushort4 first_half(uint4 x) { return halves(x.x, x.y); }
__device__ inline ushort4 second_half(uint4 x) { return halves(x.z, x.w); }

/// `groups` groups of Body::width elements after `head` elements, Body::in_flight of them at a time: all their loads come before the first use. The
/// elements before and behind them go one by one.
template <class Body>
__global__ void __launch_bounds__(block_threads) wide_kernel(std::uint64_t count, std::uint64_t head, std::uint64_t groups, Body body) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * block_threads;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x;
  const auto place = [&](std::uint64_t group) { return head + group * Body::width; };
  std::uint64_t g = first;
  for (; g + (Body::in_flight - 1) * stride < groups; g += Body::in_flight * stride) {
    typename Body::Group loaded[Body::in_flight];
#pragma unroll
    for (unsigned k = 0; k < Body::in_flight; ++k) loaded[k] = body.load(place(g + k * stride));
#pragma unroll
    for (unsigned k = 0; k < Body::in_flight; ++k) body.finish(place(g + k * stride), loaded[k]);
  }
  for (; g < groups; g += stride) body.finish(place(g), body.load(place(g)));
  const std::uint64_t wide = groups * Body::width;
  for (std::uint64_t i = first; i < count - wide; i += stride) body.one(i < head ? i : i + wide);
}

/// body.one(i) for every i below `count`, in groups of Body::width elements where `head` says after how many elements these are on a border.
template <class Body>
void wide_async(std::uint64_t count, std::optional<std::uint64_t> head, const Body& body, Stream stream) {
  if (count == 0) return;
  const std::uint64_t groups = head && *head < count ? (count - *head) / Body::width : 0;
  const std::uint64_t threads = std::max(groups, count - groups * Body::width);
  launch<wide_kernel<Body>>(grid_of<wide_kernel<Body>>(blocks_of(threads)), block_threads, 0, stream_of(stream), count,
                            groups == 0 ? 0 : *head, groups, body);
}

}  // namespace elrun::inline v0
