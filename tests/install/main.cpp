// The smallest Job, bare: a world of one learns that w = 3 fits y = 3 x.

#include <cstdio>

#include <elrun/elrun.hpp>

int main(int argc, char** argv) {
  return elrun::run(argc, argv, [](elrun::Job& job) {
    elrun::Plan plan;
    plan.global_batch = 4;
    plan.micro_batch = 2;
    plan.samples = 16;
    plan.steps = 200;
    plan.seed = 1;
    job.configure(plan);
    elrun::Unit unit = job.unit("line");
    const elrun::Tensor<float> w = unit.tensor<float>("w", {1}, {.decay = false});
    job.seal();
    if (!job.restore()) w.data()[0] = 0;
    while (auto step = job.next_step()) {
      for (elrun::Slot& slot : step->slots()) {
        const elrun::UseScope scope = unit.use_grad();
        float loss = 0;
        for (const std::uint64_t sample : slot.samples()) {
          const float x = static_cast<float>(sample % 4) - 1.5f;
          const float error = w.data()[0] * x - 3 * x;
          loss += error * error / 2;
          w.grad()[0] += error * x;
        }
        slot.report(loss / 2, slot.samples().size());
      }
      step->apply(elrun::AdamW{}, {.lr = 0.05f});
    }
    std::printf("w = %.2f\n", static_cast<double>(w.data()[0]));
  });
}
