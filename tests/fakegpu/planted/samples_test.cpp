// Bugs in the samples' kernels and in what waits for them (sample_bugs.cmake): each is found with each seed, by a report or by wrong bits. Without one there is neither.

#include <atomic>
#include <string>

#include <cuda_runtime_api.h>

#include <elrun/result.hpp>
#include "kernels/cuda/check.hpp"
#include "tests/devices/nn_layers.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/catch.hpp"

namespace {

std::atomic<int> planted{0};

}  // namespace

/// The planted copies ask for it.
extern "C" __attribute__((visibility("default"))) int elrun_planted_bug() { return planted; }

namespace {

constexpr std::uint64_t seeds = 20;

template <class Layer>
bool differs(const Layer& layer) {
  const auto [expected, got] = nn::test::on_both(layer);
  return !nn::test::same_bits(expected, got);
}

bool products_differ() {  // rims in all directions, and more than one tile
  return differs([](auto& at) { return nn::test::linear(at, 66, 19, 5); });
}
bool norms_differ() {
  return differs([](auto& at) { return nn::test::norm(at, 5, 37); });
}
bool attention_differs() {
  return differs([](auto& at) { return nn::test::attention(at, 1, 19, 8, 1); });
}
bool ends_differ() {
  return differs([](auto& at) { return nn::test::ends_of_a_model(at); });
}
bool rows_differ() {
  return differs([](auto& at) { return nn::test::rows_of_a_layer(at); });
}
bool convolutions_differ() {
  return differs([](auto& at) { return nn::test::convolution(at, 3); });
}
bool pools_differ() {
  return differs([](auto& at) { return nn::test::pooling(at, 64); });
}

struct Bug {
  int number;
  std::string_view what;
  bool (*is_found)();
};
constexpr Bug bugs[] = {
    {1, "a product without a barrier behind the loads of its tiles", products_differ},
    {2, "a product without a barrier before the next loads", products_differ},
    {3, "a tile that is loaded beyond the last p", products_differ},
    {4, "a tile that is loaded beyond the last row", products_differ},
    {5, "rows of a product that are not there, written", products_differ},
    {6, "columns of a product that are not there, written", products_differ},
    {7, "a tile that two blocks compute, and one that nobody does", products_differ},
    {8, "one element more than there are", rows_differ},
    {9, "a convolution's way back without the rim below", convolutions_differ},
    {10, "a convolution's way back without the rim to the right", convolutions_differ},
    {11, "a last group of images taken for a full one", convolutions_differ},
    {12, "a last group of pooled images taken for a full one", pools_differ},
    {13, "the last of equal pixels taken", pools_differ},
    {14, "a gradient that goes to all four pixels", pools_differ},
    {15, "dropout left out", pools_differ},
    {16, "weights that are not turned around", convolutions_differ},
    {17, "a second row of a warp where there is none", norms_differ},
    {18, "a loss that all lanes write", ends_differ},
    {19, "the elements of a row behind the last sixteen left out", norms_differ},
    {20, "tokens whose gradients two blocks add up", ends_differ},
    {21, "scores of the future that stay", attention_differs},
    {22, "columns of a sum over rows taken for the first", rows_differ},
    {23, "another lane than the one that has the target", ends_differ},
    {24, "memory that is freed while kernels use it", rows_differ},
    {25, "ids for which the kernels do not wait", ends_differ},
    {26, "values for which the kernels do not wait", rows_differ},
    {27, "a read that does not wait for the kernels", rows_differ},
    {28, "zeros for which the kernels do not wait", rows_differ},
};

/// Whether anything tells of a bug: a report, an error, wrong bits. The device is fresh afterwards.
std::string report_of(const Bug& bug, int number, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  planted = number;
  std::string told;
  try {
    if (bug.is_found()) told = "wrong bits";
  } catch (const elrun::Error& e) {
    told = e.failure().what;
  }
  planted = 0;
  for (const std::string& report : fakegpu::take_reports()) told += report + '\n';
  ELRUN_CUDA_CHECK(cudaDeviceReset());
  return told;
}

}  // namespace

TEST_CASE("a bug in a sample's kernels is found with every seed, and none is where there is none", "[devices]") {
  for (const Bug& bug : bugs)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(bug.number << ", " << bug.what << ", seed " << seed);
      CHECK(report_of(bug, bug.number, seed) != "");
      CHECK(report_of(bug, 0, seed) == "");
    }
}
