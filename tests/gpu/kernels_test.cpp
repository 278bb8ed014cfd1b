// The device against the known answers and against the host's loops. Plain C++: all launches hide behind `_async`.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>

#include <elrun/failure.hpp>

#include "kernels/cuda/check.hpp"
#include "tests/gpu/kernel_cases.hpp"
#include "tests/gpu/update_table.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// A copy of a vector on the device, before which `offset` elements lie: an odd offset breaks alignment.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& from, std::size_t offset = 0) : size_{from.size()} {
    ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&base_), std::max<std::size_t>(from.size() + offset, 1) * sizeof(T)));
    data_ = base_ + offset;
    ELRUN_CUDA_CHECK(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(base_); }
  [[nodiscard]] DeviceSpan<T> span() const { return {data_, size_}; }
  void copy_to(std::vector<T>& to) const {
    ELRUN_CUDA_CHECK(cudaMemcpy(to.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));  // waits for the stream too
  }

 private:
  T* base_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_;
};

struct DeviceKernels {
  std::size_t offset = 0;  // of all arrays: 0 takes the wide path, 1 the narrow one
  Stream stream{{DeviceKind::cuda, 0}, nullptr};

  void adamw(AdamWState& s, const AdamWStep& step) { update_whole(s, step); }
  void momentum(AdamWState& s, const SgdStep& step) { update_whole(s, step); }
  void momentum(AdamWState& s, const LionStep& step) { update_whole(s, step); }
  /// One run: all of it. The second moment is unused by some.
  void update_whole(AdamWState& s, const OptimizerStep& step) {
    UpdateState all{s.parameter, {s.exp_avg, s.exp_avg_sq}, s.gradient, s.rounded, {}};
    if (!s.parameter.empty()) all.runs.push_back({.size = s.parameter.size(), .decays = 1});
    update(all, step);
    s.parameter = all.parameter, s.exp_avg = all.moments[0], s.exp_avg_sq = all.moments[1], s.rounded = all.rounded;
  }
  void update(UpdateState& s, const OptimizerStep& step) {
    OnDevice p{s.parameter, offset}, m{s.moments[0], offset}, v{s.moments[1], offset}, g{s.gradient, offset};
    OnDevice r{s.rounded, offset};
    const UpdateTableOnDevice table{s.runs};
    update_async({p.span().data, {m.span().data, v.span().data}, g.span().data, s.rounded.empty() ? nullptr : r.span().data}, table.view(),
                 step, stream);
    p.copy_to(s.parameter);
    m.copy_to(s.moments[0]);
    v.copy_to(s.moments[1]);
    r.copy_to(s.rounded);
  }
  template <class Right>
  Floats add_into(Floats left, const std::vector<Right>& right) {
    OnDevice l{left, offset};
    OnDevice r{right, offset};
    add_into_async(l.span(), DeviceSpan<const Right>{r.span()}, stream);
    l.copy_to(left);
    return left;
  }
  Floats sums_of_squares(const Floats& data) {
    Floats sums(granule_count(data.size()));
    OnDevice d{data, offset}, s{sums};
    sums_of_squares_async(d.span(), s.span(), stream);
    s.copy_to(sums);
    return sums;
  }
  std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first, std::uint64_t salt) {
    OnDevice d{std::vector<std::byte>(data.begin(), data.end())};
    std::vector<std::uint64_t> sum{0};
    OnDevice s{sum};
    mix_sum_async(d.span(), first, salt, s.span().data, stream);
    s.copy_to(sum);
    return sum[0];
  }
  Halves to_bf16(const Floats& in) {
    Halves out(in.size());
    OnDevice i{in, offset};
    OnDevice o{out, offset};
    to_bf16_async(i.span(), o.span(), stream);
    o.copy_to(out);
    return out;
  }
  Floats to_float(const Halves& in) {
    Floats out(in.size());
    OnDevice i{in, offset};
    OnDevice o{out, offset};
    to_float_async(i.span(), o.span(), stream);
    o.copy_to(out);
    return out;
  }
};

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
      const OnDevice a{x, left}, b{x, left}, c{x, left}, d{y, right};
      const OnDevice e{h, right}, rounded{h, right};
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
