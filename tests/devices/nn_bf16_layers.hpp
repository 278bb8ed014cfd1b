#pragma once
/// \file Layers of the samples in bf16 with the same names for host and device, for tests of what they write. Each returns it in parts that have a scale of their own.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "lib/device/handles.hpp"
#include "samples/nn/bf16_engine.hpp"
#include "samples/nn/layers.hpp"
#include "tests/unit/nn_support.hpp"

namespace nn::test::in_bf16 {

using Array = std::vector<float>;

inline float rounded(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}
/// Random numbers that bf16 holds.
inline Array random(std::size_t n, std::uint32_t which, float scale = 1) {
  Array values = test::random(n, which, scale);
  std::ranges::transform(values, values.begin(), rounded);
  return values;
}

/// What a layer has on the host: values, weights and floats are alike there.
class OnHost {
 public:
  using E = Engine;
  float* put(const Array& values) { return &*arrays_.emplace_back(values).begin(); }
  float* floats(const Array& values) { return put(values); }
  const std::int32_t* ids(const std::vector<std::int32_t>& values) { return ids_.emplace_back(values).data(); }
  Array read(const float* at, std::size_t n) { return {at, at + n}; }
  float loss(float x) { return x; }
  /// How many floats attention keeps for the way back.
  static std::size_t kept_of_attention(std::size_t rows, std::size_t context) { return rows * context; }
  E engine;

 private:
  std::vector<Array> arrays_;
  std::vector<std::vector<std::int32_t>> ids_;
};
/// And on a device in bf16.
class OnDevice {
 public:
  using E = Bf16Engine;
  bf16* put(const Array& values) {
    arrays_.push_back(engine.array(values.size()));
    engine.write(values, arrays_.back().data());
    return arrays_.back().data();
  }
  float* floats(const Array& values) {
    floats_.push_back(engine.floats(values.size()));
    DeviceEngine{stream_.view()}.write(values, floats_.back().data());
    return floats_.back().data();
  }
  const std::int32_t* ids(const std::vector<std::int32_t>& values) {
    ids_.push_back(engine.ids(values.size()));
    return ids_.back().hold(values);
  }
  template <class T>
  Array read(const T* at, std::size_t n) {
    Array out(n);
    engine.read(at, out);
    return out;
  }
  float loss(const elrun::DeviceScalar& x) { return read(x.pointer, 1)[0]; }
  static std::size_t kept_of_attention(std::size_t rows, std::size_t) { return rows; }

 private:
  elrun::OwnedStream stream_{elrun::Device{elrun::DeviceKind::cuda, 0}};

 public:
  E engine{stream_.view(), 256};

 private:
  std::vector<E::Array> arrays_;
  std::vector<E::Floats> floats_;
  std::vector<E::Ids> ids_;
};

template <class Setting>
std::vector<Array> linear(Setting& at, std::size_t rows, std::size_t in, std::size_t out) {
  const Linear layer{in, out};
  const auto *const x = at.put(random(rows * in, 1)), *const w = at.put(random(out * in, 2)), *const dy = at.put(random(rows * out, 3));
  auto *const y = at.put(Array(rows * out)), *const dx = at.put(Array(rows * in));
  float* const dw = at.floats(random(out * in, 4));
  layer.prepare(at.engine, rows);
  layer.forward(at.engine, rows, x, w, y);
  layer.backward_input(at.engine, rows, dy, w, dx);
  layer.backward_weight(at.engine, rows, dy, x, dw);
  return {at.read(y, rows * out), at.read(dx, rows * in), at.read(dw, out * in)};
}

template <class Setting>
std::vector<Array> norm(Setting& at, std::size_t rows, std::size_t c) {
  const LayerNorm layer{c};
  const auto *const x = at.put(random(rows * c, 1)), *const w = at.put(random(c, 2)), *const b = at.put(random(c, 3)),
                    *const dy = at.put(random(rows * c, 4));
  auto *const y = at.put(Array(rows * c)), *const dx = at.put(random(rows * c, 5));
  float *const mean = at.floats(Array(rows)), *const scale = at.floats(Array(rows)), *const dw = at.floats(random(c, 6)),
               *const db = at.floats(random(c, 7));
  layer.forward(at.engine, rows, x, w, b, y, mean, scale);
  layer.backward(at.engine, rows, dy, x, w, mean, scale, dx, dw, db);
  return {at.read(y, rows * c), at.read(mean, rows), at.read(scale, rows), at.read(dx, rows * c), at.read(dw, c), at.read(db, c)};
}

template <class Setting>
std::vector<Array> attention(Setting& at, std::size_t batch, std::size_t context, std::size_t size, std::size_t heads) {
  const std::size_t c = size * heads, rows = batch * context, kept = at.kept_of_attention(rows * heads, context);
  const Attention layer{c, heads};
  const auto *const qkv = at.put(random(rows * 3 * c, 1, 2)), *const dy = at.put(random(rows * c, 2));
  auto *const y = at.put(Array(rows * c)), *const dqkv = at.put(Array(rows * 3 * c));
  float *const attention = at.floats(Array(kept)), *const dattention = at.floats(Array(kept));
  layer.forward(at.engine, batch, context, qkv, attention, y);
  layer.backward(at.engine, batch, context, dy, qkv, y, attention, dattention, dqkv);
  return {at.read(y, rows * c), at.read(dqkv, rows * 3 * c)};
}

/// Embeddings and GELU; a token comes in far rows.
template <class Setting>
std::vector<Array> ends_of_a_model(Setting& at) {
  constexpr std::size_t context = 150, rows = 300, vocabulary = 64, c = 16;
  std::vector<std::int32_t> ids(rows);
  for (std::size_t i = 0; i < rows; ++i) ids[i] = static_cast<std::int32_t>(i * i % 40);
  const auto* const there = at.ids(ids);
  const auto *const tokens = at.put(random(vocabulary * c, 1)), *const positions = at.put(random(context * c, 2)),
                    *const dx = at.put(random(rows * c, 3));
  auto *const x = at.put(Array(rows * c)), *const active = at.put(Array(rows * c)), *const back = at.put(Array(rows * c)),
              *const sum = at.put(Array(rows * c));
  float *const dt = at.floats(random(vocabulary * c, 5)), *const dp = at.floats(random(context * c, 6));
  const Embedding embedding{c};
  embedding.forward(at.engine, rows, context, there, tokens, positions, x);
  embedding.backward(at.engine, rows, context, vocabulary, there, dx, dt, dp);
  gelu_forward(at.engine, rows * c, x, active);
  gelu_backward(at.engine, rows * c, dx, x, back);
  add(at.engine, rows * c, active, back, sum);
  return {at.read(x, rows * c),      at.read(dt, vocabulary * c), at.read(dp, context * c),
          at.read(active, rows * c), at.read(back, rows * c),     at.read(sum, rows * c)};
}

template <class Setting>
std::vector<Array> loss(Setting& at, std::size_t rows, std::size_t classes) {
  std::vector<std::int32_t> targets(rows);
  for (std::size_t i = 0; i < rows; ++i) targets[i] = static_cast<std::int32_t>((i * 1031 + classes - 1) % classes);
  auto* const logits = at.put(random(rows * classes, 1, 5));
  float* const losses = at.floats(Array(rows + 1));
  const float mean = at.loss(cross_entropy(at.engine, rows, classes, at.ids(targets), logits, losses));
  return {at.read(logits, rows * classes), at.read(losses, rows), {mean}};
}

}  // namespace nn::test::in_bf16
