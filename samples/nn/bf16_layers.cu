// The layers in bf16 on a device that are no products: each reads and writes 16 bytes, eight elements, at a time, and computes in float. Sums over rows are made of
// parts whose borders the number of rows alone says, added up in order: no atomics, so the bits are the same each time.

#include <algorithm>
#include <cstdint>

#include "samples/nn/bf16_engine.hpp"
#include "samples/nn/cuda.cuh"
#include "samples/nn/layers.hpp"
#include "samples/nn/tensor_core.cuh"

namespace nn {
namespace {

constexpr unsigned warp = 32, warps = block_threads / warp;
constexpr float log2_e = 1.44269504f;

struct Eight {
  float x[8];
};
__device__ __forceinline__ Eight load(const bf16* from) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  return {
      {low_float(v.x), high_float(v.x), low_float(v.y), high_float(v.y), low_float(v.z), high_float(v.z), low_float(v.w), high_float(v.w)}};
}
__device__ __forceinline__ void store(bf16* to, const Eight& e) {
  *reinterpret_cast<uint4*>(to) = {pack_bf16(e.x[0], e.x[1]), pack_bf16(e.x[2], e.x[3]), pack_bf16(e.x[4], e.x[5]),
                                   pack_bf16(e.x[6], e.x[7])};
}
__device__ __forceinline__ float as_float(bf16 x) { return low_float(x.bits); }

cudaStream_t native(const Bf16Engine& engine) { return static_cast<cudaStream_t>(engine.stream().handle()); }

// ---- element by element

/// `body(i)` for elements i to i + 7.
template <class Body>
__global__ void __launch_bounds__(block_threads) eights_kernel(std::size_t count, Body body) {
  const std::size_t stride = std::size_t{gridDim.x} * block_threads * 8;
  for (std::size_t i = (std::size_t{blockIdx.x} * block_threads + threadIdx.x) * 8; i < count; i += stride) body(i);
}
template <class Body>
void each_eight(const Bf16Engine& engine, std::size_t count, const Body& body) {
  if (count > 0) launch<eights_kernel<Body>>(blocks_for(count / 8), block_threads, native(engine), count, body);
}

/// x / (1 + e^(-2u)) is the tanh form of GELU, with u as in functions.inl.
constexpr float gelu_a = 0.797884561f, gelu_b = 0.044715f;
__device__ __forceinline__ float gelu_sigmoid(float x) {
  const float u = gelu_a * x * (1.0f + gelu_b * x * x);
  return __fdividef(1.0f, 1.0f + exp2_fast(-2.0f * log2_e * u));
}

struct GeluBf16 {
  const bf16* x;
  bf16* y;
  __device__ void operator()(std::size_t i) const {
    Eight e = load(x + i);
#pragma unroll
    for (float& v : e.x) v *= gelu_sigmoid(v);
    store(y + i, e);
  }
};
struct GeluBackwardBf16 {
  const bf16 *dy, *x;
  bf16* dx;
  __device__ void operator()(std::size_t i) const {
    const Eight in = load(x + i);
    Eight g = load(dy + i);
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) {
      const float v = in.x[k], s = gelu_sigmoid(v);
      g.x[k] *= s + v * s * (1.0f - s) * (2.0f * gelu_a * (1.0f + 3.0f * gelu_b * v * v));
    }
    store(dx + i, g);
  }
};
struct AddBf16 {
  const bf16 *a, *b;
  bf16* y;
  __device__ void operator()(std::size_t i) const {
    Eight left = load(a + i);
    const Eight right = load(b + i);
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) left.x[k] += right.x[k];
    store(y + i, left);
  }
};
struct EmbeddingForwardBf16 {
  std::size_t context, channels;
  const std::int32_t* ids;
  const bf16 *tokens, *positions;
  bf16* x;
  __device__ void operator()(std::size_t i) const {
    const std::size_t row = i / channels, column = i % channels;
    Eight e = load(tokens + static_cast<std::size_t>(ids[row]) * channels + column);
    const Eight place = load(positions + row % context * channels + column);
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) e.x[k] += place.x[k];
    store(x + i, e);
  }
};

// ---- row by row: a warp for each

template <class F>
__device__ __forceinline__ float folded(float x, F f) {
#pragma unroll
  for (int apart = warp / 2; apart > 0; apart /= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, apart));
  return x;
}
__device__ __forceinline__ float fold_sum(float x) {
  return folded(x, [](float a, float b) { return a + b; });
}

