#pragma once
/// \file The model: a byte-level transformer (pre-norm, causal attention, GELU, learned positions, tied head) over the
/// units of a Job.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/job.hpp>
#include "samples/gpt/options.hpp"
#include "samples/nn/block.hpp"

namespace gpt {

class Model {
 public:
  static constexpr std::size_t vocabulary = 256;

  /// Declares the units and allocates all activations, for slots of `options.micro_batch` samples.
  Model(elrun::Job& job, nn::Engine& engine, const Options& options);

  /// After `seal()`: normal numbers of a deviation that falls with the width, smaller still where a block writes to the
  /// residual stream. (The usual 0.02 is for wide models: a narrow one learns pairs of bytes and then nothing for
  /// long.)
  void initialise(const elrun::RandomStream& random);

  /// The mean loss over `batch` samples of `context` bytes. Keeps what `backward` needs; with `options.recompute` no more
  /// of a block than what enters it, from which `backward` computes the rest again: the same operations, so the same
  /// bits (Chen et al., "Training deep nets with sublinear memory cost", 2016).
  float forward(std::size_t batch, const std::int32_t* inputs, const std::int32_t* targets);
  /// Hands the gradients of the last `forward` to the job.
  void backward(const std::int32_t* inputs);

  /// `count` bytes that follow a line's end, each drawn from the model's prediction by a random number of its own.
  [[nodiscard]] std::vector<unsigned char> generate(std::size_t count, const elrun::RandomStream& random);

 private:
  struct Block {
    elrun::Unit unit;
    elrun::Tensor<float> norm1_weight, norm1_bias, qkv, mix, norm2_weight, norm2_bias, expand, contract;
    Block(elrun::Unit u, std::size_t channels);
    [[nodiscard]] nn::BlockTensors<const float> weights() const;
    [[nodiscard]] nn::BlockTensors<float> gradients() const;
  };

  [[nodiscard]] nn::BlockActivations& kept_of(std::size_t block) { return kept_[recompute_ ? 0 : block]; }
  /// Leaves logits for all positions in `logits_`.
  void predict(const nn::BlockShape& shape, const std::int32_t* inputs);

  nn::Engine& engine_;
  nn::BlockShape largest_;
  elrun::Unit embedding_;
  elrun::Tensor<float> tokens_;
  elrun::Unit place_;
  elrun::Tensor<float> positions_;
  std::vector<Block> blocks_;
  elrun::Unit last_;
  elrun::Tensor<float> norm_weight_, norm_bias_;

  nn::BlockShape shape_;               // of the last forward pass
  std::vector<std::vector<float>> x_;  // what enters each block, and what leaves the last
  bool recompute_;
  std::vector<nn::BlockActivations> kept_;  // of all blocks, or of the last one computed
  nn::BlockScratch scratch_;
  std::vector<float> norm_, mean_, scale_, logits_, losses_, dx_;
};

}  // namespace gpt
