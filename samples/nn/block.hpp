#pragma once
/// \file A transformer block: x + attention(norm(x)), then that + mlp(norm(that)), with a hidden layer of 4 · channels.

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

/// What a block keeps from forward to backward. Allocated once, for `largest`; smaller shapes may use it. `E`: Engine or DeviceEngine.
template <class E>
struct BlockActivations {
  BlockActivations(const E& engine, const BlockShape& largest);
  typename E::Array norm1, mean1, scale1, qkv, attention, mixed, middle, norm2, mean2, scale2, hidden, active;
};
/// What a backward pass needs and nobody keeps: one for all blocks.
template <class E>
struct BlockScratch {
  BlockScratch(const E& engine, const BlockShape& largest);
  typename E::Array narrow, wide, attention;
};

/// What block_backward needs of a forward pass: all of it but the output.
template <class E>
void block_activations(E&, const BlockShape&, const BlockTensors<const float>& weights, const float* x, BlockActivations<E>& kept,
                       BlockScratch<E>&);
/// The activations and the output. `y` may not be `x`.
template <class E>
void block_forward(E&, const BlockShape&, const BlockTensors<const float>& weights, const float* x, BlockActivations<E>& kept,
                   BlockScratch<E>&, float* y);
/// `dx` holds the gradient of the output and becomes that of the input; adds to `gradients`.
template <class E>
void block_backward(E&, const BlockShape&, const BlockTensors<const float>& weights, const BlockTensors<float>& gradients, const float* x,
                    const BlockActivations<E>& kept, BlockScratch<E>&, float* dx);

}  // namespace nn
