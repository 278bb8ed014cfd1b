// Gradients against finite differences: a layer's output is weighed with fixed random numbers g, so that the loss is
// sum(g · y), and the backward pass is given dy = g. The differences are taken along random directions, in double.

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "samples/nn/block.hpp"
#include "samples/nn/conv.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/nn_support.hpp"

using namespace nn;
using Array = std::vector<float>;

namespace {

double dot(const Array& a, const Array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Whether `gradient` is the slope of `loss` at `x`, along a few random directions. fp32 noise in the loss is about
// 1e-7 · |loss| / step, the curvature's error goes with step²: a step of 1e-2 leaves both below the tolerance.
void check_gradient(const char* what, Array& x, const Array& gradient, const std::function<double()>& loss) {
  INFO(what);
  const Array saved = x;
  for (std::uint32_t direction = 0; direction < 3; ++direction) {
    const Array d = test::random(x.size(), 1000 + direction);
    const double step = 1e-2 / std::sqrt(dot(d, d) / static_cast<double>(d.size()));
    const auto moved = [&](double by) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(saved[i] + by * d[i]);
      const double value = loss();
      x = saved;
      return value;
    };
    const double numeric = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
    const double scale = std::sqrt(dot(gradient, gradient) * dot(d, d) / static_cast<double>(d.size())) + 1e-3;
    CHECK(dot(gradient, d) == Approx(numeric).margin(2e-3 * scale).epsilon(2e-3));
  }
}

}  // namespace

TEST_CASE("linear: the backward pass is the slope of the forward pass", "[nn]") {
  Engine engine{2};
  const std::size_t rows = 7;
  const Linear linear{9, 5};
  Array x = test::random(rows * 9, 1), w = test::random(5 * 9, 2), y(rows * 5), dx(rows * 9), dw(5 * 9);
  const Array g = test::random(rows * 5, 3);
  const auto loss = [&] {
    linear.forward(engine, rows, x.data(), w.data(), y.data());
    return dot(g, y);
  };
  linear.backward_input(engine, rows, g.data(), w.data(), dx.data());
  linear.backward_weight(engine, rows, g.data(), x.data(), dw.data());
  check_gradient("x", x, dx, loss);
  check_gradient("weight", w, dw, loss);
  const Array once = dw;
  linear.backward_weight(engine, rows, g.data(), x.data(), dw.data());
  CHECK(dw[3] == Approx(2 * once[3]));  // gradients of weights are added to
}

TEST_CASE("norm: known answer, and the backward pass is the slope of the forward pass", "[nn]") {
  Engine engine{2};
  const std::size_t rows = 5, c = 37;
  const LayerNorm norm{c};
  Array x = test::random(rows * c, 1, 2), w = test::random(c, 2), b = test::random(c, 3), y(rows * c), mean(rows), scale(rows);
  const Array g = test::random(rows * c, 4);
  const auto loss = [&] {
    norm.forward(engine, rows, x.data(), w.data(), b.data(), y.data(), mean.data(), scale.data());
    return dot(g, y);
  };
  loss();
  for (std::size_t r = 0; r < rows; ++r) {
    double m = 0, v = 0;
    for (std::size_t j = 0; j < c; ++j) m += static_cast<double>(x[r * c + j]) / static_cast<double>(c);
    for (std::size_t j = 0; j < c; ++j) v += std::pow(x[r * c + j] - m, 2) / static_cast<double>(c);
    for (std::size_t j = 0; j < c; ++j) CHECK(y[r * c + j] == Approx((x[r * c + j] - m) / std::sqrt(v + 1e-5) * w[j] + b[j]).margin(1e-5));
  }
  Array dx(rows * c), dw(c), db(c);
  norm.backward(engine, rows, g.data(), x.data(), w.data(), mean.data(), scale.data(), dx.data(), dw.data(), db.data());
  check_gradient("x", x, dx, loss);
  check_gradient("weight", w, dw, loss);
  check_gradient("bias", b, db, loss);
}

