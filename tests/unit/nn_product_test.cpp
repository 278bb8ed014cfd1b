#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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
                 p.transpose_b ? View{b.data(), k}.transposed() : View{b.data(), n}, {c.data(), n}, p.sum ? Into::sum : Into::fresh);
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

TEST_CASE("a matrix whose rows and columns lie in tables gives the bits of the same matrix in one piece", "[nn]") {
  elrun::test::for_all_seeds(24, [](elrun::Rng& rng) {
    // Ascending, in runs that adjoin and in gaps.
    const auto table = [&](std::size_t n, std::size_t step) {
      std::vector<std::uint32_t> out;
      for (std::uint32_t at = 0; out.size() < n; at += static_cast<std::uint32_t>(step * (rng.chance(0.2) ? 2 : 1))) out.push_back(at);
      return out;
    };
    const auto extent = [&] { return static_cast<std::size_t>(1 + rng.below(rng.chance(0.3) ? 300 : 40)); };
    const Extent e{extent(), extent(), extent()};
    // One side runs in ones, so that elements adjoin along it; the other strides over all of them.
    const auto make = [&](std::size_t rows, std::size_t columns, bool along_rows, std::uint32_t name, auto use) {
      const std::size_t stride = 2 * std::max(rows, columns);
      const auto r = table(rows, along_rows ? 1 : stride), c = table(columns, along_rows ? stride : 1);
      const std::vector<float> data = test::random(r.back() + c.back() + 1, name);
      std::vector<float> whole(rows * columns);
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) whole[i * columns + j] = data[r[i] + c[j]];
      use(Gathered{data.data(), r.data(), c.data()}, View{whole.data(), columns});
    };
    make(e.rows, e.k, rng.chance(0.5), 1, [&](Gathered a, View whole_a) {
      make(e.k, e.columns, rng.chance(0.5), 2, [&](Gathered b, View whole_b) {
        const std::vector<float> start = test::random(e.rows * e.columns, 3);
        for (const Isa isa : available()) {
          Engine engine{1, isa};
          std::vector<float> expected = start, one = start, both = start;
          engine.product_here(0, e, whole_a, whole_b, {expected.data(), e.columns}, Into::sum);
          engine.product_here(0, e, a, whole_b, {one.data(), e.columns}, Into::sum);
          engine.product_here(0, e, a, b, {both.data(), e.columns}, Into::sum);
          CHECK(test::same_bits(one, expected));
          CHECK(test::same_bits(both, expected));
        }
      });
    });
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which map more for themselves than any limit
TEST_CASE("threads that cannot be started are an exception with a remedy, and nothing stays of those that were", "[nn]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);  // by default it ends the process
    std::uint64_t pages = 0;
    std::ifstream{"/proc/self/statm"} >> pages;
    constexpr rlim_t stacks = 256 << 20;
    const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + stacks;
    const rlimit limit{bytes, bytes};
    int code = 1;
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    try {
      const Engine engine{200};  // stacks of 8 MiB each, usually
    } catch (const std::runtime_error& error) {
      const std::string_view what{error.what()};
      code = what.find("of 200 threads") != what.npos && what.find("OMP_NUM_THREADS") != what.npos && what.find("pids.max") != what.npos
                 ? 0
                 : 3;
    }
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (::sigismember(&blocked, SIGTERM) == 1) code = 4;
    ::_exit(code);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("an instruction set that is not here is refused", "[nn]") {
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (kernels(isa) == nullptr) CHECK_THROWS_AS((Engine{1, isa}), std::runtime_error);
  CHECK(kernels(Isa::baseline) != nullptr);
}
