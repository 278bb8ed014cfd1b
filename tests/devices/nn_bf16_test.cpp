// The layers of the samples in bf16, on fake devices: what the host computes in float from the same rounded inputs, as close as bf16 allows; the same bits whatever the
// order of streams, blocks and threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/device/handles.hpp"
#include "samples/nn/bf16_engine.hpp"
#include "samples/nn/block.hpp"
#include "samples/nn/layers.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/nn_support.hpp"

using namespace nn;

namespace {

using Array = std::vector<float>;

float rounded(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}
/// Random numbers that bf16 holds.
Array random(std::size_t n, std::uint32_t which, float scale = 1) {
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

 private:
  elrun::OwnedStream stream_{elrun::Device{elrun::DeviceKind::cuda, 0}};

 public:
  E engine{stream_.view(), 256};

 private:
  std::vector<E::Array> arrays_;
  std::vector<E::Floats> floats_;
  std::vector<E::Ids> ids_;
};

/// `layer(at)` returns what the layer wrote, in parts that have each a scale of their own.
template <class Layer>
void check_close(const Layer& layer, float tolerance = 0.01f) {
  OnHost host;
  const std::vector<Array> expected = layer(host);
  std::vector<Array> got;
  {
    OnDevice device;
    got = layer(device);
  }
  OnDevice again;
  CHECK(layer(again) == got);
  REQUIRE(got.size() == expected.size());
  for (std::size_t part = 0; part < got.size(); ++part) {
    REQUIRE(got[part].size() == expected[part].size());
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got[part].size(); ++i) {
      error += std::pow(got[part][i] - expected[part][i], 2);
      size += std::pow(expected[part][i], 2);
    }
    INFO("part " << part << ": error " << std::sqrt(error) << " of " << std::sqrt(size));
    CHECK(std::sqrt(error) <= tolerance * std::sqrt(size) + 1e-6);
  }
}

}  // namespace

TEST_CASE("a linear layer in bf16 is the host's as close as bf16 allows", "[devices]") {
  const auto [rows, in, out] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{8, 16, 24}, std::tuple{std::size_t{40}, std::size_t{8}, std::size_t{64}});
  CAPTURE(rows, in, out);
  check_close([&, rows = rows, in = in, out = out](auto& at) {
    const Linear layer{in, out};
    const auto *const x = at.put(random(rows * in, 1)), *const w = at.put(random(out * in, 2)), *const dy = at.put(random(rows * out, 3));
    auto *const y = at.put(Array(rows * out)), *const dx = at.put(Array(rows * in));
    float* const dw = at.floats(random(out * in, 4));
    layer.prepare(at.engine, rows);
    layer.forward(at.engine, rows, x, w, y);
    layer.backward_input(at.engine, rows, dy, w, dx);
    layer.backward_weight(at.engine, rows, dy, x, dw);
    return std::vector{at.read(y, rows * out), at.read(dx, rows * in), at.read(dw, out * in)};
  });
}

TEST_CASE("a layer norm in bf16 is the host's as close as bf16 allows, with more rows than parts of their sums", "[devices]") {
  const auto [rows, c] = GENERATE(std::pair<std::size_t, std::size_t>{5, 40}, std::pair<std::size_t, std::size_t>{301, 16},
                                  std::pair<std::size_t, std::size_t>{2, 256});
  CAPTURE(rows, c);
  check_close([&, rows = rows, c = c](auto& at) {
    const LayerNorm layer{c};
    const auto *const x = at.put(random(rows * c, 1)), *const w = at.put(random(c, 2)), *const b = at.put(random(c, 3)),
                      *const dy = at.put(random(rows * c, 4));
    auto *const y = at.put(Array(rows * c)), *const dx = at.put(random(rows * c, 5));
    float *const mean = at.floats(Array(rows)), *const scale = at.floats(Array(rows)), *const dw = at.floats(random(c, 6)),
                 *const db = at.floats(random(c, 7));
    layer.forward(at.engine, rows, x, w, b, y, mean, scale);
    layer.backward(at.engine, rows, dy, x, w, mean, scale, dx, dw, db);
    return std::vector{at.read(y, rows * c),  at.read(mean, rows), at.read(scale, rows),
                       at.read(dx, rows * c), at.read(dw, c),      at.read(db, c)};
  });
}

TEST_CASE("attention in bf16 is the host's as close as bf16 allows, in one tile and in several, full and not", "[devices]") {
  const auto [context, size, heads] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{1, 16, 1}, std::tuple{std::size_t{9}, std::size_t{16}, std::size_t{2}},
               std::tuple{std::size_t{64}, std::size_t{32}, std::size_t{1}}, std::tuple{std::size_t{70}, std::size_t{64}, std::size_t{1}},
               std::tuple{std::size_t{130}, std::size_t{16}, std::size_t{2}});
  const std::size_t batch = context < 64 ? 2 : 1, c = size * heads, rows = batch * context;
  CAPTURE(context, size, heads);
  check_close([&, context = context, heads = heads](auto& at) {
    const Attention layer{c, heads};
    const std::size_t kept = rows * heads * context;  // of the host; of a device more than it needs
    const auto *const qkv = at.put(random(rows * 3 * c, 1, 2)), *const dy = at.put(random(rows * c, 2));
    auto *const y = at.put(Array(rows * c)), *const dqkv = at.put(Array(rows * 3 * c));
    float *const attention = at.floats(Array(kept)), *const dattention = at.floats(Array(kept));
    layer.forward(at.engine, batch, context, qkv, attention, y);
    layer.backward(at.engine, batch, context, dy, qkv, y, attention, dattention, dqkv);
    return std::vector{at.read(y, rows * c), at.read(dqkv, rows * 3 * c)};
  });
}