/// `body(row, lane)` for each row, by all lanes of a warp.
template <class Body>
__global__ void __launch_bounds__(block_threads NN_BLOCKS_AT_ONCE(4)) warp_rows_kernel(std::size_t rows, Body body) {
  for (std::size_t row = std::size_t{blockIdx.x} * warps + threadIdx.x / warp; row < rows; row += std::size_t{gridDim.x} * warps)
    body(row, threadIdx.x % warp);
}
template <class Body>
void each_row(const Bf16Engine& engine, std::size_t rows, const Body& body) {
  if (rows > 0)
    launch<warp_rows_kernel<Body>>(static_cast<unsigned>((rows + warps - 1) / warps), block_threads, native(engine), rows, body);
}

struct NormForwardBf16 {
  std::size_t channels;
  const bf16 *x, *weight, *bias;
  bf16* y;
  float *mean, *scale;
  __device__ void operator()(std::size_t row, unsigned lane) const {
    const bf16* const in = x + row * channels;
    const float count = static_cast<float>(channels);
    float sum = 0;
    for (std::size_t i = lane * 8; i < channels; i += warp * 8) {
      const Eight e = load(in + i);
#pragma unroll
      for (const float v : e.x) sum += v;
    }
    const float m = fold_sum(sum) / count;
    float squares = 0;
    for (std::size_t i = lane * 8; i < channels; i += warp * 8) {
      const Eight e = load(in + i);
#pragma unroll
      for (const float v : e.x) squares += (v - m) * (v - m);
    }
    const float s = 1.0f / sqrtf(fold_sum(squares) / count + 1e-5f);
    for (std::size_t i = lane * 8; i < channels; i += warp * 8) {
      Eight e = load(in + i);
      const Eight w = load(weight + i), b = load(bias + i);
#pragma unroll
      for (unsigned k = 0; k < 8; ++k) e.x[k] = (e.x[k] - m) * s * w.x[k] + b.x[k];
      store(y + row * channels + i, e);
    }
    if (lane == 0) mean[row] = m, scale[row] = s;
  }
};

struct NormBackwardBf16 {
  std::size_t channels;
  const bf16 *dy, *x, *weight;
  const float *mean, *scale;
  bf16* dx;
  __device__ void operator()(std::size_t row, unsigned lane) const {
    const std::size_t at = row * channels;
    const float m = mean[row], s = scale[row], count = static_cast<float>(channels);
    float sum_g = 0, sum_gh = 0;
    for (std::size_t i = lane * 8; i < channels; i += warp * 8) {
      const Eight g = load(dy + at + i), w = load(weight + i), in = load(x + at + i);
#pragma unroll
      for (unsigned k = 0; k < 8; ++k) {
        const float gw = g.x[k] * w.x[k];
        sum_g += gw;
        sum_gh += gw * (in.x[k] - m) * s;
      }
    }
    const float mean_g = fold_sum(sum_g) / count, mean_gh = fold_sum(sum_gh) / count;
    for (std::size_t i = lane * 8; i < channels; i += warp * 8) {
      const Eight g = load(dy + at + i), w = load(weight + i), in = load(x + at + i);
      Eight out = load(dx + at + i);
#pragma unroll
      for (unsigned k = 0; k < 8; ++k) out.x[k] += s * (g.x[k] * w.x[k] - mean_g - (in.x[k] - m) * s * mean_gh);
      store(dx + at + i, out);
    }
  }
};

/// Of `parts` parts of the rows: the sums for each column, those of weights, then of biases. A block has a part and the columns of its threads.
__global__ void __launch_bounds__(block_threads)
    norm_parts_kernel(std::size_t rows, std::size_t channels, std::size_t part_rows, const bf16* dy, const bf16* x, const float* mean,
                      const float* scale, float* parts) {
  const std::size_t across = (channels + block_threads - 1) / block_threads, part = blockIdx.x / across;
  const std::size_t column = blockIdx.x % across * block_threads + threadIdx.x;
  if (column >= channels) return;
  const std::size_t end = part * part_rows + part_rows < rows ? part * part_rows + part_rows : rows;
  float w = 0, b = 0;
  for (std::size_t r = part * part_rows; r < end; ++r) {
    const float g = as_float(dy[r * channels + column]);
    w += g * (as_float(x[r * channels + column]) - mean[r]) * scale[r];
    b += g;
  }
  parts[2 * part * channels + column] = w;
  parts[(2 * part + 1) * channels + column] = b;
}
__global__ void __launch_bounds__(block_threads)
    norm_sums_kernel(std::size_t parts, std::size_t channels, const float* from, float* dweight, float* dbias) {
  const std::size_t column = std::size_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= channels) return;
  float w = dweight[column], b = dbias[column];
  for (std::size_t p = 0; p < parts; ++p) w += from[2 * p * channels + column], b += from[(2 * p + 1) * channels + column];
  dweight[column] = w, dbias[column] = b;
}