TEST_CASE("attention: known answer, no look into the future, and the slope", "[nn]") {
  Engine engine{2};
  const std::size_t batch = 2, context = 11, c = 24, heads = 3, size = c / heads;
  const Attention attention{c, heads};
  Array qkv = test::random(batch * context * 3 * c, 1), p(batch * heads * context * context), y(batch * context * c);
  const Array g = test::random(y.size(), 2);
  const auto loss = [&] {
    attention.forward(engine, batch, context, qkv.data(), p.data(), y.data());
    return dot(g, y);
  };
  loss();
  SECTION("against the definition in double") {
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t t = 0; t < context; ++t) {
          const auto at = [&](std::size_t s, std::size_t part, std::size_t j) {
            return static_cast<double>(qkv[((b * context + s) * 3 + part) * c + h * size + j]);
          };
          std::vector<double> weight(t + 1), out(size);
          double total = 0;
          for (std::size_t s = 0; s <= t; ++s) {
            double score = 0;
            for (std::size_t j = 0; j < size; ++j) score += at(t, 0, j) * at(s, 1, j);
            total += weight[s] = std::exp(score / std::sqrt(static_cast<double>(size)));
          }
          for (std::size_t s = 0; s <= t; ++s)
            for (std::size_t j = 0; j < size; ++j) out[j] += weight[s] / total * at(s, 2, j);
          for (std::size_t j = 0; j < size; ++j) CHECK(y[(b * context + t) * c + h * size + j] == Approx(out[j]).margin(1e-5));
        }
  }
  SECTION("what comes later, and other sequences, change no bit") {
    const Array before = y;
    for (std::size_t i = 7 * 3 * c; i < qkv.size(); ++i) qkv[i] += 1;
    loss();
    CHECK(std::equal(y.begin(), y.begin() + 7 * c, before.begin()));
    CHECK(y[7 * c] != before[7 * c]);
  }
  SECTION("slope") {
    Array dp(p.size()), dqkv(qkv.size());
    attention.backward(engine, batch, context, g.data(), qkv.data(), y.data(), p.data(), dp.data(), dqkv.data());
    check_gradient("qkv", qkv, dqkv, loss);
  }
}

TEST_CASE("gelu, embedding: the backward pass is the slope of the forward pass", "[nn]") {
  Engine engine{2};
  SECTION("gelu") {
    Array x = test::random(333, 1, 2), y(333), dx(333);
    const Array g = test::random(333, 2);
    gelu_backward(engine, 333, g.data(), x.data(), dx.data());
    check_gradient("x", x, dx, [&] {
      gelu_forward(engine, 333, x.data(), y.data());
      return dot(g, y);
    });
  }
  SECTION("embedding, with a token that occurs twice") {
    const std::size_t rows = 6, context = 3, c = 70;
    const std::int32_t ids[]{4, 0, 4, 1, 2, 0};
    Array tokens = test::random(5 * c, 1), positions = test::random(context * c, 2), x(rows * c), dt(5 * c), dp(context * c);
    const Array g = test::random(rows * c, 3);
    const auto loss = [&] {
      Embedding{c}.forward(engine, rows, context, ids, tokens.data(), positions.data(), x.data());
      return dot(g, x);
    };
    loss();
    CHECK(x[4 * c + 5] == tokens[2 * c + 5] + positions[1 * c + 5]);
    Embedding{c}.backward(engine, rows, context, tokens.size() / c, ids, g.data(), dt.data(), dp.data());
    check_gradient("tokens", tokens, dt, loss);
    check_gradient("positions", positions, dp, loss);
  }
}

TEST_CASE("cross entropy: known answer, and the slope", "[nn]") {
  Engine engine{2};
  const std::size_t rows = 9, classes = 50;
  Array logits = test::random(rows * classes, 1, 3), losses(rows);
  std::vector<std::int32_t> targets;
  for (std::size_t r = 0; r < rows; ++r) targets.push_back(static_cast<std::int32_t>(r * 5));
  const auto loss = [&] {
    Array copy = logits;
    return static_cast<double>(cross_entropy(engine, rows, classes, targets.data(), copy.data(), losses.data()));
  };
  double exact = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::size_t j = 0; j < classes; ++j) total += std::exp(static_cast<double>(logits[r * classes + j]));
    exact += (std::log(total) - static_cast<double>(logits[r * classes + r * 5])) / static_cast<double>(rows);
  }
  CHECK(loss() == Approx(exact).epsilon(1e-6));
  Array gradient = logits;
  cross_entropy(engine, rows, classes, targets.data(), gradient.data(), losses.data());
  check_gradient("logits", logits, gradient, loss);
}