TEST_CASE("embeddings, GELU and cross-entropy in bf16 are the host's as close as bf16 allows, also where a token comes in far rows",
          "[devices]") {
  constexpr std::size_t context = 150, rows = 300, vocabulary = 64, c = 16;
  check_close([&](auto& at) {
    std::vector<std::int32_t> ids(rows), targets(rows);
    for (std::size_t i = 0; i < rows; ++i)
      ids[i] = static_cast<std::int32_t>(i * i % 40), targets[i] = static_cast<std::int32_t>(i * 7 % vocabulary);
    const auto* const there = at.ids(ids);
    const auto *const tokens = at.put(random(vocabulary * c, 1)), *const positions = at.put(random(context * c, 2)),
                      *const dx = at.put(random(rows * c, 3));
    auto *const x = at.put(Array(rows * c)), *const active = at.put(Array(rows * c)), *const back = at.put(Array(rows * c)),
                *const sum = at.put(Array(rows * c)), *const logits = at.put(random(rows * vocabulary, 4, 5));
    float *const dt = at.floats(random(vocabulary * c, 5)), *const dp = at.floats(random(context * c, 6)),
                 *const losses = at.floats(Array(rows + 1));
    const Embedding embedding{c};
    embedding.forward(at.engine, rows, context, there, tokens, positions, x);
    embedding.backward(at.engine, rows, context, vocabulary, there, dx, dt, dp);
    gelu_forward(at.engine, rows * c, x, active);
    gelu_backward(at.engine, rows * c, dx, x, back);
    add(at.engine, rows * c, active, back, sum);
    const float loss = at.loss(cross_entropy(at.engine, rows, vocabulary, at.ids(targets), logits, losses));
    return std::vector{at.read(x, rows * c),
                       at.read(dt, vocabulary * c),
                       at.read(dp, context * c),
                       at.read(active, rows * c),
                       at.read(back, rows * c),
                       at.read(sum, rows * c),
                       at.read(logits, rows * vocabulary),
                       at.read(losses, rows),
                       Array{loss}};
  });
}

TEST_CASE(
    "a cross-entropy in bf16 is the host's as close as bf16 allows, with many rows for a block, rows that fill shared memory, and longer ones",
    "[devices]") {
  const auto [rows, classes] = GENERATE(std::pair<std::size_t, std::size_t>{3300, 1040}, std::pair<std::size_t, std::size_t>{2, 8},
                                        std::pair<std::size_t, std::size_t>{3, 50304}, std::pair<std::size_t, std::size_t>{3, 60000});
  CAPTURE(rows, classes);
  check_close([&, rows = rows, classes = classes](auto& at) {
    std::vector<std::int32_t> targets(rows);
    for (std::size_t i = 0; i < rows; ++i) targets[i] = static_cast<std::int32_t>((i * 1031 + classes - 1) % classes);
    auto* const logits = at.put(random(rows * classes, 1, 5));
    float* const losses = at.floats(Array(rows + 1));
    const float loss = at.loss(cross_entropy(at.engine, rows, classes, at.ids(targets), logits, losses));
    return std::vector{at.read(logits, rows * classes), at.read(losses, rows), Array{loss}};
  });
}

TEST_CASE("a block in bf16 is the host's as close as bf16 allows, forward and backward", "[devices]") {
  const BlockShape shape{.batch = 2, .context = 12, .channels = 32, .heads = 2};
  const std::size_t c = shape.channels, elements = shape.rows() * c;
  const std::vector<std::size_t> sizes{c, c, 3 * c * c, c * c, c, c, 4 * c * c, 4 * c * c};
  check_close(
      [&](auto& at) {
        using E = typename std::remove_reference_t<decltype(at)>::E;
        std::vector<typename E::Value*> w;
        std::vector<float*> g;
        for (std::uint32_t i = 0; i < sizes.size(); ++i) {
          w.push_back(at.put(random(sizes[i], 10 + i, sizes[i] > c ? 0.2f : 1.0f)));
          g.push_back(at.floats(Array(sizes[i])));
        }
        BlockActivations<E> kept{at.engine, shape};
        BlockScratch<E> scratch{at.engine, shape};
        const auto* const x = at.put(random(elements, 1));
        auto *const y = at.put(Array(elements)), *const dx = at.put(random(elements, 2));
        block_prepare(at.engine, shape);
        block_forward(at.engine, shape, BlockWeights<E>{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]}, x, kept, scratch, y);
        block_backward(at.engine, shape, BlockWeights<E>{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]},
                       BlockTensors<float>{g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]}, x, kept, scratch, dx);
        std::vector<Array> out{at.read(y, elements), at.read(dx, elements)};
        for (std::size_t i = 0; i < sizes.size(); ++i) out.push_back(at.read(g[i], sizes[i]));
        return out;
      },
      0.03f);  // through a dozen roundings
}