__global__ void __launch_bounds__(block_threads)
    positions_backward_kernel(std::size_t rows, std::size_t positions, std::size_t channels, const bf16* dx, float* dpositions) {
  const std::size_t i = std::size_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= positions * channels) return;
  float sum = dpositions[i];
  for (std::size_t r = i / channels; r < rows; r += positions) sum += as_float(dx[r * channels + i % channels]);
  dpositions[i] = sum;
}

/// The block of a row whose token no row before it has adds up all rows of that token, in order.
__global__ void __launch_bounds__(block_threads)
    tokens_backward_kernel(std::size_t rows, std::size_t channels, const std::int32_t* ids, const bf16* dx, float* dtokens) {
  __shared__ unsigned same[warps];  // of 256 rows, a bit for each
  const std::size_t own = blockIdx.x;
  const std::int32_t id = ids[own];
  bool before = false;
  for (std::size_t r = threadIdx.x; r < own; r += block_threads) before = before || ids[r] == id;
  if (__syncthreads_or(before)) return;
  float* const sums = dtokens + static_cast<std::size_t>(id) * channels;
  for (std::size_t first = own / block_threads * block_threads; first < rows; first += block_threads) {
    const std::size_t r = first + threadIdx.x;
    const unsigned found = __ballot_sync(0xffffffffu, r >= own && r < rows && ids[r] == id);
    if (threadIdx.x % warp == 0) same[threadIdx.x / warp] = found;
    __syncthreads();
    for (unsigned w = 0; w < warps; ++w)
      for (unsigned left = same[w]; left != 0; left &= left - 1) {
        const std::size_t row = first + w * warp + static_cast<unsigned>(__ffs(static_cast<int>(left))) - 1;
        for (std::size_t column = threadIdx.x; column < channels; column += block_threads)
          sums[column] += as_float(dx[row * channels + column]);
      }
    __syncthreads();
  }
}

__device__ __forceinline__ float larger(float a, float b) { return a > b ? a : b; }
__device__ __forceinline__ float fold_largest(float x) { return folded(x, larger); }

/// Of one part of a row's softmax: the largest element, and the sum of e^(x - largest).
struct Largest {
  float top, sum;
};
constexpr float smallest = -1e30f;  // of what has no element
/// By all lanes of a warp: of all parts together.
__device__ __forceinline__ Largest folded(Largest part) {
  const float top = fold_largest(part.top);
  return {top, fold_sum(part.sum * exp2_fast((part.top - top) * log2_e))};
}

constexpr unsigned row_threads = 1024, row_warps = row_threads / warp;

/// A block for each row: once through it for the sum, and again for the gradient. If `ahead`, each thread keeps its elements in shared memory meanwhile, and
/// those of the row after come there beside the computing, so that each logit moves twice and memory never rests. If not, the row is read again.
template <bool ahead>
__global__ void __launch_bounds__(row_threads)
    cross_entropy_kernel(std::size_t rows, std::size_t classes, float share, const std::int32_t* targets, bf16* logits, float* losses) {
  __shared__ Largest of_warp[2][row_warps];  // of two rows in turn: a barrier for each is enough
  const std::size_t apart = blockDim.x * 8;
  [[maybe_unused]] const auto fetch = [&](std::size_t row, unsigned to) {
    if (row < rows)
      for (std::size_t i = threadIdx.x * 8; i < classes; i += apart)
        copy_async(dynamic_shared<bf16>() + to * classes + i, logits + row * classes + i);
    end_of_copies();
  };
  if constexpr (ahead) fetch(blockIdx.x, 0);
  unsigned turn = 0;
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const std::size_t target = static_cast<std::size_t>(targets[row]);
    bf16* const there = logits + row * classes;
    const bf16* const x = ahead ? dynamic_shared<bf16>() + turn * classes : there;
    if constexpr (ahead) {
      fetch(row + gridDim.x, turn ^ 1);
      wait_for_copies<1>();
    }
    Largest seen{smallest, 0};
    for (std::size_t i = threadIdx.x * 8; i < classes; i += apart) {
      const Eight e = load(x + i);
      float top = seen.top;
#pragma unroll
      for (const float v : e.x) top = larger(top, v);
      seen.sum *= exp2_fast((seen.top - top) * log2_e);
      seen.top = top;
      const float shift = -top * log2_e;
#pragma unroll
      for (const float v : e.x) seen.sum += exp2_fast(fmaf(v, log2_e, shift));
    }
    seen = folded(seen);
    if (threadIdx.x % warp == 0) of_warp[turn][threadIdx.x / warp] = seen;
    __syncthreads();
    const unsigned lane = threadIdx.x % warp;
    seen = folded(lane < blockDim.x / warp ? of_warp[turn][lane] : Largest{smallest, 0});
    const float shift = -seen.top * log2_e, factor = share / seen.sum;
    for (std::size_t i = threadIdx.x * 8; i < classes; i += apart) {
      Eight e = load(x + i);
      if (target - i < 8) losses[row] = logf(seen.sum) + (seen.top - as_float(x[target]));
#pragma unroll
      for (float& v : e.x) v = exp2_fast(fmaf(v, log2_e, shift)) * factor;
      if (target - i < 8) {
#pragma unroll
        for (unsigned k = 0; k < 8; ++k) e.x[k] -= i + k == target ? share : 0.0f;
      }
      store(there + i, e);
    }
  }
}
/// The mean of all losses, by one block.
__global__ void __launch_bounds__(block_threads) mean_kernel(std::size_t count, const float* x, float* mean) {
  __shared__ float of_warp[warps];
  float sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += block_threads) sum += x[i];
  sum = fold_sum(sum);
  if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (const float part : of_warp) sum += part;
  *mean = sum / static_cast<float>(count);
}

