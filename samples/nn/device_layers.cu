// The layers on a device, with the host's bits: an element of a product is one chain of fused multiply-adds with p ascending; a sum over a row
// goes through sixteen lanes (element i into lane i mod 16) that are folded by halves, here half a warp for a row; sums over rows run in the
// order of the rows. Nothing is added by atomics.

#include <cstdint>

#include "samples/nn/device_kernels.cuh"
#include "samples/nn/layers.hpp"

namespace nn {
namespace {

using V = float;
using I = std::int32_t;
using U = std::uint32_t;

template <class To, class From>
NN_INLINE To as(From x) {
  return __builtin_bit_cast(To, x);
}
NN_INLINE V all(float x) { return x; }
NN_INLINE V rounded(I x) { return static_cast<V>(x); }

#include "samples/nn/functions.inl"

NN_INLINE float square_root(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// ---- element by element

struct Add {
  const float *a, *b;
  float* y;
  __device__ void operator()(std::size_t i) const { y[i] = a[i] + b[i]; }
};
struct Gelu {
  const float* x;
  float* y;
  __device__ void operator()(std::size_t i) const { y[i] = gelu(x[i]); }
};
struct GeluBackward {
  const float *dy, *x;
  float* dx;
  __device__ void operator()(std::size_t i) const { dx[i] = dy[i] * gelu_slope(x[i]); }
};

struct Relu {
  const float* x;
  float* y;
  __device__ void operator()(std::size_t i) const { y[i] = x[i] > 0.0f ? x[i] : 0.0f; }
};
struct ReluBackward {
  const float *dy, *y;
  float scale;
  float* dx;
  __device__ void operator()(std::size_t i) const { dx[i] = y[i] > 0.0f ? dy[i] * scale : 0.0f; }
};
struct DropOut {
  Dropout dropout;
  float* x;
  __device__ void operator()(std::size_t i) const { x[i] = x[i] * dropout.factor(i); }
};
struct FillRows {
  std::size_t n;
  const float* row;
  float* y;
  __device__ void operator()(std::size_t i) const { y[i] = row[i % n]; }
};

// ---- row by row

constexpr unsigned lanes = 16, warp = 32, whole_warp = 0xffffffffu;

/// One lane of the sixteen that have a row. `n`: elements of the row; 0 where a warp has no second row, whose lanes go along for the shuffles.
struct Lane {
  unsigned index;
  std::size_t n;
  [[nodiscard]] __device__ bool leads() const { return index == 0 && n > 0; }
};
template <class F>
__device__ float folded(float x, F f) {
#pragma unroll
  for (unsigned apart = lanes / 2; apart > 0; apart /= 2) x = f(x, __shfl_down_sync(whole_warp, x, apart, lanes));
  return __shfl_sync(whole_warp, x, 0, lanes);
}
__device__ float fold_sum(float x) {
  return folded(x, [](float a, float b) { return a + b; });
}
__device__ float largest(const Lane& lane, const float* x) {
  float top = lane.n > 0 ? x[0] : 0.0f;
  for (std::size_t i = lane.index; i < lane.n; i += lanes) top = top > x[i] ? top : x[i];
  return folded(top, [](float a, float b) { return a > b ? a : b; });
}
/// Leaves e^(scale · (x - top)) in x and returns the sum.
__device__ float exponentials(const Lane& lane, float* x, float scale, float top) {
  float sum = 0;
  for (std::size_t i = lane.index; i < lane.n; i += lanes) {
    const float e = exp((x[i] - top) * scale);
    x[i] = e;
    sum = sum + e;
  }
  return fold_sum(sum);
}

/// `body(row, lane)` for each row, `body.length(row)` elements long.
template <class Body>
__global__ void __launch_bounds__(block_threads) rows_kernel(std::size_t rows, Body body) {
  const std::size_t stride = std::size_t{gridDim.x} * (block_threads / lanes);
  const std::size_t first = (std::size_t{blockIdx.x} * block_threads + threadIdx.x) / warp * 2;
  for (std::size_t pair = first; pair < rows; pair += stride) {
    const std::size_t row = pair + threadIdx.x % warp / lanes;
    body(row, Lane{threadIdx.x % lanes, row < rows ? body.length(row) : 0});
  }
}
template <class Body>
void each_row(const DeviceEngine& engine, std::size_t rows, const Body& body) {
  if (rows > 0) launch<rows_kernel<Body>>(blocks_for(rows * lanes), block_threads, native(engine), rows, body);
}

struct NormForward {
  std::size_t channels;
  const float *x, *weight, *bias;
  float *y, *mean, *scale;
  [[nodiscard]] __device__ std::size_t length(std::size_t) const { return channels; }
  __device__ void operator()(std::size_t row, Lane lane) const {
    const float* const in = x + row * channels;
    const float count = static_cast<float>(channels);
    float sum = 0;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) sum = sum + in[i];
    const float m = fold_sum(sum) / count;
    float squares = 0;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) squares = fma(in[i] - m, in[i] - m, squares);
    const float s = 1.0f / square_root(fold_sum(squares) / count + 1e-5f);
    for (std::size_t i = lane.index; i < lane.n; i += lanes) y[row * channels + i] = fma((in[i] - m) * s, weight[i], bias[i]);
    if (lane.leads()) mean[row] = m, scale[row] = s;
  }
};

struct NormBackward {
  std::size_t channels;
  const float *dy, *x, *weight, *mean, *scale;
  float* dx;
  [[nodiscard]] __device__ std::size_t length(std::size_t) const { return channels; }
  __device__ void operator()(std::size_t row, Lane lane) const {
    const std::size_t at = row * channels;
    const float m = lane.n > 0 ? mean[row] : 0.0f, s = lane.n > 0 ? scale[row] : 0.0f, count = static_cast<float>(channels);
    float sum_g = 0, sum_gh = 0;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) {
      const float g = dy[at + i] * weight[i];
      sum_g = sum_g + g;
      sum_gh = fma(g, (x[at + i] - m) * s, sum_gh);
    }
    const float mean_g = fold_sum(sum_g) / count, minus_mean_gh = -(fold_sum(sum_gh) / count);
    for (std::size_t i = lane.index; i < lane.n; i += lanes) {
      const float g = dy[at + i] * weight[i], h = (x[at + i] - m) * s;
      dx[at + i] = fma(s, fma(h, minus_mean_gh, g - mean_g), dx[at + i]);
    }
  }
};

