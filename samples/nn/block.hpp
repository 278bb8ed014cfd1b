#pragma once
/// \file A transformer block: x + attention(norm(x)), then that + mlp(norm(that)), with a hidden layer of 4 · channels.

#include <array>
#include <cstddef>

#include "samples/nn/layers.hpp"

namespace nn {

/// Of one block, weights or their gradients. Matrices are [out][in].
template <class T>
struct BlockTensors {
  T *norm1_weight, *norm1_bias;  ///< [C]
  T* qkv;                        ///< [3C][C]
  T* mix;                        ///< [C][C]
  T *norm2_weight, *norm2_bias;  ///< [C]
  T* expand;                     ///< [4C][C]
  T* contract;                   ///< [C][4C]
};

/// The size of what goes through a block.
struct BlockShape {
  std::size_t batch, context, channels, heads;
  [[nodiscard]] std::size_t rows() const { return batch * context; }
  [[nodiscard]] std::size_t attention_elements() const { return batch * heads * context * context; }
};

/// What an engine's attention keeps, and needs a second time on the way back (layers.hpp says what it is).
template <class E>
struct AttentionArray {
  using Type = typename E::Array;
  static Type make(const E& engine, const BlockShape& shape) { return engine.array(shape.attention_elements()); }
};

/// What a block keeps from forward to backward. Allocated once, for `largest`; smaller shapes may use it. `E`: Engine, DeviceEngine or Bf16Engine.
template <class E>
struct BlockActivations {
  BlockActivations(const E& engine, const BlockShape& largest);
  typename E::Array norm1;
  typename E::Floats mean1, scale1;
  typename E::Array qkv;
  typename AttentionArray<E>::Type attention;
  typename E::Array mixed, middle, norm2;
  typename E::Floats mean2, scale2;
  typename E::Array hidden, active;
};
/// What a backward pass needs and nobody keeps: one for all blocks.
template <class E>
struct BlockScratch {
  BlockScratch(const E& engine, const BlockShape& largest);
  typename E::Array narrow, wide;
  typename AttentionArray<E>::Type attention;
};

template <class E>
using BlockWeights = BlockTensors<const typename E::Value>;

/// The linear layers of a block.
[[nodiscard]] constexpr std::array<Linear, 4> block_linears(std::size_t channels) {
  const std::size_t c = channels;
  return {{{c, 3 * c}, {c, c}, {c, 4 * c}, {4 * c, c}}};
}
/// Linear::prepare of all that a block has.
template <class E>
void block_prepare(E& engine, const BlockShape& shape) {
  for (const Linear& each : block_linears(shape.channels)) each.prepare(engine, shape.rows());
}
/// What block_backward needs of a forward pass: all of it but the output.
template <class E>
void block_activations(E&, const BlockShape&, const BlockWeights<E>& weights, const typename E::Value* x, BlockActivations<E>& kept,
                       BlockScratch<E>&);
/// The activations and the output. `y` may not be `x`.
template <class E>
void block_forward(E&, const BlockShape&, const BlockWeights<E>& weights, const typename E::Value* x, BlockActivations<E>& kept,
                   BlockScratch<E>&, typename E::Value* y);
/// `dx` holds the gradient of the output and becomes that of the input; adds to `gradients`.
template <class E>
void block_backward(E&, const BlockShape&, const BlockWeights<E>& weights, const BlockTensors<float>& gradients, const typename E::Value* x,
                    const BlockActivations<E>& kept, BlockScratch<E>&, typename E::Value* dx);

}  // namespace nn
