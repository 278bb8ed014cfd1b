#pragma once
/// \file A program with streams of its own, and losses on its device.

#include <cuda_runtime_api.h>

#include <optional>

#include "lib/device/device_memory.hpp"
#include "lib/device/handles.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle()); }

struct Habits {
  bool own_streams = false;
  bool losses_on_host = false;
  bool reports_late = false;  ///< A slot's loss is made and reported after the scope.
  double audit = 0;
  std::function<void(Job&, Unit&, const Tensor<float>&)> in_scope{};
};

/// One tensor, whose gradient is its weights. On a device a slot is work of its own stream: a copy for the kernel, and a loss that never leaves the device.
inline Program streams_program(const Habits& habits) {
  return [habits](Job& job, Member& me) {
    const bool on_device = job.device().kind == DeviceKind::cuda;
    Plan plan = toy_plan(0, 4, Exchange::per_step);
    plan.steps = 3;
    job.configure(plan);
    Unit unit = job.unit("all");
    const Tensor<float> weights = unit.tensor<float>("weights", {3000});
    job.seal();
    std::vector<float> values(weights.size());
    std::vector<OwnedStream> streams;
    for (int i = 0; i < 2 && on_device && habits.own_streams; ++i) streams.emplace_back(job.device());
    const DeviceBuffer losses = on_device ? DeviceBuffer{job.device(), 4 * sizeof(float)} : DeviceBuffer{};
    if (!job.restore()) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = job.rng("weights").normal(i);
      weights.set(values);
    }
    while (auto step = job.next_step()) {
      if (habits.audit > 0) step->audit(habits.audit);
      for (Slot& slot : step->slots()) {
        const float loss = toy_loss(slot.samples(), slot.rng());
        const Stream own = streams.empty() ? Stream{} : streams[slot.index() % 2].view(), works = streams.empty() ? job.stream() : own;
        std::optional<UseScope> scope{unit.use_grad(own)};
        if (habits.in_scope) habits.in_scope(job, unit, weights);
        if (!on_device) {
          std::ranges::copy(weights.span(), weights.grad_span().begin());
          slot.report(loss, 1);
          continue;
        }
        float* const word = reinterpret_cast<float*>(losses.data()) + slot.index();
        must(cudaMemcpyAsync(weights.grad_device_span().data, weights.device_span().data, weights.size() * sizeof(float),
                             cudaMemcpyDeviceToDevice, native(works)) == cudaSuccess,
             "a copy");
        if (habits.losses_on_host) {
          slot.report(loss, 1);
          continue;
        }
        if (habits.reports_late) scope.reset();
        must(cudaMemcpyAsync(word, &loss, sizeof loss, cudaMemcpyHostToDevice, native(works)) == cudaSuccess, "a copy");
        slot.report(DeviceScalar{word, own}, 1);  // Stream{} is the job's
        if (habits.reports_late) continue;
        must(cudaMemsetAsync(word, 0xff, sizeof loss, native(works)) == cudaSuccess, "what may change the word from now on");
      }
      me.steps.push_back(step->apply(toy_adamw, toy_options(step->number())));
    }
    const Evaluation evaluation = job.evaluate(6, [&](Slot& slot) {
      const float loss = toy_loss(slot.samples(), slot.rng());
      if (!on_device) return slot.report(loss, 1);
      must(cudaMemcpyAsync(losses.data(), &loss, sizeof loss, cudaMemcpyHostToDevice, native(job.stream())) == cudaSuccess, "a copy");
      slot.report(DeviceScalar{reinterpret_cast<const float*>(losses.data())}, 1);
    });
    me.lines.push_back(fmt::format("{:a}", evaluation.loss));
    weights.read(values);
    me.outcome = job.outcome();
    for (const OwnedStream& stream : streams) must(cudaStreamSynchronize(native(stream.view())) == cudaSuccess, "the end of a stream");
  };
}

}  // namespace elrun::test
