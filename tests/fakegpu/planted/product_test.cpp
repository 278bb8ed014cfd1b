// Bugs in the product's own kernels (product_bugs.cmake): each is found with each seed, by a report or by wrong bits. Without one there is neither.

#include <atomic>
#include <string>

#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/gpu/device_kernels.hpp"

namespace {

std::atomic<int> planted{0};

}  // namespace

/// The planted kernels ask for it.
extern "C" __attribute__((visibility("default"))) int elrun_planted_bug() { return planted; }

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr std::uint64_t seeds = 20;

struct Bug {
  int number;
  std::string_view what;
  bool (*is_found)(std::uint64_t seed);
};

/// Runs that begin anywhere, one of them of several tiles, in arrays that are equally far from a border.
bool update_is_wrong(std::uint64_t seed) {
  Rng rng{seed};
  UpdateState s;
  std::uint64_t at = 0;
  for (const std::uint64_t size : {std::uint64_t{6}, 2 * update_tile - 3, std::uint64_t{41}, std::uint64_t{1000}}) {
    at += 1 + rng.below(3);
    s.runs.push_back({at, at, at, size, s.runs.size() % 2});
    at += size;
  }
  s.runs.push_back({at + 1, at + 2, at + 3, 50, 1});  // never on a border at once
  at += 53;
  s.parameter = values(seed, at), s.gradient = values(seed + 1, at), s.rounded = Halves(at);
  for (Floats& m : s.moments) m = values(seed + 2, at);
  for (float& x : s.moments[1]) x = x < 0 ? -x : x;
  UpdateState expected = s;
  HostKernels{}.update(expected, known_step);
  DeviceKernels{}.update(s, known_step);
  return !same_bits(s.parameter, expected.parameter) || !same_bits(s.moments[0], expected.moments[0]) ||
         !same_bits(s.moments[1], expected.moments[1]) || !same_bits(s.rounded, expected.rounded);
}

/// More than a bundle of loads, and elements before and behind the groups.
bool fold_is_wrong(std::uint64_t seed) {
  const Floats x = values(seed, 900 + seed % 3), y = values(seed + 1, x.size());
  HostKernels host;
  DeviceKernels device{.offset = 1 + seed % 3};
  return !same_bits(device.add_into(x, y), host.add_into(x, y)) || !same_bits(device.to_bf16(x), host.to_bf16(x));
}

bool squares_are_wrong(std::uint64_t seed) {
  const Floats x = values(seed, 20 * granule + 100);
  return !same_bits(DeviceKernels{}.sums_of_squares(x), HostKernels{}.sums_of_squares(x));
}

/// Whole granules and a rest, operands on a border and not, in fp32 and bf16, whole and parts; additions at several heights.
bool reduce_is_wrong(std::uint64_t seed) {
  Rng rng{seed};
  ReduceState s;
  s.pieces = {{1, 0, 2 * granule}, {2 * granule + 4, 2 * granule + 2, granule + 40}};
  s.whole = 3 * granule + 44;
  const std::uint32_t additions[] = {0, 1, 0, 0, 2, 2};
  for (std::uint32_t o = 0; o < std::size(additions); ++o) {
    ReduceState::Operand operand{.whole = o % 2 == 0, .additions = additions[o]};
    const Floats floats = values(rng.next64(), s.whole);
    if (o % 3 == 2) operand.halves = HostKernels{}.to_bf16(floats);
    else operand.floats = floats;
    s.operands.push_back(std::move(operand));
  }
  Floats result(s.whole), sums(4), expected(s.whole), expected_sums(4);
  HostKernels{}.reduce(s, expected, &expected_sums);
  DeviceKernels{}.reduce(s, result, &sums);
  return !same_bits(result, expected) || !same_bits(sums, expected_sums);
}

constexpr Bug bugs[] = {
    {1, "a tile that does not end where its run does", update_is_wrong},
    {2, "16-byte accesses without the test for alignment", update_is_wrong},
    {3, "elements before the first border of 16 bytes left out", update_is_wrong},
    {4, "elements behind the last border left out", update_is_wrong},
    {5, "decay for the runs that have none", update_is_wrong},
    {6, "the run before the right one for a run's first tile", update_is_wrong},
    {7, "the tail of a fold left out", fold_is_wrong},
    {8, "groups that begin before the border", fold_is_wrong},
    {9, "groups that are no whole bundle left out", fold_is_wrong},
    {10, "threads 8 apart that do not exchange their elements", squares_are_wrong},
    {11, "threads 16 apart that do not exchange their elements", squares_are_wrong},
    {12, "a sum that all threads of the warp write", squares_are_wrong},
    {13, "operands in the wrong order", reduce_is_wrong},
    {14, "floats loaded without the test for alignment", reduce_is_wrong},
    {15, "bf16 loaded without the test for alignment", reduce_is_wrong},
    {16, "a rest taken for a whole granule", reduce_is_wrong},
    {17, "an operand that holds the whole read as a part", reduce_is_wrong},
    {18, "a sum of the reduction that all threads of the warp write", reduce_is_wrong},
    {19, "an addition of what is not below the top of the stack", reduce_is_wrong},
    {20, "a result stored without the test for alignment", reduce_is_wrong},
};

/// Whether anything tells of a bug: a report, an error, wrong bits. The device is fresh afterwards.
std::string report_of(const Bug& bug, int number, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  planted = number;
  std::string told;
  try {
    if (bug.is_found(seed)) told = "wrong bits";
  } catch (const Error& e) {
    told = e.failure().what;
  }
  for (const std::string& report : fakegpu::take_reports()) told += report + '\n';
  ELRUN_CUDA_CHECK(cudaDeviceReset());
  return told;
}

}  // namespace

TEST_CASE("a bug in a kernel of the product is found with every seed, and none is where there is none", "[devices]") {
  for (const Bug& bug : bugs)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(bug.what << ", seed " << seed);
      CHECK(report_of(bug, bug.number, seed) != "");
      if (bug.number == 1 || bug.is_found != (&bug - 1)->is_found) CHECK(report_of(bug, 0, seed) == "");
    }
}
