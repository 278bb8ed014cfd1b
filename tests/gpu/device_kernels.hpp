#pragma once
/// \file The kernels on a device, for the cases of kernel_cases.hpp: each takes and returns vectors of the host.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "tests/gpu/kernel_cases.hpp"
#include "tests/gpu/update_table.hpp"

namespace elrun::test {

/// A copy of a vector on the device, before which `offset` elements lie: an odd offset breaks alignment.
template <class T>
class VectorOnDevice {
 public:
  explicit VectorOnDevice(const std::vector<T>& from, std::size_t offset = 0) : size_{from.size()} {
    ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&base_), std::max<std::size_t>(from.size() + offset, 1) * sizeof(T)));
    data_ = base_ + offset;
    ELRUN_CUDA_CHECK(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  VectorOnDevice(const VectorOnDevice&) = delete;
  VectorOnDevice& operator=(const VectorOnDevice&) = delete;
  ~VectorOnDevice() { cudaFree(base_); }
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
    VectorOnDevice p{s.parameter, offset}, m{s.moments[0], offset}, v{s.moments[1], offset}, g{s.gradient, offset};
    VectorOnDevice r{s.rounded, offset};
    const UpdateTableOnDevice table{s.runs};
    update_async({p.span().data, {m.span().data, v.span().data}, g.span().data, s.rounded.empty() ? nullptr : r.span().data}, table.view(),
                 step, stream);
    p.copy_to(s.parameter);
    m.copy_to(s.moments[0]);
    v.copy_to(s.moments[1]);
    r.copy_to(s.rounded);
  }
  void reduce(const ReduceState& s, Floats& result, Floats* sums) {
    const VectorOnDevice to{result, offset};
    const VectorOnDevice squares{sums == nullptr ? Floats{} : *sums};
    std::vector<std::unique_ptr<VectorOnDevice<float>>> floats;
    std::vector<std::unique_ptr<VectorOnDevice<bf16>>> halves;
    std::vector<ReduceOperand> operands;
    for (const ReduceState::Operand& o : s.operands) {
      void* base = to.span().data;
      if (!o.halves.empty()) base = halves.emplace_back(std::make_unique<VectorOnDevice<bf16>>(o.halves, offset))->span().data;
      else if (!s.into_operand || !operands.empty())
        base = floats.emplace_back(std::make_unique<VectorOnDevice<float>>(o.floats, offset))->span().data;
      operands.push_back({base, o.additions, !o.halves.empty(), o.whole});
    }
    std::vector<ReducePiece> pieces = s.pieces;
    const std::uint64_t tiles = count_tiles(pieces);
    const VectorOnDevice operand_table{operands};
    const VectorOnDevice piece_table{pieces};
    reduce_async({operand_table.span().data, piece_table.span().data, static_cast<std::uint32_t>(operands.size()),
                  static_cast<std::uint32_t>(pieces.size()), tiles, depth_of(operands)},
                 to.span().data, sums == nullptr ? nullptr : squares.span().data, stream);
    to.copy_to(result);
    if (sums != nullptr) squares.copy_to(*sums);
  }
  template <class Right>
  Floats add_into(Floats left, const std::vector<Right>& right) {
    VectorOnDevice l{left, offset};
    VectorOnDevice r{right, offset};
    add_into_async(l.span(), DeviceSpan<const Right>{r.span()}, stream);
    l.copy_to(left);
    return left;
  }
  Floats sums_of_squares(const Floats& data) {
    Floats sums(granule_count(data.size()));
    VectorOnDevice d{data, offset}, s{sums};
    sums_of_squares_async(d.span(), s.span(), stream);
    s.copy_to(sums);
    return sums;
  }
  std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first, std::uint64_t salt) {
    VectorOnDevice d{std::vector<std::byte>(data.begin(), data.end())};
    std::vector<std::uint64_t> sum{0};
    VectorOnDevice s{sum};
    mix_sum_async(d.span(), first, salt, s.span().data, stream);
    s.copy_to(sum);
    return sum[0];
  }
  Halves to_bf16(const Floats& in) {
    Halves out(in.size());
    VectorOnDevice i{in, offset};
    VectorOnDevice o{out, offset};
    to_bf16_async(i.span(), o.span(), stream);
    o.copy_to(out);
    return out;
  }
  Floats to_float(const Halves& in) {
    Floats out(in.size());
    VectorOnDevice i{in, offset};
    VectorOnDevice o{out, offset};
    to_float_async(i.span(), o.span(), stream);
    o.copy_to(out);
    return out;
  }
};

}  // namespace elrun::test
