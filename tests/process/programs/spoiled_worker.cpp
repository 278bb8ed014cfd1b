// A small Job that saves a spoiled state: spoiled_worker FOLDER HOW EVERY. Host state turns bad at step 19, once for each FOLDER, and is saved with the
// checkpoints from step 20 on; whoever has it ends in step 21. HOW is how: exit (exit code 3), abort, kill (SIGKILL). 30 steps, a checkpoint every EVERY.

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <elrun/elrun.hpp>

namespace {

constexpr std::size_t weights = 256;
constexpr std::uint64_t slots = 4;

[[noreturn]] void end(const std::string& how) {
  if (how == "kill") std::raise(SIGKILL);
  if (how == "abort") std::abort();
  std::_Exit(3);
}

void train(elrun::Job& job, const std::string& folder, const std::string& how, std::uint64_t every) {
  job.configure({.global_batch = slots,
                 .micro_batch = 1,
                 .samples = 1000,
                 .data_hash = 1,
                 .steps = 30,
                 .placement = elrun::zero(1),  // each worker has a part of the optimizer's state: a lost one takes it along
                 .numeric = "spoiled 1"},
                {.directory = folder + "/ck", .every = every});
  elrun::Unit unit = job.unit("model");
  const elrun::Tensor<float> tensor = unit.tensor<float>("weights", {weights});
  std::uint64_t spoiled = 0;
  job.state("spoiled", spoiled);
  job.seal();
  const elrun::Restored restored = job.restore();
  if (job.prints()) {
    std::printf("restored step=%llu %s: %s\n", static_cast<unsigned long long>(restored.step), restored.checkpoint.c_str(),
                restored.why.c_str());
    for (const std::string& note : restored.notes) std::printf("restored: %s\n", note.c_str());
    std::fflush(stdout);
  }
  if (!restored) {
    const auto scope = unit.use();
    for (std::size_t i = 0; i < weights; ++i) tensor.data()[i] = static_cast<float>(i);
  }
  const std::string once = folder + "/spoiled";
  while (auto step = job.next_step()) {
    const std::uint64_t number = step->number();
    if (number == 19 && !std::filesystem::exists(once)) spoiled = 1;
    if (number == 20) std::ofstream{once}.put('\n');  // all ranks are past step 19
    for (elrun::Slot& slot : step->slots()) {
      if (number == 21 && spoiled != 0) end(how);
      const auto scope = unit.use_grad();
      for (std::size_t i = 0; i < weights; ++i)
        tensor.grad()[i] = tensor.data()[i] * static_cast<float>(slot.index() + 1) - static_cast<float>(number);
      slot.report(static_cast<float>(slot.index()), 1);
    }
    (void)step->apply(elrun::AdamW{}, {.lr = 1e-2f});
  }
  job.print("done step=" + std::to_string(job.outcome().step) + " spoiled=" + std::to_string(spoiled));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, argv[1], argv[2], std::stoull(argv[3])); });
}