/// Of the attention's scores: softmax over what a position sees, zeros for the future.
struct SeenSoftmax {
  std::size_t context;
  float scale;
  float* p;
  [[nodiscard]] __device__ std::size_t length(std::size_t row) const { return row % context + 1; }
  __device__ void operator()(std::size_t row, Lane lane) const {
    float* const x = p + row * context;
    const float inverse = 1.0f / exponentials(lane, x, scale, largest(lane, x));
    for (std::size_t i = lane.index; i < lane.n; i += lanes) x[i] = x[i] * inverse;
    if (lane.n > 0)
      for (std::size_t i = lane.n + lane.index; i < context; i += lanes) x[i] = 0.0f;
  }
};
struct SeenSoftmaxBackward {
  std::size_t context;
  float scale;
  const float* p;
  float* dp;
  [[nodiscard]] __device__ std::size_t length(std::size_t row) const { return row % context + 1; }
  __device__ void operator()(std::size_t row, Lane lane) const {
    const float* const q = p + row * context;
    float* const dq = dp + row * context;
    float dot = 0;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) dot = fma(q[i], dq[i], dot);
    const float d = fold_sum(dot);
    for (std::size_t i = lane.index; i < lane.n; i += lanes) dq[i] = scale * q[i] * (dq[i] - d);
    if (lane.n > 0)
      for (std::size_t i = lane.n + lane.index; i < context; i += lanes) dq[i] = 0.0f;
  }
};

struct CrossEntropy {
  std::size_t classes;
  float share;
  const std::int32_t* targets;
  float *logits, *losses;
  [[nodiscard]] __device__ std::size_t length(std::size_t) const { return classes; }
  __device__ void operator()(std::size_t row, Lane lane) const {
    float* const x = logits + row * classes;
    const std::size_t target = lane.n > 0 ? static_cast<std::size_t>(targets[row]) : 0;
    const bool owns = lane.n > 0 && target % lanes == lane.index;
    const float chosen = __shfl_sync(whole_warp, owns ? x[target] : 0.0f, static_cast<int>(target % lanes), lanes);
    const float top = largest(lane, x);
    const float total = exponentials(lane, x, 1.0f, top), factor = share / total;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) x[i] = x[i] * factor;
    if (owns) x[target] = x[target] - share;
    if (lane.leads()) losses[row] = log(total) + (top - chosen);
  }
};
/// The mean of one row.
struct Mean {
  std::size_t count;
  const float* x;
  float* mean;
  [[nodiscard]] __device__ std::size_t length(std::size_t) const { return count; }
  __device__ void operator()(std::size_t, Lane lane) const {
    float sum = 0;
    for (std::size_t i = lane.index; i < lane.n; i += lanes) sum = sum + x[i];
    sum = fold_sum(sum);
    if (lane.leads()) *mean = sum / static_cast<float>(count);
  }
};

