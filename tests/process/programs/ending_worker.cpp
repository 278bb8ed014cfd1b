// A small Job that ends as its test says: ending_worker STEPS HOW [STEP] [CHECKPOINTS]. HOW is one of: train; exit (std::exit(0) in a slot of
// STEP), return (before STEP's slots), stop (job.stop() after STEP steps), stop_inside (in a slot of step STEP, and then, in the first generation, rank 0 dies),
// throw (an int, before STEP's slots), look (never asks for a step), waits (in STEP's slots until there is a file CHECKPOINTS; it has no checkpoints), twice (another job in the same process), killed (rank STEP dies of SIGKILL in its last work, after the job's end was decided), export (rank STEP works for a minute more after
// that), slow (the worker of rank STEP takes 200 ms more for a slot), slow_audited (and every fourth step is audited), forked (before STEP's slots a child is forked whose exec fails, and which stays in the loop). Slots take 5 ms.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <elrun/elrun.hpp>

namespace {

constexpr std::size_t weights = 256;
constexpr std::uint64_t slots = 4;

bool begins_again() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts != nullptr && std::string{restarts} != "0";
}

void train(elrun::Job& job, std::uint64_t steps, const std::string& how, std::uint64_t at, const std::string& checkpoints) {
  job.configure({.global_batch = slots,
                 .micro_batch = 1,
                 .samples = 1000,
                 .data_hash = 1,
                 .steps = steps,
                 .placement = elrun::zero(0),
                 .numeric = "ending 1"},
                {.directory = how == "waits" ? "" : checkpoints});
  elrun::Unit unit = job.unit("model");
  const elrun::Tensor<float> tensor = unit.tensor<float>("weights", {weights});
  job.seal();
  const bool restored{job.restore()};
  {
    const auto scope = unit.use();
    for (std::size_t i = 0; i < weights && !restored; ++i) tensor.data()[i] = static_cast<float>(i);
  }
  if (how == "die") std::_Exit(3);
  if (how == "look") return job.print("looked");
  bool dies = how == "stop_inside" && !begins_again() && job.prints();
  const char* rank = std::getenv("RANK");
  const bool is_slow = how.starts_with("slow") && rank != nullptr && rank == std::to_string(at);
  pid_t forked = 0;
  while (auto step = job.next_step()) {
    if (how == "return" && step->number() == at) return;
    if (how == "throw" && step->number() == at) throw 7;
    if (how == "forked" && step->number() == at && (forked = ::fork()) == 0) {
      ::alarm(60);  // by default it ends the process
      ::execlp("/no/such/program", "program", nullptr);
      std::perror("exec");
    }
    if (how == "slow_audited") step->audit(step->number() % 4 == 3 ? 1 : 0);
    for (elrun::Slot& slot : step->slots()) {
      if (how == "exit" && step->number() == at) std::exit(0);
      if (how == "stop_inside" && step->number() == at) {
        job.stop();
        if (dies) std::raise(SIGKILL);
      }
      while (how == "waits" && step->number() == at && ::access(checkpoints.c_str(), F_OK) != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
      std::this_thread::sleep_for(std::chrono::milliseconds{is_slow ? 205 : 5});
      const auto scope = unit.use_grad();
      for (std::size_t i = 0; i < weights; ++i)
        tensor.grad()[i] += tensor.data()[i] * static_cast<float>(slot.index() + 1) - static_cast<float>(step->number());
      slot.report(static_cast<float>(slot.index()), 1);
    }
    const elrun::StepResult r = step->apply(elrun::AdamW{}, {.lr = 1e-2f});
    if (!r.decided) continue;
    job.print("step=" + std::to_string(r.step) + " world=" + std::to_string(r.world) + " ");
    if (how == "stop" && r.step == at) job.stop();
  }
  if (forked > 0) (void)::waitpid(forked, nullptr, 0);  // it has said what it says, however slow the machine is
  if (how == "export" && rank != nullptr && rank == std::to_string(at)) {
    std::puts("exporting");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::minutes{1});
    std::puts("exported");
  }
  if (how == "killed" && rank != nullptr && rank == std::to_string(at)) std::raise(SIGKILL);
  job.print("done step=" + std::to_string(job.outcome().step) + " state=" + std::to_string(job.outcome().state_hash));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const auto run = [&] {
    return elrun::run(argc, argv, [&](elrun::Job& job) {
      train(job, std::stoull(argv[1]), argv[2], argc > 3 ? std::stoull(argv[3]) : 0, argc > 4 ? argv[4] : "");
    });
  };
  const int code = run();
  return code == 0 && std::string{argv[2]} == "twice" ? run() : code;
}
