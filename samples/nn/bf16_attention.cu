// Causal attention on tensor cores, without a matrix of context x context in memory: a block has 64 rows of one sample and head, goes through the others in tiles
// of 64, and computes again on the way back what it needs (Dao, "FlashAttention-2", 2023). Nothing is added by atomics: one pass has an owner for each row of
// keys and values, another for each row of queries, so the bits are the same each time.

#include <cmath>
#include <cstdint>
#include <string>

#include <elrun/result.hpp>

#include "samples/nn/bf16_engine.hpp"
#include "samples/nn/cuda.cuh"
#include "samples/nn/layers.hpp"
#include "samples/nn/tensor_core.cuh"

namespace nn {
namespace {

using Half = std::uint16_t;  // the bits of a bf16: shared memory takes no type that has a constructor

constexpr unsigned tile = 64, warps = 4, threads = 32 * warps, padding = 8;
constexpr unsigned pairs_of_eight = tile / 8;  // columns of a tile in parts of 8, as the tensor cores write them

/// One head's part of a sample: `context` rows, each `stride` elements behind the one before.
struct Rows {
  const Half* data;
  std::size_t stride;
};

/// Which tile, head and sample a block has. Long tiles come first, so that none is left for the end.
struct Place {
  std::size_t context, heads, channels;
  unsigned tiles, tile_number, head, sample;
  __device__ Place(std::size_t batch, std::size_t c, std::size_t h, std::size_t all_channels, unsigned number, bool last_is_long)
      : context{c}, heads{h}, channels{all_channels}, tiles{static_cast<unsigned>((c + tile - 1) / tile)} {
    const unsigned others = static_cast<unsigned>(h * batch), t = number / others;
    tile_number = last_is_long ? tiles - 1 - t : t;
    head = number % others % static_cast<unsigned>(h);
    sample = number % others / static_cast<unsigned>(h);
  }
  /// Of rows of `width` parts of `channels`: the place of this head in part `which` of the sample's first row.
  [[nodiscard]] __device__ std::size_t at(unsigned width, unsigned which, unsigned size) const {
    return std::size_t{sample} * context * width * channels + which * channels + std::size_t{head} * size;
  }
  [[nodiscard]] __device__ std::size_t row_of_floats() const { return (std::size_t{sample} * heads + head) * context; }
};

template <unsigned size>
using Tile = Half[tile][size + padding];

/// Rows [first, first + tile) into shared memory, zeros behind the last.
template <unsigned size>
__device__ void bring(Tile<size>& to, Rows from, unsigned first, std::size_t rows) {
  for (unsigned e = threadIdx.x; e < tile * (size / 8); e += threads) {
    const unsigned row = e / (size / 8), part = e % (size / 8) * 8;
    uint4 x{0, 0, 0, 0};
    if (first + row < rows) x = *reinterpret_cast<const uint4*>(from.data + (first + row) * from.stride + part);
    *reinterpret_cast<uint4*>(&to[row][part]) = x;
  }
}

/// This warp's 16 rows of a tile as left factors, 16 columns each.
template <unsigned size>
__device__ void left_factors(unsigned (&to)[size / 16][4], const Tile<size>& from) {
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
  for (unsigned k = 0; k < size / 16; ++k) load_matrices(to[k], &from[row][16 * k + lane / 16 * 8]);
}

/// sum[16][64] += a[16][size] · the transpose of a tile's 64 rows.
template <unsigned size>
__device__ void times_rows(float (&sum)[pairs_of_eight][4], const unsigned (&a)[size / 16][4], const Tile<size>& b) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned k = 0; k < size / 16; ++k)
#pragma unroll
    for (unsigned n = 0; n < tile / 16; ++n) {
      unsigned right[4];
      load_matrices(right, &b[16 * n + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]);
      multiply_add(sum[2 * n], a[k], right[0], right[1]);
      multiply_add(sum[2 * n + 1], a[k], right[2], right[3]);
    }
}

/// sum[16][size] += a[16][64], rounded to bf16, · a tile's 64 rows.
template <unsigned size>
__device__ void times_columns(float (&sum)[size / 8][4], const float (&a)[pairs_of_eight][4], const Tile<size>& b) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned k = 0; k < tile / 16; ++k) {
    const float(&low)[4] = a[2 * k];
    const float(&high)[4] = a[2 * k + 1];
    const unsigned left[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                              pack_bf16(high[2], high[3])};
#pragma unroll
    for (unsigned n = 0; n < size / 16; ++n) {
      unsigned right[4];
      load_matrices_transposed(right, &b[16 * k + lane / 8 % 2 * 8 + lane % 8][16 * n + lane / 16 * 8]);
      multiply_add(sum[2 * n], left, right[0], right[1]);
      multiply_add(sum[2 * n + 1], left, right[2], right[3]);
    }
  }
}