// ---- sums over rows: each has one owner, who goes through them in order

struct AddRows {
  std::size_t rows, apart;
  const float* x;
  float* sums;
  __device__ void operator()(std::size_t i) const {
    float sum = sums[i];
    for (std::size_t r = 0; r < rows; ++r) sum = sum + x[r * apart + i];
    sums[i] = sum;
  }
};
struct NormBackwardWeights {
  std::size_t rows, channels;
  const float *dy, *x, *mean, *scale;
  float *dweight, *dbias;
  __device__ void operator()(std::size_t column) const {
    float w = dweight[column], b = dbias[column];
    for (std::size_t r = 0; r < rows; ++r) {
      const float g = dy[r * channels + column];
      w = fma(g, (x[r * channels + column] - mean[r]) * scale[r], w);
      b = g + b;
    }
    dweight[column] = w, dbias[column] = b;
  }
};
struct EmbeddingForward {
  std::size_t context, channels;
  const std::int32_t* ids;
  const float *tokens, *positions;
  float* x;
  __device__ void operator()(std::size_t i) const {
    const std::size_t row = i / channels, column = i % channels;
    x[i] = tokens[static_cast<std::size_t>(ids[row]) * channels + column] + positions[row % context * channels + column];
  }
};
struct PositionsBackward {
  std::size_t rows, context, channels;
  const float* dx;
  float* dpositions;
  __device__ void operator()(std::size_t i) const {
    float sum = dpositions[i];
    for (std::size_t r = i / channels; r < rows; r += context) sum = sum + dx[r * channels + i % channels];
    dpositions[i] = sum;
  }
};
/// A block goes through all ids for one token: those that occur have an owner whatever the others are.
__global__ void __launch_bounds__(block_threads) tokens_backward_kernel(std::size_t rows, std::size_t tokens, std::size_t channels,
                                                                        const std::int32_t* ids, const float* dx, float* dtokens) {
  for (std::size_t token = blockIdx.x; token < tokens; token += gridDim.x)
    for (std::size_t column = threadIdx.x; column < channels; column += block_threads) {
      float sum = dtokens[token * channels + column];
      bool occurs = false;
      for (std::size_t r = 0; r < rows; ++r) {
        if (static_cast<std::size_t>(ids[r]) != token) continue;
        sum = sum + dx[r * channels + column];
        occurs = true;
      }
      if (occurs) dtokens[token * channels + column] = sum;
    }
}

/// The views of queries, keys and values in rows of 3 · channels, and of the attention's matrices: one for each sample and head.
struct AttentionViews {
  std::size_t channels, heads, context;
  [[nodiscard]] std::size_t size() const { return channels / heads; }
  template <class T>
  [[nodiscard]] Many<T> of_qkv(T* qkv, std::size_t which) const {
    return {qkv + which * channels, 3 * channels, 1, context * 3 * channels, size(), heads};
  }
  template <class T>
  [[nodiscard]] Many<T> of_rows(T* y) const {
    return {y, channels, 1, context * channels, size(), heads};
  }
  template <class T>
  [[nodiscard]] Many<T> of_scores(T* p) const {
    return {p, context, 1, heads * context * context, context * context, heads};
  }
};

float inverse_root(std::size_t n) { return 1.0f / __builtin_sqrtf(static_cast<float>(n)); }

}  // namespace

void Linear::forward(DeviceEngine& engine, std::size_t rows, const float* x, const float* weight, float* y, Into into) const {
  product(engine, {rows, out, in}, {x, in, 1}, {weight, 1, in}, {y, out, 1}, into);
}
void Linear::backward_input(DeviceEngine& engine, std::size_t rows, const float* dy, const float* weight, float* dx) const {
  product(engine, {rows, in, out}, {dy, out, 1}, {weight, in, 1}, {dx, in, 1});
}
void Linear::backward_weight(DeviceEngine& engine, std::size_t rows, const float* dy, const float* x, float* dweight) const {
  product(engine, {out, in, rows}, {dy, 1, out}, {x, in, 1}, {dweight, in, 1}, Into::sum);
}

void LayerNorm::forward(DeviceEngine& engine, std::size_t rows, const float* x, const float* weight, const float* bias, float* y,
                        float* mean, float* scale) const {
  each_row(engine, rows, NormForward{channels, x, weight, bias, y, mean, scale});
}
void LayerNorm::backward(DeviceEngine& engine, std::size_t rows, const float* dy, const float* x, const float* weight, const float* mean,
                         const float* scale, float* dx, float* dweight, float* dbias) const {
  each_row(engine, rows, NormBackward{channels, dy, x, weight, mean, scale, dx});
  each(engine, channels, NormBackwardWeights{rows, channels, dy, x, mean, scale, dweight, dbias});
}