namespace {

// A block with its weights in one array each, so that a test can walk over them.
struct TestBlock {
  BlockShape shape;
  std::vector<Array> weights, gradients;
  BlockActivations<Engine> kept{Engine{}, shape};
  BlockScratch<Engine> scratch{Engine{}, shape};
  explicit TestBlock(BlockShape s) : shape{s} {
    const std::size_t c = s.channels;
    std::uint32_t name = 50;
    for (const std::size_t n : {c, c, 3 * c * c, c * c, c, c, 4 * c * c, 4 * c * c}) {
      const bool matrix = n > c;
      weights.push_back(test::random(n, name++, matrix ? 1 / std::sqrt(static_cast<float>(c)) : 1));
      gradients.emplace_back(n);
    }
  }
  template <class T>
  static BlockTensors<T> tensors(std::vector<Array>& w) {
    return {w[0].data(), w[1].data(), w[2].data(), w[3].data(), w[4].data(), w[5].data(), w[6].data(), w[7].data()};
  }
  Array forward(Engine& engine, const Array& x) {
    Array y(x.size());
    block_forward(engine, shape, tensors<const float>(weights), x.data(), kept, scratch, y.data());
    return y;
  }
  Array backward(Engine& engine, const Array& x, const Array& dy) {
    Array dx = dy;
    block_backward(engine, shape, tensors<const float>(weights), tensors<float>(gradients), x.data(), kept, scratch, dx.data());
    return dx;
  }
};

}  // namespace

TEST_CASE("a whole block: the backward pass is the slope of the forward pass, for input and every weight", "[nn]") {
  Engine engine{2};
  TestBlock block{{.batch = 2, .context = 6, .channels = 16, .heads = 2}};
  Array x = test::random(block.shape.rows() * 16, 1);
  const Array g = test::random(x.size(), 2);
  block.forward(engine, x);
  const Array dx = block.backward(engine, x, g);
  const auto loss = [&] { return dot(g, block.forward(engine, x)); };
  check_gradient("x", x, dx, loss);
  const char* names[]{"norm1 weight", "norm1 bias", "qkv", "mix", "norm2 weight", "norm2 bias", "expand", "contract"};
  for (std::size_t i = 0; i < block.weights.size(); ++i) check_gradient(names[i], block.weights[i], block.gradients[i], loss);
}

TEST_CASE("a whole block has the same bits for any number of threads and every instruction set", "[nn]") {
  const BlockShape shape{.batch = 2, .context = 33, .channels = 72, .heads = 3};
  CHECK(test::same_bits_everywhere([&](Engine& engine) {
    TestBlock block{shape};
    const Array x = test::random(shape.rows() * shape.channels, 1);
    Array all = block.forward(engine, x);
    const Array dx = block.backward(engine, x, test::random(x.size(), 2));
    all.insert(all.end(), dx.begin(), dx.end());
    for (const Array& g : block.gradients) all.insert(all.end(), g.begin(), g.end());
    return all;
  }));
}

