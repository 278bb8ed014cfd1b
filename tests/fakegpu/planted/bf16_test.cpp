// Bugs in the samples' kernels in bf16 and in what waits for them (bf16_bugs.cmake): each is found with each seed, by a report or by other bits than without it.

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>

#include <elrun/result.hpp>
#include "kernels/cuda/check.hpp"
#include "tests/devices/nn_bf16_layers.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/catch.hpp"

namespace {

std::atomic<int> planted{0};

}  // namespace

/// The planted copies ask for it.
extern "C" __attribute__((visibility("default"))) int elrun_planted_bug() { return planted; }

namespace {

using namespace nn::test::in_bf16;

using Parts = std::vector<Array>;
struct Layer {
  Parts (*run)(OnDevice&);
  std::vector<int> bugs;
};
// Few rows and columns, of which none is a whole tile or warp. The device has one multiprocessor, so that a block of cross-entropy has more than two rows in turn.
const Layer layers[] = {
    {[](OnDevice& at) { return linear(at, 8, 16, 24); }, {34, 35, 37}},
    {[](OnDevice& at) { return norm(at, 131, 16); }, {2, 3, 4}},
    {[](OnDevice& at) { return ends_of_a_model(at); }, {1, 5, 6, 7, 8, 9}},
    {[](OnDevice& at) { return loss(at, 100, 520); }, {10, 11, 12, 13, 14, 15, 16, 17, 36}},
    {[](OnDevice& at) { return attention(at, 1, 70, 16, 1); }, {18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33}},
};

/// What the layer wrote while a bug was there, 0 for none, and what told of it. The device is fresh afterwards.
struct Outcome {
  std::optional<Parts> parts;
  std::string told;
};
Outcome run(const Layer& layer, int bug, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  planted = bug;
  Outcome out;
  try {
    OnDevice device;
    out.parts = layer.run(device);
  } catch (const elrun::Error& e) {
    out.told = e.failure().what;
  }
  planted = 0;
  for (const std::string& report : fakegpu::take_reports()) out.told += report + '\n';
  ELRUN_CUDA_CHECK(cudaDeviceReset());
  return out;
}

}  // namespace

TEST_CASE("a bug in a sample's kernels in bf16 is found with every seed, and none is where there is none", "[devices]") {
  const std::uint64_t seeds = std::getenv("ELRUN_FULL") != nullptr ? 20 : 4;
  std::size_t bugs = 0;
  for (const Layer& layer : layers) {
    bugs += layer.bugs.size();
    std::optional<Parts> right;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO("seed " << seed);
      const Outcome without = run(layer, 0, seed);
      REQUIRE(without.told == "");
      if (!right) right = without.parts;
      CHECK(without.parts == right);
      for (const int bug : layer.bugs) {
        INFO("bug " << bug);
        const Outcome with = run(layer, bug, seed);
        CHECK((with.told != "" || with.parts != right));
      }
    }
  }
  CHECK(bugs == 37);
}
