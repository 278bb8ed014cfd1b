#include "samples/nn/layers.hpp"

#include <algorithm>

namespace nn {
namespace {
constexpr std::size_t rows_per_task = 16, columns_per_task = 64, elements_per_task = 8192;
}

void Linear::forward(Engine& engine, std::size_t rows, const float* x, const float* weight, float* y, Into into) const {
  engine.product({rows, out, in}, {x, in}, View{weight, in}.transposed(), {y, out}, into);
}
void Linear::backward_input(Engine& engine, std::size_t rows, const float* dy, const float* weight, float* dx) const {
  engine.product({rows, in, out}, {dy, out}, {weight, in}, {dx, in});
}
void Linear::backward_weight(Engine& engine, std::size_t rows, const float* dy, const float* x, float* dweight) const {
  engine.product({out, in, rows}, View{dy, out}.transposed(), {x, in}, {dweight, in}, Into::sum);
}

void LayerNorm::forward(Engine& engine, std::size_t rows, const float* x, const float* weight, const float* bias, float* y, float* mean,
                        float* scale) const {
  engine.parallel_chunks(rows, rows_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r)
      engine.kernels().norm_forward(x + r * channels, weight, bias, channels, y + r * channels, mean + r, scale + r);
  });
}

void LayerNorm::backward(Engine& engine, std::size_t rows, const float* dy, const float* x, const float* weight, const float* mean,
                         const float* scale, float* dx, float* dweight, float* dbias) const {
  engine.parallel_chunks(rows, rows_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r)
      engine.kernels().norm_backward(dy + r * channels, x + r * channels, weight, mean[r], scale[r], channels, dx + r * channels);
  });
  // Threads take columns, so that each sum over rows has one owner and one order.
  engine.parallel_chunks(channels, columns_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = 0; r < rows; ++r)
      engine.kernels().norm_backward_weights(dy + r * channels + first, x + r * channels + first, mean[r], scale[r], last - first,
                                             dweight + first, dbias + first);
  });
}

namespace {
// 1 / sqrt(n), both steps correctly rounded.
float inverse_root(std::size_t n) { return 1.0f / __builtin_sqrtf(static_cast<float>(n)); }
}  // namespace

void Attention::forward(Engine& engine, std::size_t batch, std::size_t context, const float* qkv, float* attention, float* y) const {
  const std::size_t size = channels / heads, stride = 3 * channels;
  engine.parallel_for(batch * heads, [&](std::size_t index, std::size_t worker) {
    const std::size_t row = index / heads * context, column = index % heads * size;
    const float* q = qkv + row * stride + column;
    const View query{q, stride}, key{q + channels, stride}, value{q + 2 * channels, stride};
    float* const p = attention + index * context * context;
    engine.product_here(worker, {context, context, size}, query, key.transposed(), {p, context});
    for (std::size_t t = 0; t < context; ++t) {
      engine.kernels().softmax(p + t * context, t + 1, inverse_root(size));
      std::fill(p + t * context + t + 1, p + (t + 1) * context, 0.0f);  // the future
    }
    engine.product_here(worker, {context, size, context}, {p, context}, value, {y + row * channels + column, channels});
  });
}

void Attention::backward(Engine& engine, std::size_t batch, std::size_t context, const float* dy, const float* qkv, const float*,
                         const float* attention, float* dattention, float* dqkv) const {
  const std::size_t size = channels / heads, stride = 3 * channels;
  engine.parallel_for(batch * heads, [&](std::size_t index, std::size_t worker) {
    const std::size_t row = index / heads * context, column = index % heads * size;
    const float* q = qkv + row * stride + column;
    const View query{q, stride}, key{q + channels, stride}, value{q + 2 * channels, stride};
    const View p{attention + index * context * context, context}, out{dy + row * channels + column, channels};
    float* const ds = dattention + index * context * context;
    float* const d = dqkv + row * stride + column;
    engine.product_here(worker, {context, size, context}, p.transposed(), out, {d + 2 * channels, stride});
    engine.product_here(worker, {context, context, size}, out, value.transposed(), {ds, context});
    for (std::size_t t = 0; t < context; ++t) {
      engine.kernels().softmax_backward(p.data + t * context, ds + t * context, t + 1, inverse_root(size));
      std::fill(ds + t * context + t + 1, ds + (t + 1) * context, 0.0f);
    }
    engine.product_here(worker, {context, size, context}, {ds, context}, key, {d, stride});
    engine.product_here(worker, {context, size, context}, View{ds, context}.transposed(), query, {d + channels, stride});
  });
}