TEST_CASE("convolution: what the window says, and the backward pass is the slope of the forward pass", "[nn]") {
  Engine engine{1};
  const std::size_t height = 6, width = 5, in = 3, out = 7, window = 3;
  const Convolution conv{height, width, in, out, window};
  Array x = test::random(height * width * in, 1), w = test::random(conv.weights(), 2), b = test::random(out, 3), y(conv.outputs()),
        dx(x.size()), dw(w.size()), turned(w.size());
  conv.forward(engine, 0, x.data(), w.data(), b.data(), y.data());
  for (std::size_t r = 0; r < conv.out_height(); ++r)
    for (std::size_t c = 0; c < conv.out_width(); ++c)
      for (std::size_t o = 0; o < out; ++o) {
        float sum = b[o];
        for (std::size_t i = 0; i < window; ++i)
          for (std::size_t j = 0; j < window; ++j)
            for (std::size_t k = 0; k < in; ++k)
              sum = std::fma(x[((r + i) * width + c + j) * in + k], w[((i * window + j) * in + k) * out + o], sum);
        CHECK(y[(r * conv.out_width() + c) * out + o] == sum);
      }

  const Array g = test::random(conv.outputs(), 4);
  Array rimmed(conv.rimmed_size());
  for (std::size_t r = 0; r < conv.out_height(); ++r)
    for (std::size_t c = 0; c < conv.out_width(); ++c)
      std::copy_n(g.data() + (r * conv.out_width() + c) * out, out, rimmed.data() + conv.rimmed_at(r, c));
  const auto loss = [&] {
    conv.forward(engine, 0, x.data(), w.data(), b.data(), y.data());
    return dot(g, y);
  };
  conv.turn(w.data(), turned.data());
  conv.backward_input(engine, 0, rimmed.data(), turned.data(), dx.data());
  check_gradient("x", x, dx, loss);
  conv.backward_weight(engine, 0, g.data(), Rim::none, x.data(), dw.data(), Into::fresh);
  check_gradient("weight", w, dw, loss);
  const Array once = dw;
  conv.backward_weight(engine, 0, rimmed.data(), Rim::zeros, x.data(), dw.data(), Into::fresh);
  CHECK(test::same_bits(dw, once));
  conv.backward_weight(engine, 0, rimmed.data(), Rim::zeros, x.data(), dw.data(), Into::sum);
  CHECK(dw[3] == Approx(2 * once[3]));
}

TEST_CASE("relu and the pool over four rows do what they say, over the end of a vector too", "[nn]") {
  constexpr std::size_t n = 37;
  std::vector<Array> rows;
  for (std::uint32_t k = 0; k < 4; ++k) rows.push_back(test::random(n, 20 + k));
  rows[0][5] = rows[2][5] = 9;                    // equal: the first is taken
  for (Array& row : rows) row[6] = row[36] = -1;  // nothing above zero
  rows[3][7] = 11;
  const float* const x[] = {rows[0].data(), rows[1].data(), rows[2].data(), rows[3].data()};
  const Array factor = test::random(n, 30), dy = test::random(n, 31);
  CHECK(test::same_bits_everywhere([&](Engine& engine) {
    const Kernels& kernels = engine.kernels();
    Array y(n), which(n), relu(n), back(n), bias(n, 1.0f), out;
    std::vector<Array> dx(4, Array(n, 99.0f));
    float* const to[] = {dx[0].data(), dx[1].data(), dx[2].data(), dx[3].data()};
    kernels.pool_forward(x, factor.data(), n, y.data(), which.data());
    kernels.pool_backward(dy.data(), y.data(), 0.5f, which.data(), n, to, bias.data());
    kernels.relu_forward(rows[0].data(), n, relu.data());
    kernels.relu_backward(dy.data(), relu.data(), 2.0f, n, back.data());
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t first = 0;
      for (std::size_t k = 1; k < 4; ++k)
        if (rows[k][i] > rows[first][i]) first = k;
      const float largest = rows[first][i];
      CHECK(which[i] == static_cast<float>(first));
      CHECK(y[i] == (largest > 0 ? largest * factor[i] : 0.0f));
      const float g = y[i] > 0 ? dy[i] * 0.5f : 0.0f;
      for (std::size_t k = 0; k < 4; ++k) CHECK(dx[k][i] == (k == first ? g : 0.0f));
      CHECK(bias[i] == 1.0f + g);
      CHECK(relu[i] == (rows[0][i] > 0 ? rows[0][i] : 0.0f));
      CHECK(back[i] == (rows[0][i] > 0 ? dy[i] * 2.0f : 0.0f));
    }
    for (const Array* part : {&y, &which, &relu, &back, &bias}) out.insert(out.end(), part->begin(), part->end());
    return out;
  }));
}
