// A training program as a shared library: a world of one learns that w = 3 fits y = 3 x. It is loaded beside other libraries.
#include <elrun/elrun.hpp>

extern "C" [[gnu::visibility("default")]] double elrun_neighbour_learn() {
  double learnt = 0;
  char name[] = "neighbour";
  char* arguments[] = {name, nullptr};
  const int code = elrun::run(1, arguments, [&](elrun::Job& job) {
    job.configure({.global_batch = 4, .micro_batch = 2, .samples = 16, .steps = 200, .seed = 1});
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
    learnt = static_cast<double>(w.data()[0]);
  });
  return code == 0 ? learnt : -code;
}
