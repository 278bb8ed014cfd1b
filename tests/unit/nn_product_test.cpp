#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/nn_support.hpp"

using namespace nn;

namespace {

struct Problem {
  Extent extent;
  bool transpose_a, transpose_b, sum;
};

std::vector<float> product(Engine& engine, const Problem& p) {
  const auto [m, n, k] = p.extent;
  const std::vector<float> a = test::random(m * k, 1), b = test::random(k * n, 2);
  std::vector<float> c = test::random(m * n, 3);
  engine.product(p.extent, p.transpose_a ? View{a.data(), m}.transposed() : View{a.data(), k},
                 p.transpose_b ? View{b.data(), k}.transposed() : View{b.data(), n}, {c.data(), n},
                 p.sum ? Into::sum : Into::fresh);
  return c;
}

// The rule in its plainest form: one chain of fma per element, k ascending.
std::vector<float> obvious(const Problem& p) {
  const auto [m, n, k] = p.extent;
  const std::vector<float> a = test::random(m * k, 1), b = test::random(k * n, 2);
  std::vector<float> c = test::random(m * n, 3);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      float sum = p.sum ? c[i * n + j] : 0.0f;
      for (std::size_t q = 0; q < k; ++q)
        sum = std::fma(p.transpose_a ? a[q * m + i] : a[i * k + q], p.transpose_b ? b[j * k + q] : b[q * n + j], sum);
      c[i * n + j] = sum;
    }
  return c;
}

}  // namespace

TEST_CASE("an element of a product is one chain of fma, k ascending, on every path", "[nn]") {
  elrun::test::for_all_seeds(24, [](elrun::Rng& rng) {
    const auto extent = [&] { return static_cast<std::size_t>(1 + rng.below(rng.chance(0.3) ? 300 : 40)); };
    const Problem p{{extent(), extent(), extent()}, rng.chance(0.5), rng.chance(0.5), rng.chance(0.5)};
    CAPTURE(p.extent.rows, p.extent.columns, p.extent.k, p.transpose_a, p.transpose_b, p.sum);
    const std::vector<float> expected = obvious(p);
    for (const Isa isa : available())
      for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
        Engine engine{threads, isa};
        CHECK(test::same_bits(product(engine, p), expected));
      }
  });
}

TEST_CASE("a product is right", "[nn]") {
  Engine engine{2};
  const float a[]{1, 2, 3, 4, 5, 6}, b[]{7, 8, 9, 10, 11, 12};
  float c[4]{};
  engine.product({2, 2, 3}, {a, 3}, {b, 2}, {c, 2});
  CHECK(std::vector<float>(c, c + 4) == std::vector<float>{58, 64, 139, 154});
}

TEST_CASE("every task runs once, on a worker of its own", "[nn]") {
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    Engine engine{threads};
    std::vector<int> runs(1000), busy(threads);  // a worker that two threads shared would be a race here
    for (int round = 0; round < 50; ++round)
      engine.parallel_for(runs.size(), [&](std::size_t index, std::size_t worker) { ++runs[index], ++busy[worker]; });
    CHECK(runs == std::vector<int>(1000, 50));
    int sum = 0;
    for (const int n : busy) sum += n;
    CHECK(sum == 50000);
  }
}

TEST_CASE("an instruction set that is not here is refused", "[nn]") {
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (kernels(isa) == nullptr) CHECK_THROWS_AS((Engine{1, isa}), std::runtime_error);
  CHECK(kernels(Isa::baseline) != nullptr);
}