void Embedding::forward(Engine& engine, std::size_t rows, std::size_t context, const std::int32_t* ids, const float* tokens,
                        const float* positions, float* x) const {
  engine.parallel_chunks(rows, rows_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r)
      engine.kernels().add(tokens + static_cast<std::size_t>(ids[r]) * channels, positions + r % context * channels, channels,
                           x + r * channels);
  });
}

void Embedding::backward(Engine& engine, std::size_t rows, std::size_t context, std::size_t, const std::int32_t* ids, const float* dx,
                         float* dtokens, float* dpositions) const {
  engine.parallel_chunks(channels, columns_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = 0; r < rows; ++r) {
      float* const token = dtokens + static_cast<std::size_t>(ids[r]) * channels + first;
      float* const position = dpositions + r % context * channels + first;
      engine.kernels().add(token, dx + r * channels + first, last - first, token);
      engine.kernels().add(position, dx + r * channels + first, last - first, position);
    }
  });
}

void gelu_forward(Engine& engine, std::size_t n, const float* x, float* y) {
  engine.parallel_chunks(n, elements_per_task,
                         [&](std::size_t first, std::size_t last) { engine.kernels().gelu_forward(x + first, last - first, y + first); });
}
void gelu_backward(Engine& engine, std::size_t n, const float* dy, const float* x, float* dx) {
  engine.parallel_chunks(n, elements_per_task, [&](std::size_t first, std::size_t last) {
    engine.kernels().gelu_backward(dy + first, x + first, last - first, dx + first);
  });
}
void relu_forward(Engine& engine, std::size_t n, const float* x, float* y) {
  engine.parallel_chunks(n, elements_per_task,
                         [&](std::size_t first, std::size_t last) { engine.kernels().relu_forward(x + first, last - first, y + first); });
}
void relu_backward(Engine& engine, std::size_t n, const float* dy, const float* y, float scale, float* dx) {
  engine.parallel_chunks(n, elements_per_task, [&](std::size_t first, std::size_t last) {
    engine.kernels().relu_backward(dy + first, y + first, scale, last - first, dx + first);
  });
}
void drop_out(Engine&, std::size_t n, const Dropout& dropout, float* x) {
  for (std::size_t e = 0; e < n; e += 16) {
    float factors[16];
    dropout.factors(e / 16, factors);
    for (std::size_t k = 0; k < 16; ++k) x[e + k] *= factors[k];
  }
}
void fill_rows(Engine&, std::size_t rows, std::size_t n, const float* row, float* y) {
  for (std::size_t r = 0; r < rows; ++r) std::copy_n(row, n, y + r * n);
}
void add_rows(Engine& engine, std::size_t rows, std::size_t n, const float* x, std::size_t apart, float* sum) {
  engine.parallel_chunks(n, elements_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = 0; r < rows; ++r) engine.kernels().add(sum + first, x + r * apart + first, last - first, sum + first);
  });
}
void add(Engine& engine, std::size_t n, const float* a, const float* b, float* y) {
  engine.parallel_chunks(n, elements_per_task,
                         [&](std::size_t first, std::size_t last) { engine.kernels().add(a + first, b + first, last - first, y + first); });
}

float cross_entropy(Engine& engine, std::size_t rows, std::size_t classes, const std::int32_t* targets, float* logits, float* losses) {
  const float share = 1.0f / static_cast<float>(rows);
  engine.parallel_chunks(rows, rows_per_task, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r)
      losses[r] = engine.kernels().cross_entropy(logits + r * classes, classes, static_cast<std::size_t>(targets[r]), share);
  });
  return engine.kernels().sum(losses, rows) / static_cast<float>(rows);
}

}  // namespace nn
