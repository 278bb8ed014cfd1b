// The interpreter gives the answers that the language promises, whatever the seed.

#include <numeric>

#include "tests/fakegpu/planted/answers.hpp"
#include "tests/fakegpu/planted/on_device.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::planted;

namespace {

constexpr std::uint64_t seeds = 20;
const Stream legacy{{DeviceKind::cuda, 0}, nullptr};

/// What `run` leaves in an array of `count` zeros.
template <class T, class Run>
std::vector<T> after(std::uint64_t count, const Run& run) {
  void* p = nullptr;
  must(cudaMalloc(&p, count * sizeof(T)));
  must(cudaMemset(p, 0, count * sizeof(T)));
  run(static_cast<T*>(p));
  std::vector<T> out(count);
  must(cudaMemcpy(out.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
  must(cudaFree(p));
  CHECK(reports() == "");
  return out;
}

}  // namespace

TEST_CASE("each thread of a grid runs once, and knows its place", "[devices]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    fakegpu::set_seed(seed);
    for (const auto& [grid, block] :
         {std::pair{Extent{7}, Extent{33}}, std::pair{Extent{3, 2}, Extent{5, 4}}, std::pair{Extent{2, 3, 4}, Extent{3, 5, 2}},
          std::pair{Extent{1}, Extent{1024}}, std::pair{Extent{2}, Extent{1}}}) {
      const unsigned size = block.x * block.y * block.z, blocks = grid.x * grid.y * grid.z;
      const auto out = after<std::uint64_t>(std::uint64_t{size} * blocks, [&](std::uint64_t* p) { where_async(grid, block, p, legacy); });
      std::size_t wrong = 0;
      for (std::uint64_t i = 0; i < out.size(); ++i) {
        const std::uint64_t b = i / size, t = i % size;
        wrong += out[i] != b * 1000000 + t / (block.x * block.y) * 10000 + t / block.x % block.y * 100 + t % block.x;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("calls of a warp and of a block give what the language says", "[devices]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    fakegpu::set_seed(seed);
    const unsigned threads = 65 + static_cast<unsigned>(seed);  // the third warp is not whole
    const auto out = after<std::uint64_t>(threads * answers_per_thread, [&](std::uint64_t* p) { lanes_async(threads, p, legacy); });
    for (unsigned t = 0; t < threads; ++t) {
      INFO("seed " << seed << ", thread " << t);
      const std::uint64_t* mine = &out[t * answers_per_thread];
      const unsigned warp = t / 32, lane = t % 32, last = threads - 1;
      const unsigned lanes = warp < 2 ? 32 : threads - 64;
      if (warp * 32 + 3 <= last) CHECK(mine[0] == warp * 32 + 3);
      if (t + 2 <= last) CHECK(mine[1] == (lane % 4 < 2 ? t + 2 : t));
      CHECK(mine[2] == (lane % 4 == 0 ? t : t - 1));
      if ((t ^ 1u) <= last) CHECK(mine[3] == (t ^ 1u));
      CHECK(mine[4] == (0xaaaaaaaau & (lanes == 32 ? ~0u : (1u << lanes) - 1)));
      CHECK(mine[5] == (warp == 1 ? 2u : 0u) + (warp < 2 ? 1u : 0u));
      CHECK(mine[6] == (threads + 2) / 3);
      CHECK(mine[7] == 2);
    }
  }
}

TEST_CASE("atomics of all threads add up", "[devices]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    fakegpu::set_seed(seed);
    const auto out = after<unsigned>(5, [](unsigned* p) { atomics_async(3, 40, p, legacy); });
    CHECK(out == std::vector<unsigned>{119 * 120 / 2, 119, ~0u, 7, 9});
  }
}

TEST_CASE("a launch that no device takes is refused", "[devices]") {
  void* p = nullptr;
  must(cudaMalloc(&p, 4096 * sizeof(std::uint64_t)));
  for (const auto& [grid, block] : {std::pair{Extent{0}, Extent{32}}, std::pair{Extent{1}, Extent{1025}}, std::pair{Extent{1}, Extent{0}},
                                    std::pair{Extent{1}, Extent{1, 1, 65}}, std::pair{Extent{1, 65536}, Extent{1}}}) {
    CHECK_THROWS_WITH(where_async(grid, block, static_cast<std::uint64_t*>(p), legacy), Catch::Contains("cudaErrorInvalidConfiguration"));
  }
  must(cudaFree(p));
  CHECK(reports() == "");
}
