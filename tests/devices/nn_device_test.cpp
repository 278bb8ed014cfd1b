// The layers of the samples on a device: each gives the bits that the host's gives, whatever the order of streams, blocks and threads.

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/device/handles.hpp"
#include "samples/nn/block.hpp"
#include "samples/nn/device_engine.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/nn_support.hpp"

using namespace nn;
using Array = std::vector<float>;

namespace {

const elrun::Device device{elrun::DeviceKind::cuda, 0};

/// A layer's call, with the same names for host and device: arrays are made of values, and read back.
template <class E>
class Setting {
 public:
  explicit Setting(E& e) : engine{e} {}
  float* put(const Array& values) {
    arrays_.push_back(engine.array(values.size()));
    float* const at = arrays_.back().data();
    if constexpr (std::is_same_v<E, Engine>) std::ranges::copy(values, at);
    else {
      // By a layer that copies: what a program brings to a device is the job's business.
      ids_.push_back(engine.ids(values.size()));
      const void* const there = ids_.back().hold({reinterpret_cast<const std::int32_t*>(values.data()), values.size()});
      engine.fill_with_zeros(at, values.size());
      add(engine, values.size(), static_cast<const float*>(there), at, at);
    }
    return at;
  }
  float* room(std::size_t n) { return put(Array(n, -7.0f)); }
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

float value(Setting<Engine>&, float loss) { return loss; }
float value(Setting<DeviceEngine>& at, const elrun::DeviceScalar& loss) { return at.read(loss.pointer, 1)[0]; }

/// `layer(setting)` returns everything that it wrote.
template <class Layer>
void check_same_bits(const Layer& layer) {
  Engine host;
  Setting<Engine> on_host{host};
  const Array expected = layer(on_host);
  const elrun::OwnedStream stream{device};
  DeviceEngine there{stream.view()};
  Setting<DeviceEngine> on_device{there};
  const Array got = layer(on_device);
  REQUIRE(expected.size() == got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i);
    REQUIRE(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(expected[i]));
  }
}

Array joined(const std::vector<Array>& parts) {
  Array out;
  for (const Array& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace

TEST_CASE("a linear layer has the host's bits on a device, whole tiles and rims alike", "[devices]") {
  const auto [rows, in, out] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{7, 9, 5}, std::tuple{std::size_t{64}, std::size_t{16}, std::size_t{64}},
               std::tuple{std::size_t{65}, std::size_t{33}, std::size_t{70}}, std::tuple{std::size_t{1}, std::size_t{130}, std::size_t{3}});
  CAPTURE(rows, in, out);
  check_same_bits([&, rows = rows, in = in, out = out](auto& at) {
    const Linear linear{in, out};
    const float *x = at.put(test::random(rows * in, 1)), *w = at.put(test::random(out * in, 2)), *g = at.put(test::random(rows * out, 3));
    float *y = at.room(rows * out), *dx = at.room(rows * in), *dw = at.put(test::random(out * in, 4));
    linear.forward(at.engine, rows, x, w, y);
    linear.backward_input(at.engine, rows, g, w, dx);
    linear.backward_weight(at.engine, rows, g, x, dw);
    return joined({at.read(y, rows * out), at.read(dx, rows * in), at.read(dw, out * in)});
  });
}

TEST_CASE("a layer norm has the host's bits on a device", "[devices]") {
  const auto [rows, c] = GENERATE(std::pair<std::size_t, std::size_t>{5, 37}, std::pair<std::size_t, std::size_t>{34, 16},
                                  std::pair<std::size_t, std::size_t>{1, 3});
  CAPTURE(rows, c);
  check_same_bits([&, rows = rows, c = c](auto& at) {
    const LayerNorm norm{c};
    const float *x = at.put(test::random(rows * c, 1, 2)), *w = at.put(test::random(c, 2)), *b = at.put(test::random(c, 3)),
                *g = at.put(test::random(rows * c, 4));
    float *y = at.room(rows * c), *mean = at.room(rows), *scale = at.room(rows), *dx = at.put(test::random(rows * c, 5)),
          *dw = at.put(test::random(c, 6)), *db = at.put(test::random(c, 7));
    norm.forward(at.engine, rows, x, w, b, y, mean, scale);
    norm.backward(at.engine, rows, g, x, w, mean, scale, dx, dw, db);
    return joined({at.read(y, rows * c), at.read(mean, rows), at.read(scale, rows), at.read(dx, rows * c), at.read(dw, c), at.read(db, c)});
  });
}

TEST_CASE("causal attention has the host's bits on a device", "[devices]") {
  const std::size_t batch = 2, context = GENERATE(1u, 5u, 19u), heads = 3, c = 24;
  check_same_bits([&](auto& at) {
    const Attention attention{c, heads};
    const std::size_t rows = batch * context, scores = batch * heads * context * context;
    const float *qkv = at.put(test::random(rows * 3 * c, 1)), *g = at.put(test::random(rows * c, 2));
    float *p = at.room(scores), *y = at.room(rows * c), *dp = at.room(scores), *dqkv = at.room(rows * 3 * c);
    attention.forward(at.engine, batch, context, qkv, p, y);
    attention.backward(at.engine, batch, context, g, qkv, p, dp, dqkv);
    return joined({at.read(p, scores), at.read(y, rows * c), at.read(dp, scores), at.read(dqkv, rows * 3 * c)});
  });
}

TEST_CASE("embeddings, GELU and cross-entropy have the host's bits on a device, also where a token comes twice", "[devices]") {
  check_same_bits([&](auto& at) {
    const std::size_t rows = 12, context = 4, c = 21, vocabulary = 10;
    const std::vector<std::int32_t> ids{3, 1, 3, 9, 0, 3, 3, 1, 9, 9, 4, 0};
    const auto* there = at.ids(ids);
    const float *tokens = at.put(test::random(vocabulary * c, 1)), *positions = at.put(test::random(context * c, 2)),
                *g = at.put(test::random(rows * c, 3));
    float *x = at.room(rows * c), *dt = at.put(test::random(vocabulary * c, 4)), *dp = at.put(test::random(context * c, 5)),
          *y = at.room(rows * c), *dx = at.room(rows * c), *logits = at.put(test::random(rows * c, 6, 3)), *losses = at.room(rows + 1);
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
  });
}

TEST_CASE("a block has the host's bits on a device, forward and backward", "[devices]") {
  const BlockShape shape{.batch = 2, .context = 9, .channels = 20, .heads = 2};
  const std::size_t c = shape.channels, elements = shape.rows() * c;
  const std::vector<std::size_t> sizes{c, c, 3 * c * c, c * c, c, c, 4 * c * c, 4 * c * c};
  check_same_bits([&](auto& at) {
    using E = std::remove_reference_t<decltype(at.engine)>;
    std::vector<float*> w, g;
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      w.push_back(at.put(test::random(sizes[i], 10 + i, sizes[i] > c ? 0.2f : 1.0f)));
      g.push_back(at.put(Array(sizes[i])));
    }
    BlockActivations<E> kept{at.engine, shape};
    BlockScratch<E> scratch{at.engine, shape};
    const float* const x = at.put(test::random(elements, 1));
    float *const y = at.room(elements), *const dx = at.put(test::random(elements, 2));
    const BlockTensors<const float> weights{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]};
    block_forward(at.engine, shape, weights, x, kept, scratch, y);
    block_backward(at.engine, shape, weights, BlockTensors<float>{g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]}, x, kept, scratch, dx);
    Array out = joined({at.read(y, elements), at.read(dx, elements)});
    for (std::size_t i = 0; i < sizes.size(); ++i) out = joined({out, at.read(g[i], sizes[i])});
    return out;
  });
}
