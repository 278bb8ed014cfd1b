// The device against the known answers and against the host's loops. Plain C++: all launches hide behind `_async`.

#include <cuda_runtime_api.h>

#include <cstdio>

#include <elrun/failure.hpp>

#include "tests/gpu/device_kernels.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

bool no_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return false;
  std::puts("SKIPPED: no device");
  return true;
}

}  // namespace

TEST_CASE("device kernels give the known answers", "[gpu]") {
  if (no_device()) return;
  check_known_answers(DeviceKernels{});
}

TEST_CASE("device kernels give the known answers for memory that is not aligned", "[gpu]") {
  if (no_device()) return;
  check_known_answers(DeviceKernels{.offset = 1});
}

TEST_CASE("device and host give the same bits for anything", "[gpu]") {
  if (no_device()) return;
  check_same_bits(HostKernels{}, DeviceKernels{}, 50, 5000);
  check_same_bits(HostKernels{}, DeviceKernels{.offset = 1}, 10, 5000);
  check_same_bits(HostKernels{}, DeviceKernels{}, 2, 3'000'000);  // more than one turn of the grid's stride
}

TEST_CASE("folds, conversions and sums are right wherever each array begins", "[gpu]") {
  if (no_device()) return;
  HostKernels host;
  const Stream stream{{DeviceKind::cuda, 0}, nullptr};
  Rng rng{11};
  for (std::size_t left = 0; left < 8; ++left)
    for (std::size_t right = 0; right < 8; ++right) {
      const std::size_t n = rng.chance(0.5) ? rng.below(40) : 1000 + rng.below(3000);
      INFO("arrays begin " << left << " and " << right << " elements behind a border, and have " << n);
      const Floats x = any_floats(rng, n), y = any_floats(rng, n);
      const Halves h = host.to_bf16(y);
      const VectorOnDevice a{x, left}, b{x, left}, c{x, left}, d{y, right};
      const VectorOnDevice e{h, right}, rounded{h, right};
      add_into_async(a.span(), DeviceSpan<const float>{d.span()}, stream);
      add_into_async(b.span(), DeviceSpan<const bf16>{e.span()}, stream);
      to_bf16_async(DeviceSpan<const float>{c.span()}, rounded.span(), stream);
      Floats sum(n);
      a.copy_to(sum);
      CHECK(same_bits(sum, host.add_into(x, y)));
      b.copy_to(sum);
      CHECK(same_bits(sum, host.add_into(x, h)));
      Halves seen(n);
      rounded.copy_to(seen);
      CHECK(same_bits(seen, host.to_bf16(x)));
      to_float_async(DeviceSpan<const bf16>{e.span()}, c.span(), stream);
      c.copy_to(sum);
      CHECK(same_bits(sum, host.to_float(h)));
    }
}

TEST_CASE("a launch that fails is an Error that says where", "[gpu]") {
  if (no_device()) return;
  const auto fails = [] { ELRUN_CUDA_CHECK(cudaSetDevice(4096)); };
  CHECK_THROWS_AS(fails(), Error);
  (void)cudaGetLastError();  // or the next launch would report it again
}