/// Element i of part n of a 16 x 64 product: its row and column there.
__device__ unsigned row_of(unsigned i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8; }
__device__ unsigned column_of(unsigned n, unsigned i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }

/// Writes this warp's 16 rows, multiplied by `factor` of each of a thread's two rows.
template <unsigned size>
__device__ void write_rows(Half* to, std::size_t stride, unsigned first, std::size_t rows, const float (&x)[size / 8][4],
                           const float (&factor)[2]) {
#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    const std::size_t row = first + row_of(2 * r);
    if (row >= rows) continue;
#pragma unroll
    for (unsigned n = 0; n < size / 8; ++n)
      *reinterpret_cast<unsigned*>(to + row * stride + column_of(n, 0)) = pack_bf16(x[n][2 * r] * factor[r], x[n][2 * r + 1] * factor[r]);
  }
}

/// The larger, or the sum, of what the four lanes of a row have.
template <class F>
__device__ float of_row(float x, F f) {
  x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return f(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ float sum_of(float a, float b) { return a + b; }

/// y = softmax(q · kᵀ · scale) · v over what each row sees. `scale`: with the logarithm of 2 divided out, for powers of 2 are what a device has. `logs` gets the
/// logarithm to base 2 of what each row's softmax divides by.
template <unsigned size>
__global__ void __launch_bounds__(threads) attention_kernel(std::size_t batch, std::size_t context, std::size_t heads, std::size_t channels,
                                                            float scale, const Half* qkv, Half* y, float* logs) {
  __shared__ __align__(16) Tile<size> keys;
  __shared__ __align__(16) Tile<size> values;
  const Place place{batch, context, heads, channels, blockIdx.x, true};
  const std::size_t stride = 3 * channels;
  const Rows q{qkv + place.at(3, 0, size), stride}, k{qkv + place.at(3, 1, size), stride}, v{qkv + place.at(3, 2, size), stride};
  const unsigned first = place.tile_number * tile;
  unsigned queries[size / 16][4];
  bring<size>(keys, q, first, context);
  __syncthreads();
  left_factors<size>(queries, keys);
  float out[size / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
  for (unsigned t = 0; t <= place.tile_number; ++t) {
    __syncthreads();
    bring<size>(keys, k, t * tile, context);
    bring<size>(values, v, t * tile, context);
    __syncthreads();
    float s[pairs_of_eight][4] = {};
    times_rows<size>(s, queries, keys);
    if (t == place.tile_number)  // what lies behind the last row is in the future of all rows, too
#pragma unroll
      for (unsigned n = 0; n < pairs_of_eight; ++n)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          if (column_of(n, i) > row_of(i)) s[n][i] = -INFINITY;
#pragma unroll
    for (unsigned r = 0; r < 2; ++r) {
      float m = top[r];
#pragma unroll
      for (unsigned n = 0; n < pairs_of_eight; ++n) m = larger(m, larger(s[n][2 * r], s[n][2 * r + 1]));
      m = of_row(m, larger);
      const float fade = exp2_fast((top[r] - m) * scale);
      top[r] = m;
      total[r] *= fade;
#pragma unroll
      for (unsigned n = 0; n < size / 8; ++n) out[n][2 * r] *= fade, out[n][2 * r + 1] *= fade;
#pragma unroll
      for (unsigned n = 0; n < pairs_of_eight; ++n)
#pragma unroll
        for (unsigned i = 2 * r; i < 2 * r + 2; ++i) {
          s[n][i] = exp2_fast((s[n][i] - m) * scale);
          total[r] += s[n][i];
        }
    }
    times_columns<size>(out, s, values);
  }
  float inverse[2];
#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    total[r] = of_row(total[r], sum_of);
    inverse[r] = 1.0f / total[r];
    if (const std::size_t row = first + row_of(2 * r); row < context && threadIdx.x % 4 == 0)
      logs[place.row_of_floats() + row] = top[r] * scale + log2f(total[r]);
  }
  write_rows<size>(y + place.at(1, 0, size), channels, first, context, out, inverse);
}

/// How each row of the output goes with its gradient: dots = sum(dy · y) of a head's row, by a warp.
__global__ void __launch_bounds__(threads) dots_kernel(std::size_t batch, std::size_t context, std::size_t heads, std::size_t channels,
                                                       const Half* dy, const Half* y, float* dots) {
  const std::size_t all = batch * context * heads, size = channels / heads;
  for (std::size_t i = std::size_t{blockIdx.x} * warps + threadIdx.x / 32; i < all; i += std::size_t{gridDim.x} * warps) {
    const std::size_t row = i / heads, head = i % heads, at = row * channels + head * size;
    float sum = 0;
    for (std::size_t c = threadIdx.x % 32 * 2; c < size; c += 64) {
      const unsigned a = *reinterpret_cast<const unsigned*>(dy + at + c), b = *reinterpret_cast<const unsigned*>(y + at + c);
      sum += low_float(a) * low_float(b) + high_float(a) * high_float(b);
    }
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (threadIdx.x % 32 == 0) dots[(row / context * heads + head) * context + row % context] = sum;
  }
}

/// Turns the scores of row `row` into the softmax, and what came back to it into the scores' gradient.
__device__ float softmax_of(float score, bool seen, float scale, float log) { return seen ? exp2_fast(score * scale - log) : 0.0f; }

/// Gradients of keys and values: a block has 64 rows of keys, and goes through the queries that see them.
template <unsigned size>
__global__ void __launch_bounds__(threads)
    keys_backward_kernel(std::size_t batch, std::size_t context, std::size_t heads, std::size_t channels, float scale, float root,
                         const Half* dy, const Half* qkv, const float* logs, const float* dots, Half* dqkv) {
  __shared__ __align__(16) Tile<size> queries;
  __shared__ __align__(16) Tile<size> gradients;
  __shared__ float log_of[tile], dot_of[tile];
  const Place place{batch, context, heads, channels, blockIdx.x, false};
  const std::size_t stride = 3 * channels;
  const Rows q{qkv + place.at(3, 0, size), stride}, k{qkv + place.at(3, 1, size), stride}, v{qkv + place.at(3, 2, size), stride},
      out{dy + place.at(1, 0, size), channels};
  const unsigned first = place.tile_number * tile;
  unsigned keys[size / 16][4], values[size / 16][4];
  bring<size>(queries, k, first, context);
  bring<size>(gradients, v, first, context);
  __syncthreads();
  left_factors<size>(keys, queries);
  left_factors<size>(values, gradients);
  float dk[size / 8][4] = {}, dv[size / 8][4] = {};
  for (unsigned t = place.tile_number; t < place.tiles; ++t) {
    __syncthreads();
    bring<size>(queries, q, t * tile, context);
    bring<size>(gradients, out, t * tile, context);
    for (unsigned i = threadIdx.x; i < tile; i += threads) {
      const std::size_t row = t * tile + i;
      log_of[i] = row < context ? logs[place.row_of_floats() + row] : INFINITY;  // a row that is not there has a softmax of zeros
      dot_of[i] = row < context ? dots[place.row_of_floats() + row] : 0.0f;
    }
    __syncthreads();
    float p[pairs_of_eight][4] = {}, dp[pairs_of_eight][4] = {};
    times_rows<size>(p, keys, queries);
#pragma unroll
    for (unsigned n = 0; n < pairs_of_eight; ++n)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        p[n][i] = softmax_of(p[n][i], t != place.tile_number || row_of(i) <= column_of(n, i), scale, log_of[column_of(n, i)]);
    times_columns<size>(dv, p, gradients);
    times_rows<size>(dp, values, gradients);
#pragma unroll
    for (unsigned n = 0; n < pairs_of_eight; ++n)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) p[n][i] *= dp[n][i] - dot_of[column_of(n, i)];
    times_columns<size>(dk, p, queries);
  }
  const float scaled[2] = {root, root}, plain[2] = {1, 1};
  write_rows<size>(dqkv + place.at(3, 1, size), stride, first, context, dk, scaled);
  write_rows<size>(dqkv + place.at(3, 2, size), stride, first, context, dv, plain);
}

/// Gradients of queries: a block has 64 rows of them, and goes through the keys that they see.
template <unsigned size>
__global__ void __launch_bounds__(threads NN_BLOCKS_AT_ONCE(2))
    queries_backward_kernel(std::size_t batch, std::size_t context, std::size_t heads, std::size_t channels, float scale, float root,
                            const Half* dy, const Half* qkv, const float* logs, const float* dots, Half* dqkv) {
  __shared__ __align__(16) Tile<size> keys;
  __shared__ __align__(16) Tile<size> values;
  const Place place{batch, context, heads, channels, blockIdx.x, true};
  const std::size_t stride = 3 * channels;
  const Rows q{qkv + place.at(3, 0, size), stride}, k{qkv + place.at(3, 1, size), stride}, v{qkv + place.at(3, 2, size), stride},
      out{dy + place.at(1, 0, size), channels};
  const unsigned first = place.tile_number * tile;
  unsigned queries[size / 16][4], gradients[size / 16][4];
  bring<size>(keys, q, first, context);
  bring<size>(values, out, first, context);
  __syncthreads();
  left_factors<size>(queries, keys);
  left_factors<size>(gradients, values);
  float log[2], dot[2], dq[size / 8][4] = {};
#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    const std::size_t row = first + row_of(2 * r);
    log[r] = row < context ? logs[place.row_of_floats() + row] : INFINITY;
    dot[r] = row < context ? dots[place.row_of_floats() + row] : 0.0f;
  }
  for (unsigned t = 0; t <= place.tile_number; ++t) {
    __syncthreads();
    bring<size>(keys, k, t * tile, context);
    bring<size>(values, v, t * tile, context);
    __syncthreads();
    float p[pairs_of_eight][4] = {}, dp[pairs_of_eight][4] = {};
    times_rows<size>(p, queries, keys);
    times_rows<size>(dp, gradients, values);
#pragma unroll
    for (unsigned n = 0; n < pairs_of_eight; ++n)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        p[n][i] = softmax_of(p[n][i], t != place.tile_number || column_of(n, i) <= row_of(i), scale, log[i / 2]) * (dp[n][i] - dot[i / 2]);
    times_columns<size>(dq, p, keys);
  }
  const float scaled[2] = {root, root};
  write_rows<size>(dqkv + place.at(3, 0, size), stride, first, context, dq, scaled);
}

