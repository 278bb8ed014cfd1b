// The block for any engine: block.cpp makes it for the host, device_engine.cpp for a device, bf16_engine.cpp for its tensor cores.

#include "samples/nn/block.hpp"

namespace nn {

template <class E>
BlockActivations<E>::BlockActivations(const E& engine, const BlockShape& s)
    : norm1(engine.array(s.rows() * s.channels)),
      mean1(engine.floats(s.rows())),
      scale1(engine.floats(s.rows())),
      qkv(engine.array(s.rows() * 3 * s.channels)),
      attention(AttentionArray<E>::make(engine, s)),
      mixed(engine.array(s.rows() * s.channels)),
      middle(engine.array(s.rows() * s.channels)),
      norm2(engine.array(s.rows() * s.channels)),
      mean2(engine.floats(s.rows())),
      scale2(engine.floats(s.rows())),
      hidden(engine.array(s.rows() * 4 * s.channels)),
      active(engine.array(s.rows() * 4 * s.channels)) {}

template <class E>
BlockScratch<E>::BlockScratch(const E& engine, const BlockShape& s)
    : narrow(engine.array(s.rows() * s.channels)),
      wide(engine.array(s.rows() * 4 * s.channels)),
      attention(AttentionArray<E>::make(engine, s)) {}

template <class E>
void block_activations(E& engine, const BlockShape& s, const BlockWeights<E>& w, const typename E::Value* x, BlockActivations<E>& kept,
                       BlockScratch<E>& scratch) {
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

template <class E>
void block_forward(E& engine, const BlockShape& s, const BlockWeights<E>& w, const typename E::Value* x, BlockActivations<E>& kept,
                   BlockScratch<E>& scratch, typename E::Value* y) {
  const std::size_t rows = s.rows(), c = s.channels;
  block_activations(engine, s, w, x, kept, scratch);
  Linear{4 * c, c}.forward(engine, rows, kept.active.data(), w.contract, scratch.narrow.data());
  add(engine, rows * c, kept.middle.data(), scratch.narrow.data(), y);
}

template <class E>
void block_backward(E& engine, const BlockShape& s, const BlockWeights<E>& w, const BlockTensors<float>& g, const typename E::Value* x,
                    const BlockActivations<E>& kept, BlockScratch<E>& scratch, typename E::Value* dx) {
  const std::size_t rows = s.rows(), c = s.channels;
  const LayerNorm norm{c};
  typename E::Value *const narrow = scratch.narrow.data(), *const wide = scratch.wide.data();
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
  Attention{c, s.heads}.backward(engine, s.batch, s.context, narrow, kept.qkv.data(), kept.mixed.data(), kept.attention.data(),
                                 scratch.attention.data(), wide);
  qkv.backward_weight(engine, rows, wide, kept.norm1.data(), g.qkv);
  qkv.backward_input(engine, rows, wide, w.qkv, narrow);
  norm.backward(engine, rows, narrow, x, w.norm1_weight, kept.mean1.data(), kept.scale1.data(), dx, g.norm1_weight, g.norm1_bias);
}

#define NN_BLOCK(E)                                                                                                                      \
  template struct BlockActivations<E>;                                                                                                   \
  template struct BlockScratch<E>;                                                                                                       \
  template void block_activations(E&, const BlockShape&, const BlockWeights<E>&, const E::Value*, BlockActivations<E>&,                  \
                                  BlockScratch<E>&);                                                                                     \
  template void block_forward(E&, const BlockShape&, const BlockWeights<E>&, const E::Value*, BlockActivations<E>&, BlockScratch<E>&,    \
                              E::Value*);                                                                                                \
  template void block_backward(E&, const BlockShape&, const BlockWeights<E>&, const BlockTensors<float>&, const E::Value*,               \
                               const BlockActivations<E>&, BlockScratch<E>&, E::Value*);

}  // namespace nn
