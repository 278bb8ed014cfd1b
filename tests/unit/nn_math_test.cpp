#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/catch.hpp"
#include "tests/unit/nn_support.hpp"

namespace {

// How far `got` is from the exact value, in units of the last place of the nearest float.
double ulps(float got, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isinf(nearest)) return got == nearest ? 0 : 1e9;
  const double ulp = std::max(
      static_cast<double>(std::nextafter(std::fabs(nearest), std::numeric_limits<float>::infinity())) - std::fabs(nearest), 0x1p-149);
  return std::fabs(static_cast<double>(got) - exact) / ulp;
}

// Every `stride`-th float between two positive ones, in blocks; `sign` flips them.
template <class F>
void sweep(float first, float last, std::uint32_t stride, float sign, F f) {
  std::vector<float> x;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(first); bits <= std::bit_cast<std::uint32_t>(last); bits += stride) {
    x.push_back(sign * std::bit_cast<float>(bits));
    if (x.size() == 4096) f(x), x.clear();
  }
  if (!x.empty()) f(x);
}

const nn::Kernels& best() { return *nn::kernels(nn::available().back()); }

}  // namespace

TEST_CASE("exp is at most 1 ulp off, from underflow to overflow", "[nn]") {
  double worst = 0;
  const auto check = [&](const std::vector<float>& x) {
    std::vector<float> y(x.size());
    best().exp(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
  };
  sweep(0x1p-30f, 90.0f, 97, 1.0f, check);
  sweep(0x1p-30f, 110.0f, 97, -1.0f, check);
  CAPTURE(worst);
  CHECK(worst < 1.0);

  const std::vector<float> special{0.0f, -0.0f, INFINITY, -INFINITY, 1000.0f, -1000.0f, NAN};
  std::vector<float> y(special.size());
  best().exp(special.data(), special.size(), y.data());
  CHECK(y[0] == 1.0f);
  CHECK(y[1] == 1.0f);
  CHECK(y[2] == INFINITY);
  CHECK(y[3] == 0.0f);
  CHECK(y[4] == INFINITY);
  CHECK(y[5] == 0.0f);
  CHECK(std::isnan(y[6]));
}

TEST_CASE("log is at most 1 ulp off for every normal number above zero", "[nn]") {
  double worst = 0;
  sweep(0x1p-126f, std::numeric_limits<float>::max(), 499, 1.0f, [&](const std::vector<float>& x) {
    std::vector<float> y(x.size());
    best().log(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::log(static_cast<double>(x[i]))));
  });
  CAPTURE(worst);
  CHECK(worst < 1.0);
}

TEST_CASE("gelu's tanh form agrees with its definition", "[nn]") {
  double worst = 0;
  for (const float sign : {1.0f, -1.0f})
    sweep(0x1p-20f, 12.0f, 997, sign, [&](const std::vector<float>& x) {
      std::vector<float> y(x.size());
      best().gelu_forward(x.data(), x.size(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], exact = 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
        worst = std::max(worst, std::fabs(y[i] - exact) / std::max(std::fabs(exact), 1e-4));
      }
    });
  CAPTURE(worst);
  CHECK(worst < 4e-6);
}

TEST_CASE("every instruction set gives the same bits, whatever the length", "[nn]") {
  for (const std::size_t n : {1u, 3u, 4u, 7u, 8u, 15u, 16u, 17u, 31u, 64u, 100u, 1000u}) {
    CAPTURE(n);
    CHECK(nn::test::same_bits_everywhere([n](nn::Engine& engine) {
      const nn::Kernels& k = engine.kernels();
      const std::vector<float> x = nn::test::random(n, 1, 3), dy = nn::test::random(n, 2), w = nn::test::random(n, 3),
                               b = nn::test::random(n, 4);
      std::vector<float> all, y(n), z(n), statistics(4);
      const auto keep = [&](const std::vector<float>& v) { all.insert(all.end(), v.begin(), v.end()); };
      k.exp(x.data(), n, y.data()), keep(y);
      k.log(y.data(), n, z.data()), keep(z);
      k.gelu_forward(x.data(), n, y.data()), keep(y);
      k.gelu_backward(dy.data(), x.data(), n, y.data()), keep(y);
      k.add(x.data(), dy.data(), n, y.data()), keep(y);
      k.norm_forward(x.data(), w.data(), b.data(), n, y.data(), &statistics[0], &statistics[1]), keep(y);
      k.norm_backward(dy.data(), x.data(), w.data(), statistics[0], statistics[1], n, y.data()), keep(y);
      z = b;
      k.norm_backward_weights(dy.data(), x.data(), statistics[0], statistics[1], n, y.data(), z.data()), keep(y), keep(z);
      y = x;
      k.softmax(y.data(), n, 0.3f), keep(y);
      z = dy;
      k.softmax_backward(y.data(), z.data(), n, 0.3f), keep(z);
      y = x;
      statistics[2] = k.cross_entropy(y.data(), n, n / 2, 0.1f), keep(y);
      statistics[3] = k.sum(x.data(), n), keep(statistics);
      return all;
    }));
  }
}
