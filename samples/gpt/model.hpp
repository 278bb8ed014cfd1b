#pragma once
/// \file The model: a transformer over bytes or token ids (pre-norm, causal attention, GELU, learned positions, tied head) over the
/// units of a Job, on the host or on a device.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <elrun/job.hpp>
#include "samples/gpt/options.hpp"
#include "samples/nn/block.hpp"

namespace gpt {

/// The linear layers of a model, each size once: those of a block, and the head. A step computes them for rows of `micro_batch` · `context`.
[[nodiscard]] std::vector<nn::Linear> linears(const Options& options);

/// More fields than 15: each tensor and each activation is one. `E`: nn::Engine or nn::DeviceEngine, whose bits are the same, or nn::Bf16Engine, whose are others.
template <class E>
class Model {
 public:
  using Value = typename E::Value;  ///< Of weights and activations.
  /// Declares the units and allocates all activations, for slots of `options.micro_batch` samples.
  Model(elrun::Job& job, E& engine, const Options& options);

  /// After `seal()`: normal numbers of a deviation that falls with the width, smaller still where a block writes to the
  /// residual stream. (The usual 0.02 is for wide models: a narrow one learns pairs of bytes and then nothing for
  /// long.)
  void initialise(const elrun::RandomStream& random);

  /// The mean loss over samples of `context` tokens. Keeps what `backward` needs; with `options.recompute` no more
  /// of a block than what enters it, from which `backward` computes the rest again: the same operations, so the same
  /// bits (Chen et al., "Training deep nets with sublinear memory cost", 2016).
  /// `inputs` and `targets` of the host, as many as there are tokens; `inputs` stay until `backward` returns.
  typename E::Loss forward(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets);
  /// Hands the gradients of the last `forward` to the job.
  void backward();

  /// `count` tokens that follow a line's end (of ids: the first of all), each drawn from the model's prediction by a random number of its own.
  [[nodiscard]] std::vector<std::int32_t> generate(std::size_t count, const elrun::RandomStream& random);

 private:
  struct Block {
    elrun::Unit unit;
    elrun::Tensor<Value> norm1_weight, norm1_bias, qkv, mix, norm2_weight, norm2_bias, expand, contract;
    Block(elrun::Unit u, std::size_t channels);
    [[nodiscard]] nn::BlockWeights<E> weights() const;
    [[nodiscard]] nn::BlockTensors<float> gradients() const;
  };

  [[nodiscard]] nn::BlockActivations<E>& kept_of(std::size_t block) { return kept_[recompute_ ? 0 : block]; }
  /// Leaves logits for all positions in `logits_`.
  void predict(const nn::BlockShape& shape, std::span<const std::int32_t> inputs);

  E& engine_;
  std::size_t ids_, vocabulary_;  // tokens that there are, and rows of the embedding
  nn::BlockShape largest_;
  elrun::Unit embedding_;
  elrun::Tensor<Value> tokens_;
  elrun::Unit place_;
  elrun::Tensor<Value> positions_;
  std::vector<Block> blocks_;
  elrun::Unit last_;
  elrun::Tensor<Value> norm_weight_, norm_bias_;

  nn::BlockShape shape_;              // of the last forward pass
  std::vector<typename E::Array> x_;  // what enters each block, and what leaves the last
  typename E::Ids inputs_, targets_;
  const std::int32_t* read_inputs_ = nullptr;  // of the last forward pass, where layers read them
  bool recompute_;
  std::vector<nn::BlockActivations<E>> kept_;  // of all blocks, or of the last one computed
  nn::BlockScratch<E> scratch_;
  typename E::Array norm_;
  typename E::Floats mean_, scale_;
  typename E::Array logits_;
  typename E::Floats losses_;
  typename E::Array dx_;
};

}  // namespace gpt
