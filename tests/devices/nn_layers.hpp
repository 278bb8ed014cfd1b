#pragma once
/// \file Layers of the samples with the same names for host and device, for tests that compare their bits.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/device/handles.hpp"
#include "samples/nn/conv.hpp"
#include "samples/nn/device_engine.hpp"
#include "samples/nn/layers.hpp"
#include "tests/unit/nn_support.hpp"

namespace nn::test {

using Array = std::vector<float>;

inline const elrun::Device device{elrun::DeviceKind::cuda, 0};

/// A layer's call, with the same names for host and device: arrays are made of values, and read back.
template <class E>
class Setting {
 public:
  explicit Setting(E& e) : engine{e} {}
  float* put(const Array& values) {
    arrays_.push_back(engine.array(values.size()));
    float* const at = arrays_.back().data();
    engine.write(values, at);
    return at;
  }
  float* room(std::size_t n) { return put(Array(n, -7.0f)); }
  float* zeros(std::size_t n) {
    arrays_.push_back(engine.array(n));
    engine.fill_with_zeros(arrays_.back().data(), n);
    return arrays_.back().data();
  }
  const std::int32_t* ids(const std::vector<std::int32_t>& values) {
    ids_.push_back(engine.ids(values.size()));
    return ids_.back().hold(values);
  }
  Array read(const float* at, std::size_t n) {
    Array out(n);
    engine.read(at, out);
    return out;
  }
  E& engine;

