#pragma once
/// \file A transformer block: x + attention(norm(x)), then that + mlp(norm(that)), with a hidden layer of 4 · channels.

#include <cstddef>
#include <vector>

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

/// What a block keeps from forward to backward. Allocated once, for `largest`; smaller shapes may use it.
struct BlockActivations {
  explicit BlockActivations(const BlockShape& largest);
  std::vector<float> norm1, mean1, scale1, qkv, attention, mixed, middle, norm2, mean2, scale2, hidden, active;
};
/// What a backward pass needs and nobody keeps: one for all blocks.
struct BlockScratch {
  explicit BlockScratch(const BlockShape& largest);
  std::vector<float> narrow, wide, attention;
};

/// What block_backward needs of a forward pass: all of it but the output.
void block_activations(Engine&, const BlockShape&, const BlockTensors<const float>& weights, const float* x, BlockActivations& kept,
                       BlockScratch&);
/// The activations and the output. `y` may not be `x`.
void block_forward(Engine&, const BlockShape&, const BlockTensors<const float>& weights, const float* x, BlockActivations& kept,
                   BlockScratch&, float* y);
/// `dx` holds the gradient of the output and becomes that of the input; adds to `gradients`.
void block_backward(Engine&, const BlockShape&, const BlockTensors<const float>& weights, const BlockTensors<float>& gradients,
                    const float* x, const BlockActivations& kept, BlockScratch&, float* dx);

}  // namespace nn