void Attention::forward(DeviceEngine& engine, std::size_t batch, std::size_t context, const float* qkv, float* attention, float* y) const {
  const AttentionViews views{channels, heads, context};
  const auto query = views.of_qkv(qkv, 0), key = views.of_qkv(qkv, 1), value = views.of_qkv(qkv, 2);
  product(engine, {context, context, views.size()}, query, key.transposed(), views.of_scores(attention), Into::fresh, batch * heads);
  each_row(engine, batch * heads * context, SeenSoftmax{context, inverse_root(views.size()), attention});
  product(engine, {context, views.size(), context}, views.of_scores<const float>(attention), value, views.of_rows(y), Into::fresh,
          batch * heads);
}
void Attention::backward(DeviceEngine& engine, std::size_t batch, std::size_t context, const float* dy, const float* qkv, const float*,
                         const float* attention, float* dattention, float* dqkv) const {
  const AttentionViews views{channels, heads, context};
  const auto query = views.of_qkv(qkv, 0), key = views.of_qkv(qkv, 1), value = views.of_qkv(qkv, 2);
  const auto p = views.of_scores(attention), ds = views.of_scores<const float>(dattention), out = views.of_rows(dy);
  const auto times = [&](Extent extent, const Many<const float>& a, const Many<const float>& b, const Many<float>& c) {
    product(engine, extent, a, b, c, Into::fresh, batch * heads);
  };
  times({context, views.size(), context}, p.transposed(), out, views.of_qkv(dqkv, 2));
  times({context, context, views.size()}, out, value.transposed(), views.of_scores(dattention));
  each_row(engine, batch * heads * context, SeenSoftmaxBackward{context, inverse_root(views.size()), attention, dattention});
  times({context, views.size(), context}, ds, key, views.of_qkv(dqkv, 0));
  times({context, views.size(), context}, ds.transposed(), query, views.of_qkv(dqkv, 1));
}

void Embedding::forward(DeviceEngine& engine, std::size_t rows, std::size_t context, const std::int32_t* ids, const float* tokens,
                        const float* positions, float* x) const {
  each(engine, rows * channels, EmbeddingForward{context, channels, ids, tokens, positions, x});
}
void Embedding::backward(DeviceEngine& engine, std::size_t rows, std::size_t context, std::size_t vocabulary, const std::int32_t* ids,
                         const float* dx, float* dtokens, float* dpositions) const {
  each(engine, context * channels, PositionsBackward{rows, context, channels, dx, dpositions});
  launch<tokens_backward_kernel>(static_cast<unsigned>(std::clamp<std::size_t>(vocabulary, 1, 1u << 16)), block_threads, native(engine),
                                 rows, vocabulary, channels, ids, dx, dtokens);
}

void gelu_forward(DeviceEngine& engine, std::size_t n, const float* x, float* y) { each(engine, n, Gelu{x, y}); }
void gelu_backward(DeviceEngine& engine, std::size_t n, const float* dy, const float* x, float* dx) {
  each(engine, n, GeluBackward{dy, x, dx});
}
void relu_forward(DeviceEngine& engine, std::size_t n, const float* x, float* y) { each(engine, n, Relu{x, y}); }
void relu_backward(DeviceEngine& engine, std::size_t n, const float* dy, const float* y, float scale, float* dx) {
  each(engine, n, ReluBackward{dy, y, scale, dx});
}
void drop_out(DeviceEngine& engine, std::size_t n, const Dropout& dropout, float* x) { each(engine, n, DropOut{dropout, x}); }
void fill_rows(DeviceEngine& engine, std::size_t rows, std::size_t n, const float* row, float* y) {
  each(engine, rows * n, FillRows{n, row, y});
}
void add_rows(DeviceEngine& engine, std::size_t rows, std::size_t n, const float* x, std::size_t apart, float* sum) {
  each(engine, n, AddRows{rows, apart, x, sum});
}
void add(DeviceEngine& engine, std::size_t n, const float* a, const float* b, float* y) { each(engine, n, Add{a, b, y}); }

elrun::DeviceScalar cross_entropy(DeviceEngine& engine, std::size_t rows, std::size_t classes, const std::int32_t* targets, float* logits,
                                  float* losses) {
  each_row(engine, rows, CrossEntropy{classes, 1.0f / static_cast<float>(rows), targets, logits, losses});
  each_row(engine, 1, Mean{rows, losses, losses + rows});
  return {losses + rows, engine.stream()};
}

}  // namespace nn