 private:
  std::vector<typename E::Array> arrays_;
  std::vector<typename E::Ids> ids_;
};

inline float value(Setting<Engine>&, float loss) { return loss; }
inline float value(Setting<DeviceEngine>& at, const elrun::DeviceScalar& loss) { return at.read(loss.pointer, 1)[0]; }

inline Array joined(const std::vector<Array>& parts) {
  Array out;
  for (const Array& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

/// What `layer(setting)` returns, which is everything that it wrote: on the host, and on a device.
template <class Layer>
std::pair<Array, Array> on_both(const Layer& layer) {
  Engine host;
  Setting<Engine> on_host{host};
  Array expected = layer(on_host);
  const elrun::OwnedStream stream{device};
  DeviceEngine there{stream.view()};
  Setting<DeviceEngine> on_device{there};
  return {std::move(expected), layer(on_device)};
}

template <class E>
Array linear(Setting<E>& at, std::size_t rows, std::size_t in, std::size_t out) {
  const Linear layer{in, out};
  const float *x = at.put(random(rows * in, 1)), *w = at.put(random(out * in, 2)), *g = at.put(random(rows * out, 3));
  float *y = at.room(rows * out), *dx = at.room(rows * in), *dw = at.put(random(out * in, 4));
  layer.forward(at.engine, rows, x, w, y);
  layer.backward_input(at.engine, rows, g, w, dx);
  layer.backward_weight(at.engine, rows, g, x, dw);
  return joined({at.read(y, rows * out), at.read(dx, rows * in), at.read(dw, out * in)});
}

template <class E>
Array norm(Setting<E>& at, std::size_t rows, std::size_t c) {
  const LayerNorm layer{c};
  const float *x = at.put(random(rows * c, 1, 2)), *w = at.put(random(c, 2)), *b = at.put(random(c, 3)), *g = at.put(random(rows * c, 4));
  float *y = at.room(rows * c), *mean = at.room(rows), *scale = at.room(rows), *dx = at.put(random(rows * c, 5)),
        *dw = at.put(random(c, 6)), *db = at.put(random(c, 7));
  layer.forward(at.engine, rows, x, w, b, y, mean, scale);
  layer.backward(at.engine, rows, g, x, w, mean, scale, dx, dw, db);
  return joined({at.read(y, rows * c), at.read(mean, rows), at.read(scale, rows), at.read(dx, rows * c), at.read(dw, c), at.read(db, c)});
}

template <class E>
Array attention(Setting<E>& at, std::size_t batch, std::size_t context, std::size_t c, std::size_t heads) {
  const Attention layer{c, heads};
  const std::size_t rows = batch * context, scores = batch * heads * context * context;
  const float *qkv = at.put(random(rows * 3 * c, 1)), *g = at.put(random(rows * c, 2));
  float *p = at.room(scores), *y = at.room(rows * c), *dp = at.room(scores), *dqkv = at.room(rows * 3 * c);
  layer.forward(at.engine, batch, context, qkv, p, y);
  layer.backward(at.engine, batch, context, g, qkv, y, p, dp, dqkv);
  return joined({at.read(p, scores), at.read(y, rows * c), at.read(dp, scores), at.read(dqkv, rows * 3 * c)});
}

/// Embeddings, GELU and cross-entropy; a token comes twice.
template <class E>
Array ends_of_a_model(Setting<E>& at) {
  const std::size_t rows = 12, context = 4, c = 21, vocabulary = 10;
  const std::vector<std::int32_t> ids{3, 1, 3, 9, 0, 3, 3, 1, 9, 9, 4, 0};
  const auto* there = at.ids(ids);
  const float *tokens = at.put(random(vocabulary * c, 1)), *positions = at.put(random(context * c, 2)), *g = at.put(random(rows * c, 3));
  float *x = at.room(rows * c), *dt = at.put(random(vocabulary * c, 4)), *dp = at.put(random(context * c, 5)), *y = at.room(rows * c),
        *dx = at.room(rows * c), *logits = at.put(random(rows * c, 6, 3)), *losses = at.room(rows + 1);
  const Embedding embedding{c};
  embedding.forward(at.engine, rows, context, there, tokens, positions, x);
  embedding.backward(at.engine, rows, context, vocabulary, there, g, dt, dp);
  gelu_forward(at.engine, rows * c, x, y);
  gelu_backward(at.engine, rows * c, g, x, dx);
  const float loss = value(at, cross_entropy(at.engine, rows, c, there, logits, losses));
  return joined({at.read(x, rows * c),
                 at.read(dt, vocabulary * c),
                 at.read(dp, context * c),
                 at.read(y, rows * c),
                 at.read(dx, rows * c),
                 at.read(logits, rows * c),
                 at.read(losses, rows),
                 {loss}});
}

/// relu, dropout, and what is done row by row.
template <class E>
Array rows_of_a_layer(Setting<E>& at) {
  const std::size_t rows = 6, n = 40, apart = 43;
  const Dropout dropout{elrun::RandomStream{9, 2, 1}, 64};
  const float *x = at.put(random(rows * n, 1)), *wide = at.put(random(rows * apart, 2)), *row = at.put(random(n, 3)),
              *w = at.put(random(7 * n, 4));
  float *y = at.room(rows * n), *dx = at.room(rows * n), *sum = at.zeros(n), *biased = at.room(rows * 7);
  {
    auto gone = at.engine.array(rows * n);  // freed behind the kernel that writes it
    relu_forward(at.engine, rows * n, x, gone.data());
  }
  relu_forward(at.engine, rows * n, x, y);
  drop_out(at.engine, rows * n, dropout, y);
  relu_backward(at.engine, rows * n, x, y, 256.0f / 192, dx);
  add_rows(at.engine, rows, n, wide, apart, sum);
  fill_rows(at.engine, rows, 7, row, biased);
  Linear{n, 7}.forward(at.engine, rows, y, w, biased, Into::sum);
  return joined({at.read(y, rows * n), at.read(dx, rows * n), at.read(sum, n), at.read(biased, rows * 7)});
}

/// A convolution of images in groups: y, then the sums of each group for weights and bias, then dx.
inline Array convolution_of(Setting<Engine>& at, const Convolution& conv, std::size_t images, std::size_t group, std::size_t inputs,
                            const float* x, const float* w, const float* b, const float* dy, std::size_t out, std::size_t out_width) {
  const std::size_t outputs = conv.outputs(), groups = (images + group - 1) / group;
  float *y = at.room(images * outputs), *dx = at.room(images * inputs), *turned = at.room(conv.weights()),
        *rimmed = at.put(Array(conv.rimmed_size()));
  Array sums;
  conv.turn(w, turned);
  for (std::size_t g = 0; g < groups; ++g) {
    float *dw = at.room(conv.weights()), *db = at.put(Array(out));
    for (std::size_t i = g * group; i < std::min(images, (g + 1) * group); ++i) {
      const Into into = i == g * group ? Into::fresh : Into::sum;
      conv.forward(at.engine, 0, x + i * inputs, w, b, y + i * outputs);
      conv.backward_weight(at.engine, 0, dy + i * outputs, Rim::none, x + i * inputs, dw, into);
      for (std::size_t p = 0; p < outputs / out; ++p) {
        at.engine.kernels().add(db, dy + i * outputs + p * out, out, db);
        std::copy_n(dy + i * outputs + p * out, out, rimmed + conv.rimmed_at(p / out_width, p % out_width));
      }
      conv.backward_input(at.engine, 0, rimmed, turned, dx + i * inputs);
    }
    sums = joined({sums, at.read(dw, conv.weights()), at.read(db, out)});
  }
  return joined({at.read(y, images * outputs), sums, at.read(dx, images * inputs)});
}
inline Array convolution_of(Setting<DeviceEngine>& at, const Convolution& conv, std::size_t images, std::size_t group, std::size_t inputs,
                            const float* x, const float* w, const float* b, const float* dy, std::size_t out, std::size_t) {
  const std::size_t outputs = conv.outputs(), groups = (images + group - 1) / group, apart = conv.weights() + out;
  float *y = at.room(images * outputs), *dx = at.room(images * inputs), *sums = at.room(groups * apart);
  conv.forward(at.engine, images, x, w, b, y);
  conv.backward_weight(at.engine, images, group, dy, x, sums, apart);
  conv.backward_bias(at.engine, images, group, dy, sums + conv.weights(), apart);
  conv.backward_input(at.engine, images, dy, w, dx);
  return joined({at.read(y, images * outputs), at.read(sums, groups * apart), at.read(dx, images * inputs)});
}

/// The maximum over 2 x 2: y, which was chosen, dx, and the sums of each group for the bias.
inline Array pooling_of(Setting<Engine>& at, const MaxPool& pool, std::size_t images, std::size_t group, const Dropout& dropout,
                        const float* x, const float* dy) {
  const std::size_t n = images * pool.outputs(), c = pool.channels, row = 2 * pool.width * c;
  float *y = at.room(n), *chosen = at.room(n), *dx = at.room(4 * n), *sums = at.put(Array((images + group - 1) / group * c));
  for (std::size_t pixel = 0; pixel < n / c; ++pixel) {
    const std::size_t first = pixel / pool.width * 2 * row + pixel % pool.width * 2 * c;
    float factors[16];
    dropout.factors(pixel, factors);  // as many as there are channels
    const float* const four[] = {x + first, x + first + c, x + first + row, x + first + row + c};
    float* const to[] = {dx + first, dx + first + c, dx + first + row, dx + first + row + c};
    at.engine.kernels().pool_forward(four, factors, c, y + pixel * c, chosen + pixel * c);
    at.engine.kernels().pool_backward(dy + pixel * c, y + pixel * c, 1.5f, chosen + pixel * c, c, to,
                                      sums + pixel / (pool.height * pool.width) / group * c);
  }
  return joined({at.read(y, n), at.read(chosen, n), at.read(dx, 4 * n), at.read(sums, (images + group - 1) / group * c)});
}
inline Array pooling_of(Setting<DeviceEngine>& at, const MaxPool& pool, std::size_t images, std::size_t group, const Dropout& dropout,
                        const float* x, const float* dy) {
  const std::size_t n = images * pool.outputs(), c = pool.channels, groups = (images + group - 1) / group;
  float *y = at.room(n), *chosen = at.room(n), *dx = at.room(4 * n), *sums = at.room(groups * c);
  pool.forward(at.engine, images, x, dropout, y, chosen);
  pool.backward(at.engine, images, group, dy, y, 1.5f, chosen, dx, sums, c);
  return joined({at.read(y, n), at.read(chosen, n), at.read(dx, 4 * n), at.read(sums, groups * c)});
}

template <class E>
Array convolution(Setting<E>& at, std::size_t images) {
  const std::size_t height = 8, width = 6, in = 3, out = 5, window = 3, group = 2, inputs = height * width * in;
  const Convolution conv{height, width, in, out, window};
  const float *x = at.put(random(images * inputs, 1)), *w = at.put(random(conv.weights(), 2)), *b = at.put(random(out, 3)),
              *dy = at.put(random(images * conv.outputs(), 4));
  return convolution_of(at, conv, images, group, inputs, x, w, b, dy, out, conv.out_width());
}

/// Some values are equal. `dropped` of 256.
template <class E>
Array pooling(Setting<E>& at, std::uint32_t dropped) {
  const MaxPool pool{3, 2, 16};
  const std::size_t images = 5, group = 2;
  Array values = random(images * pool.outputs() * 4, 1);
  for (std::size_t i = 0; i < 200; ++i) values[i] = 0.5f;
  const float *x = at.put(values), *dy = at.put(random(images * pool.outputs(), 2));
  return pooling_of(at, pool, images, group, {elrun::RandomStream{9, 2, 1}, dropped}, x, dy);
}

}  // namespace nn::test