unsigned blocks_of(std::size_t threads) { return static_cast<unsigned>((threads + block_threads - 1) / block_threads); }

}  // namespace

void LayerNorm::forward(Bf16Engine& engine, std::size_t rows, const bf16* x, const bf16* weight, const bf16* bias, bf16* y, float* mean,
                        float* scale) const {
  each_row(engine, rows, NormForwardBf16{channels, x, weight, bias, y, mean, scale});
}
void LayerNorm::backward(Bf16Engine& engine, std::size_t rows, const bf16* dy, const bf16* x, const bf16* weight, const float* mean,
                         const float* scale, bf16* dx, float* dweight, float* dbias) const {
  if (rows == 0) return;
  each_row(engine, rows, NormBackwardBf16{channels, dy, x, weight, mean, scale, dx});
  const std::size_t part_rows = (rows + Bf16Engine::most_parts - 1) / Bf16Engine::most_parts, parts = (rows + part_rows - 1) / part_rows;
  launch<norm_parts_kernel>(static_cast<unsigned>(parts) * blocks_of(channels), block_threads, native(engine), rows, channels, part_rows,
                            dy, x, mean, scale, engine.parts());
  launch<norm_sums_kernel>(blocks_of(channels), block_threads, native(engine), parts, channels, engine.parts(), dweight, dbias);
}

void Embedding::forward(Bf16Engine& engine, std::size_t rows, std::size_t context, const std::int32_t* ids, const bf16* tokens,
                        const bf16* positions, bf16* x) const {
  each_eight(engine, rows * channels, EmbeddingForwardBf16{context, channels, ids, tokens, positions, x});
}
void Embedding::backward(Bf16Engine& engine, std::size_t rows, std::size_t context, std::size_t, const std::int32_t* ids, const bf16* dx,
                         float* dtokens, float* dpositions) const {
  if (rows == 0) return;
  launch<positions_backward_kernel>(blocks_of(context * channels), block_threads, native(engine), rows, context, channels, dx, dpositions);
  launch<tokens_backward_kernel>(static_cast<unsigned>(rows), block_threads, native(engine), rows, channels, ids, dx, dtokens);
}

void gelu_forward(Bf16Engine& engine, std::size_t n, const bf16* x, bf16* y) { each_eight(engine, n, GeluBf16{x, y}); }
void gelu_backward(Bf16Engine& engine, std::size_t n, const bf16* dy, const bf16* x, bf16* dx) {
  each_eight(engine, n, GeluBackwardBf16{dy, x, dx});
}
void add(Bf16Engine& engine, std::size_t n, const bf16* a, const bf16* b, bf16* y) { each_eight(engine, n, AddBf16{a, b, y}); }

elrun::DeviceScalar cross_entropy(Bf16Engine& engine, std::size_t rows, std::size_t classes, const std::int32_t* targets, bf16* logits,
                                  float* losses) {
  const unsigned threads = static_cast<unsigned>(std::min<std::size_t>((classes / 8 + warp - 1) / warp * warp, row_threads));
  const std::size_t two_rows = 2 * classes * sizeof(bf16);
  const float share = 1.0f / static_cast<float>(rows);
  if (two_rows + sizeof(Largest[2][row_warps]) <= most_shared_bytes())
    launch_resident<cross_entropy_kernel<true>>(rows, threads, two_rows, native(engine), rows, classes, share, targets, logits, losses);
  else launch_resident<cross_entropy_kernel<false>>(rows, threads, 0, native(engine), rows, classes, share, targets, logits, losses);
  launch<mean_kernel>(1, block_threads, native(engine), rows, losses, losses + rows);
  return {losses + rows, engine.stream()};
}

}  // namespace nn