const Half* bits(const bf16* x) { return reinterpret_cast<const Half*>(x); }
Half* bits(bf16* x) { return reinterpret_cast<Half*>(x); }
cudaStream_t native(const Bf16Engine& engine) { return static_cast<cudaStream_t>(engine.stream().handle()); }

/// Calls `with.operator()<size>()` for the size of a head.
template <class With>
void for_size(std::size_t size, const With& with) {
  if (size == 16) return with.template operator()<16>();
  if (size == 32) return with.template operator()<32>();
  if (size == 64) return with.template operator()<64>();
  throw elrun::Error{
      {elrun::Code::invalid_argument, elrun::Remedy::fix_config,
       "attention in bf16 has heads of 16, 32 or 64 channels, not of " + std::to_string(size) + ": choose other channels or heads"}};
}

struct Scales {
  float root, base2;
};
Scales scales(std::size_t size) {
  const float root = 1.0f / std::sqrt(static_cast<float>(size));
  return {root, root * 1.44269504f};  // log2 e
}

}  // namespace

void Attention::forward(Bf16Engine& engine, std::size_t batch, std::size_t context, const bf16* qkv, float* attention, bf16* y) const {
  for_size(channels / heads, [&]<unsigned size>() {
    const unsigned blocks = static_cast<unsigned>((context + tile - 1) / tile * batch * heads);
    launch<attention_kernel<size>>(blocks, threads, native(engine), batch, context, heads, channels, scales(size).base2, bits(qkv), bits(y),
                                   attention);
  });
}

void Attention::backward(Bf16Engine& engine, std::size_t batch, std::size_t context, const bf16* dy, const bf16* qkv, const bf16* y,
                         const float* attention, float* dattention, bf16* dqkv) const {
  const unsigned rows = static_cast<unsigned>((batch * context * heads + warps - 1) / warps);
  launch<dots_kernel>(rows, threads, native(engine), batch, context, heads, channels, bits(dy), bits(y), dattention);
  for_size(channels / heads, [&]<unsigned size>() {
    const unsigned blocks = static_cast<unsigned>((context + tile - 1) / tile * batch * heads);
    const Scales s = scales(size);
    launch<keys_backward_kernel<size>>(blocks, threads, native(engine), batch, context, heads, channels, s.base2, s.root, bits(dy),
                                       bits(qkv), attention, dattention, bits(dqkv));
    launch<queries_backward_kernel<size>>(blocks, threads, native(engine), batch, context, heads, channels, s.base2, s.root, bits(dy),
                                          bits(qkv), attention, dattention, bits(dqkv));
  });
}

}  // namespace nn
