// A small Job that goes on when its test says so: holding_worker FOLDER. In the first slot of step 10 it waits for the file FOLDER/ten, in
// that of step 20 for FOLDER/twenty, or until the slot is revoked; a process that is started again waits for FOLDER/start before it restores, as one with much to
// load does.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include <elrun/elrun.hpp>

namespace {

constexpr std::size_t weights = 256;
constexpr std::uint64_t slots = 4, steps = 30;

template <class Over>
void wait_for(const std::string& file, const Over& over) {
  for (int i = 0; i < 60'000 && !over() && !std::filesystem::exists(file); ++i) std::this_thread::sleep_for(std::chrono::milliseconds{2});
}

void train(elrun::Job& job, const std::string& folder) {
  job.configure({.global_batch = slots,
                 .micro_batch = 1,
                 .samples = 1000,
                 .data_hash = 1,
                 .steps = steps,
                 .placement = elrun::zero(0),
                 .numeric = "holding 1"},
                {});
  elrun::Unit unit = job.unit("model");
  const elrun::Tensor<float> tensor = unit.tensor<float>("weights", {weights});
  job.seal();
  if (const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT"); restarts != nullptr && std::string{restarts} != "0") {
    std::puts("starts again");
    std::fflush(stdout);
    wait_for(folder + "/start", [] { return false; });
  }
  const bool restored{job.restore()};
  {
    const auto scope = unit.use();
    for (std::size_t i = 0; i < weights && !restored; ++i) tensor.data()[i] = static_cast<float>(i);
  }
  while (auto step = job.next_step()) {
    const std::uint64_t number = step->number();
    bool holds = number == 10 || number == 20;
    if (holds) job.print("holds at " + std::to_string(number));
    for (elrun::Slot& slot : step->slots()) {
      if (std::exchange(holds, false)) wait_for(folder + (number == 10 ? "/ten" : "/twenty"), [&] { return slot.revoked(); });
      const auto scope = unit.use_grad();
      for (std::size_t i = 0; i < weights; ++i)
        tensor.grad()[i] = tensor.data()[i] * static_cast<float>(slot.index() + 1) - static_cast<float>(number);
      slot.report(static_cast<float>(slot.index()), 1);
    }
    const elrun::StepResult r = step->apply(elrun::AdamW{}, {.lr = 1e-2f});
    if (r.decided) job.print("step=" + std::to_string(number) + " world=" + std::to_string(r.world) + " ");
  }
  job.print("done state=" + std::to_string(job.outcome().state_hash));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, argv[1]); });
}
