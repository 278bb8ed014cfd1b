#pragma once
/// \file What kernels of layers are made of: a thread for each element, and products in tiles of 64 x 64 out of shared memory. For the .cu files of this
/// folder alone: each has kernels of its own, in its unnamed namespace.
///
/// An element of a product is one chain of fused multiply-adds with p ascending, as on the host: the cores without tensor instructions compute it, whose
/// sums have another order. Nothing is added by atomics.

#include <algorithm>
#include <cstddef>

#include "samples/nn/cuda.cuh"
#include "samples/nn/device_engine.hpp"
#include "samples/nn/engine.hpp"

namespace nn {
namespace {

#define NN_INLINE __device__ __forceinline__

NN_INLINE float fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

inline cudaStream_t native(const DeviceEngine& engine) { return static_cast<cudaStream_t>(engine.stream().handle()); }

// ---- element by element

template <class Body>
__global__ void __launch_bounds__(block_threads) each_kernel(std::size_t count, Body body) {
  const std::size_t stride = std::size_t{gridDim.x} * block_threads;
  for (std::size_t i = std::size_t{blockIdx.x} * block_threads + threadIdx.x; i < count; i += stride) body(i);
}
template <class Body>
void each(const DeviceEngine& engine, std::size_t count, const Body& body) {
  if (count > 0) launch<each_kernel<Body>>(blocks_for(count), block_threads, native(engine), count, body);
}

// ---- products

/// Matrices of one product, of which there may be many: number b is `inner_step` apart from b - 1, and `outer_step` where b is a multiple of `inner`.
template <class T>
struct Many {
  T* data;
  std::size_t row, column;
  std::size_t outer_step = 0, inner_step = 0, inner = 1;
  [[nodiscard]] Many transposed() const { return {data, column, row, outer_step, inner_step, inner}; }
  [[nodiscard]] __device__ Many of(std::size_t number) const {
    return {data + number / inner * outer_step + number % inner * inner_step, row, column};
  }
  [[nodiscard]] __device__ T& operator()(std::size_t i, std::size_t j) const { return data[i * row + j * column]; }
  /// Whether the elements of a row adjoin in memory.
  [[nodiscard]] __device__ bool row_adjoins() const { return column == 1; }
};

constexpr unsigned tile = 64, depth = 16, each_thread = tile / 16;

/// Brings rows [first, first + tile) and p in [begin, begin + depth) of a matrix to shared memory, zeros beyond its rims. `element(i, p)` reads one.
template <class Element>
__device__ void bring(const Element& element, bool row_adjoins, std::size_t first, std::size_t rows, std::size_t begin, std::size_t k,
                      float (*to)[tile + 4]) {
  for (unsigned e = threadIdx.x; e < tile * depth; e += block_threads) {
    // Neighbouring threads read what adjoins in memory.
    const unsigned p = row_adjoins ? e % depth : e / tile, i = row_adjoins ? e / depth : e % tile;
    to[p][i] = first + i < rows && begin + p < k ? element(first + i, begin + p) : 0.0f;
  }
}

/// c (+)= a · b, `count` times. A matrix has of(number), which is one of the many, (row, column), which is an element, and row_adjoins().
template <bool adds, class A, class B>
__global__ void __launch_bounds__(block_threads, 2) product_kernel(Extent extent, std::size_t count, A all_a, B all_b, Many<float> all_c) {
  __shared__ float left[depth][tile + 4], right[depth][tile + 4];
  const std::size_t across = (extent.columns + tile - 1) / tile, down = (extent.rows + tile - 1) / tile;
  for (std::size_t number = blockIdx.x; number < across * down * count; number += gridDim.x) {
    const std::size_t matrix = number / (across * down), i0 = number / across % down * tile, j0 = number % across * tile;
    const A a = all_a.of(matrix);
    const B b = all_b.of(matrix);
    const Many<float> c = all_c.of(matrix);
    const std::size_t i = i0 + threadIdx.x / 16, j = j0 + threadIdx.x % 16;  // and each 16th from there
    float sum[each_thread][each_thread];
    for (unsigned m = 0; m < each_thread; ++m)
      for (unsigned n = 0; n < each_thread; ++n)
        sum[m][n] = adds && i + 16 * m < extent.rows && j + 16 * n < extent.columns ? c(i + 16 * m, j + 16 * n) : 0.0f;
    for (std::size_t p0 = 0; p0 < extent.k; p0 += depth) {
      bring([&](std::size_t r, std::size_t p) { return a(r, p); }, a.row_adjoins(), i0, extent.rows, p0, extent.k, left);
      bring([&](std::size_t r, std::size_t p) { return b(p, r); }, !b.row_adjoins(), j0, extent.columns, p0, extent.k, right);
      __syncthreads();
      const unsigned last = extent.k - p0 < depth ? static_cast<unsigned>(extent.k - p0) : depth;
      for (unsigned p = 0; p < last; ++p) {
        float x[each_thread], y[each_thread];
        for (unsigned m = 0; m < each_thread; ++m) x[m] = left[p][threadIdx.x / 16 + 16 * m], y[m] = right[p][threadIdx.x % 16 + 16 * m];
        for (unsigned m = 0; m < each_thread; ++m)
          for (unsigned n = 0; n < each_thread; ++n) sum[m][n] = fma(x[m], y[n], sum[m][n]);
      }
      __syncthreads();
    }
    for (unsigned m = 0; m < each_thread; ++m)
      for (unsigned n = 0; n < each_thread; ++n)
        if (i + 16 * m < extent.rows && j + 16 * n < extent.columns) c(i + 16 * m, j + 16 * n) = sum[m][n];
  }
}

template <class A, class B>
void product(const DeviceEngine& engine, Extent extent, const A& a, const B& b, const Many<float>& c, Into into = Into::fresh,
             std::size_t count = 1) {
  const std::size_t tiles = ((extent.rows + tile - 1) / tile) * ((extent.columns + tile - 1) / tile) * count;
  if (tiles == 0) return;
  const unsigned grid = static_cast<unsigned>(std::min<std::size_t>(tiles, 1u << 30));
  if (into == Into::sum) launch<product_kernel<true, A, B>>(grid, block_threads, native(engine), extent, count, a, b, c);
  else launch<product_kernel<false, A, B>>(grid, block_threads, native(engine), extent, count, a, b, c);
}
inline void product(const DeviceEngine& engine, Extent extent, const Many<const float>& a, const Many<const float>& b, const Many<float>& c,
                    Into into = Into::fresh, std::size_t count = 1) {
  product<Many<const float>, Many<const float>>(engine, extent, a, b, c, into, count);
}

}  // namespace
}  // namespace nn
