#include "samples/nn/block.hpp"

namespace nn {

BlockActivations::BlockActivations(const BlockShape& s)
    : norm1(s.rows() * s.channels),
      mean1(s.rows()),
      scale1(s.rows()),
      qkv(s.rows() * 3 * s.channels),
      attention(s.attention_elements()),
      mixed(s.rows() * s.channels),
      middle(s.rows() * s.channels),
      norm2(s.rows() * s.channels),
      mean2(s.rows()),
      scale2(s.rows()),
      hidden(s.rows() * 4 * s.channels),
      active(s.rows() * 4 * s.channels) {}

BlockScratch::BlockScratch(const BlockShape& s)
    : narrow(s.rows() * s.channels), wide(s.rows() * 4 * s.channels), attention(s.attention_elements()) {}

void block_activations(Engine& engine, const BlockShape& s, const BlockTensors<const float>& w, const float* x, BlockActivations& kept,
                       BlockScratch& scratch) {
  const std::size_t rows = s.rows(), c = s.channels;
  const LayerNorm norm{c};
  norm.forward(engine, rows, x, w.norm1_weight, w.norm1_bias, kept.norm1.data(), kept.mean1.data(), kept.scale1.data());
  Linear{c, 3 * c}.forward(engine, rows, kept.norm1.data(), w.qkv, kept.qkv.data());
  Attention{c, s.heads}.forward(engine, s.batch, s.context, kept.qkv.data(), kept.attention.data(), kept.mixed.data());
  Linear{c, c}.forward(engine, rows, kept.mixed.data(), w.mix, scratch.narrow.data());
  add(engine, rows * c, x, scratch.narrow.data(), kept.middle.data());

  norm.forward(engine, rows, kept.middle.data(), w.norm2_weight, w.norm2_bias, kept.norm2.data(), kept.mean2.data(), kept.scale2.data());
  Linear{c, 4 * c}.forward(engine, rows, kept.norm2.data(), w.expand, kept.hidden.data());
  gelu_forward(engine, rows * 4 * c, kept.hidden.data(), kept.active.data());
}

void block_forward(Engine& engine, const BlockShape& s, const BlockTensors<const float>& w, const float* x, BlockActivations& kept,
                   BlockScratch& scratch, float* y) {
  const std::size_t rows = s.rows(), c = s.channels;
  block_activations(engine, s, w, x, kept, scratch);
  Linear{4 * c, c}.forward(engine, rows, kept.active.data(), w.contract, scratch.narrow.data());
  add(engine, rows * c, kept.middle.data(), scratch.narrow.data(), y);
}

void block_backward(Engine& engine, const BlockShape& s, const BlockTensors<const float>& w, const BlockTensors<float>& g, const float* x,
                    const BlockActivations& kept, BlockScratch& scratch, float* dx) {
  const std::size_t rows = s.rows(), c = s.channels;
  const LayerNorm norm{c};
  float* const narrow = scratch.narrow.data();
  float* const wide = scratch.wide.data();
  // The gradient along a residual branch is added to dx, which already holds that of the straight path.
  const Linear contract{4 * c, c}, expand{c, 4 * c}, mix{c, c}, qkv{c, 3 * c};
  contract.backward_weight(engine, rows, dx, kept.active.data(), g.contract);
  contract.backward_input(engine, rows, dx, w.contract, wide);
  gelu_backward(engine, rows * 4 * c, wide, kept.hidden.data(), wide);
  expand.backward_weight(engine, rows, wide, kept.norm2.data(), g.expand);
  expand.backward_input(engine, rows, wide, w.expand, narrow);
  norm.backward(engine, rows, narrow, kept.middle.data(), w.norm2_weight, kept.mean2.data(), kept.scale2.data(), dx, g.norm2_weight,
                g.norm2_bias);

  mix.backward_weight(engine, rows, dx, kept.mixed.data(), g.mix);
  mix.backward_input(engine, rows, dx, w.mix, narrow);
  Attention{c, s.heads}.backward(engine, s.batch, s.context, narrow, kept.qkv.data(), kept.attention.data(), scratch.attention.data(),
                                 wide);
  qkv.backward_weight(engine, rows, wide, kept.norm1.data(), g.qkv);
  qkv.backward_input(engine, rows, wide, w.qkv, narrow);
  norm.backward(engine, rows, narrow, x, w.norm1_weight, kept.mean1.data(), kept.scale1.data(), dx, g.norm1_weight, g.norm1_bias);
}

}  // namespace nn
