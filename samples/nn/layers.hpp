#pragma once
/// \file The layers that samples share, forward and backward, in fp32. Matrices are row after row; pointers are to the
/// engine's memory. Forward overwrites; backward overwrites gradients of activations unless it says "adds", and always
/// adds to gradients of weights. Nothing is allocated. A DeviceEngine gives the bits that an Engine gives, in the order of its stream. A Bf16Engine has
/// weights and activations in bf16, gradients of weights and sums in float, and bits of its own; lengths of its rows are multiples of 8, and its arrays begin on
/// borders of 16 bytes.

#include <cstddef>
#include <cstdint>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "samples/nn/dropout.hpp"
#include "samples/nn/engine.hpp"

namespace nn {

class DeviceEngine;  // device_engine.hpp
class Bf16Engine;    // bf16_engine.hpp
using elrun::bf16;

/// y[rows][out] (+)= x[rows][in] · weight[out][in]ᵀ
struct Linear {
  std::size_t in, out;
  /// Has everything loaded that the calls below need for as many rows. Before a job's first step: what is loaded beside a collective may wait for it without an end.
  template <class E>
  void prepare(E&, std::size_t) const {}
  void prepare(Bf16Engine&, std::size_t rows) const;
  void forward(Engine&, std::size_t rows, const float* x, const float* weight, float* y, Into into = Into::fresh) const;
  void forward(DeviceEngine&, std::size_t rows, const float* x, const float* weight, float* y, Into into = Into::fresh) const;
  void forward(Bf16Engine&, std::size_t rows, const bf16* x, const bf16* weight, bf16* y, Into into = Into::fresh) const;
  void backward_input(Engine&, std::size_t rows, const float* dy, const float* weight, float* dx) const;
  void backward_input(DeviceEngine&, std::size_t rows, const float* dy, const float* weight, float* dx) const;
  void backward_input(Bf16Engine&, std::size_t rows, const bf16* dy, const bf16* weight, bf16* dx) const;
  void backward_weight(Engine&, std::size_t rows, const float* dy, const float* x, float* dweight) const;
  void backward_weight(DeviceEngine&, std::size_t rows, const float* dy, const float* x, float* dweight) const;
  void backward_weight(Bf16Engine&, std::size_t rows, const bf16* dy, const bf16* x, float* dweight) const;
};

/// y = (x - mean) / sqrt(variance + 1e-5) · weight + bias, row by row. `mean` and `scale` have one element per row.
struct LayerNorm {
  std::size_t channels;
  void forward(Engine&, std::size_t rows, const float* x, const float* weight, const float* bias, float* y, float* mean,
               float* scale) const;
  void forward(DeviceEngine&, std::size_t rows, const float* x, const float* weight, const float* bias, float* y, float* mean,
               float* scale) const;
  void forward(Bf16Engine&, std::size_t rows, const bf16* x, const bf16* weight, const bf16* bias, bf16* y, float* mean,
               float* scale) const;
  /// Adds to `dx`.
  void backward(Engine&, std::size_t rows, const float* dy, const float* x, const float* weight, const float* mean, const float* scale,
                float* dx, float* dweight, float* dbias) const;
  void backward(DeviceEngine&, std::size_t rows, const float* dy, const float* x, const float* weight, const float* mean,
                const float* scale, float* dx, float* dweight, float* dbias) const;
  void backward(Bf16Engine&, std::size_t rows, const bf16* dy, const bf16* x, const bf16* weight, const float* mean, const float* scale,
                bf16* dx, float* dweight, float* dbias) const;
};

/// Causal self-attention: position t sees positions 0 .. t of its own sequence. `qkv` has rows of 3 · channels,
/// queries, keys, values; head h is columns [h · size, h · size + size) of each. `attention` holds batch · heads
/// matrices of context x context and is kept for the way back, which needs a second one, `dattention`. In bf16 no such matrix is stored: both hold
/// batch · heads · context floats, the logarithm of what each row's softmax divides by, and how its output goes with the output's gradient, and the way back
/// needs the output `y` as well.
struct Attention {
  std::size_t channels, heads;
  void forward(Engine&, std::size_t batch, std::size_t context, const float* qkv, float* attention, float* y) const;
  void forward(DeviceEngine&, std::size_t batch, std::size_t context, const float* qkv, float* attention, float* y) const;
  void forward(Bf16Engine&, std::size_t batch, std::size_t context, const bf16* qkv, float* attention, bf16* y) const;
  void backward(Engine&, std::size_t batch, std::size_t context, const float* dy, const float* qkv, const float* y, const float* attention,
                float* dattention, float* dqkv) const;
  void backward(DeviceEngine&, std::size_t batch, std::size_t context, const float* dy, const float* qkv, const float* y,
                const float* attention, float* dattention, float* dqkv) const;
  void backward(Bf16Engine&, std::size_t batch, std::size_t context, const bf16* dy, const bf16* qkv, const bf16* y, const float* attention,
                float* dattention, bf16* dqkv) const;
};

/// x[row] = tokens[id[row]] + positions[row mod context]
struct Embedding {
  std::size_t channels;
  void forward(Engine&, std::size_t rows, std::size_t context, const std::int32_t* ids, const float* tokens, const float* positions,
               float* x) const;
  void forward(DeviceEngine&, std::size_t rows, std::size_t context, const std::int32_t* ids, const float* tokens, const float* positions,
               float* x) const;
  void forward(Bf16Engine&, std::size_t rows, std::size_t context, const std::int32_t* ids, const bf16* tokens, const bf16* positions,
               bf16* x) const;
  /// `vocabulary`: rows of `dtokens`.
  void backward(Engine&, std::size_t rows, std::size_t context, std::size_t vocabulary, const std::int32_t* ids, const float* dx,
                float* dtokens, float* dpositions) const;
  void backward(DeviceEngine&, std::size_t rows, std::size_t context, std::size_t vocabulary, const std::int32_t* ids, const float* dx,
                float* dtokens, float* dpositions) const;
  void backward(Bf16Engine&, std::size_t rows, std::size_t context, std::size_t vocabulary, const std::int32_t* ids, const bf16* dx,
                float* dtokens, float* dpositions) const;
};

/// The tanh form.
void gelu_forward(Engine&, std::size_t n, const float* x, float* y);
void gelu_forward(DeviceEngine&, std::size_t n, const float* x, float* y);
void gelu_forward(Bf16Engine&, std::size_t n, const bf16* x, bf16* y);
/// `dx` may be `dy`.
void gelu_backward(Engine&, std::size_t n, const float* dy, const float* x, float* dx);
void gelu_backward(DeviceEngine&, std::size_t n, const float* dy, const float* x, float* dx);
void gelu_backward(Bf16Engine&, std::size_t n, const bf16* dy, const bf16* x, bf16* dx);
/// `y` may be `x`.
void relu_forward(Engine&, std::size_t n, const float* x, float* y);
void relu_forward(DeviceEngine&, std::size_t n, const float* x, float* y);
/// dx = dy · scale where y > 0, else 0; `dx` may be `dy`.
void relu_backward(Engine&, std::size_t n, const float* dy, const float* y, float scale, float* dx);
void relu_backward(DeviceEngine&, std::size_t n, const float* dy, const float* y, float scale, float* dx);
/// In place. `n` is a multiple of 16. The way back is relu_backward's, where relu came before it.
void drop_out(Engine&, std::size_t n, const Dropout& dropout, float* x);
void drop_out(DeviceEngine&, std::size_t n, const Dropout& dropout, float* x);
/// Each of `rows` rows of y becomes `row`, of n elements.
void fill_rows(Engine&, std::size_t rows, std::size_t n, const float* row, float* y);
void fill_rows(DeviceEngine&, std::size_t rows, std::size_t n, const float* row, float* y);
/// sum += the rows of x, one after the other. Rows lie `apart` elements apart.
void add_rows(Engine&, std::size_t rows, std::size_t n, const float* x, std::size_t apart, float* sum);
void add_rows(DeviceEngine&, std::size_t rows, std::size_t n, const float* x, std::size_t apart, float* sum);
/// `y` may be one of them.
void add(Engine&, std::size_t n, const float* a, const float* b, float* y);
void add(DeviceEngine&, std::size_t n, const float* a, const float* b, float* y);
void add(Bf16Engine&, std::size_t n, const bf16* a, const bf16* b, bf16* y);

/// Returns the mean over rows of -ln softmax(logits)[target] and replaces the logits by its gradient. `losses` has one
/// element per row, and one more for the mean.
float cross_entropy(Engine&, std::size_t rows, std::size_t classes, const std::int32_t* targets, float* logits, float* losses);
elrun::DeviceScalar cross_entropy(DeviceEngine&, std::size_t rows, std::size_t classes, const std::int32_t* targets, float* logits,
                                  float* losses);
elrun::DeviceScalar cross_entropy(Bf16Engine&, std::size_t rows, std::size_t classes, const std::int32_t* targets, bf16* logits,
                                  float* losses);

}  // namespace nn
