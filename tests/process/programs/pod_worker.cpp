// What trains in emulated pods in place of a tutorial's script:
//
//   pod_worker job FOLDER ZERO STEPS [fast]   a Job of that stage of ZeRO, with checkpoints in FOLDER/checkpoints every 50 steps
//   pod_worker plain FOLDER                   as a script does that torchrun runs: rank 0 counts steps, saves every 50th number, and a new process goes on from there,
//                                             until FOLDER/end is there
//
// Both say `step=N world=W generation=G` once a step. A step takes 20 ms and what it exchanges; with `fast` no time. On a host for which there is
// FOLDER/oom-HOST, the worker with LOCAL_RANK 0 removes that file, and takes memory until the kernel kills it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <elrun/elrun.hpp>

namespace {

constexpr std::uint64_t slots = 16, every = 50;
constexpr std::size_t units = 2,
                      weights =
                          17'000;  // more than 16 blocks of 4 KiB, which are what is sharded: each of 16 workers has something to lose

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void take_all_memory() {
  std::puts("takes memory until it is killed");
  std::fflush(stdout);
  constexpr std::size_t chunk = 8 << 20, most = 2048;  // 16 GiB: there was no limit
  for (std::size_t i = 0; i < most; ++i) {
    void* memory = std::malloc(chunk);
    if (memory == nullptr) break;
    std::memset(memory, 1, chunk);
  }
  std::_Exit(3);
}

void look_for_orders(const std::string& folder) {
  static const bool first = variable("LOCAL_RANK") == "0";
  if (!first) return;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  static const std::string file = folder + "/oom-" + host;
  if (::unlink(file.c_str()) == 0) take_all_memory();
}

void train(elrun::Job& job, const std::string& folder, int stage, std::uint64_t steps, bool fast) {
  job.configure({.global_batch = slots,
                 .micro_batch = 1,
                 .samples = 1000,
                 .data_hash = 1,
                 .steps = steps,
                 .seed = 1,
                 .placement = elrun::zero(stage),
                 .numeric = "pod_worker 1"},
                {.directory = fast ? "" : folder + "/checkpoints", .every = fast ? 0 : every});
  std::vector<elrun::Unit> model;
  std::vector<elrun::Tensor<float>> tensors;
  for (std::size_t u = 0; u < units; ++u) {
    model.push_back(job.unit("unit." + std::to_string(u)));
    tensors.push_back(model.back().tensor<float>("weights", {weights}));
  }
  job.seal();
  if (!job.restore())
    for (std::size_t u = 0; u < units; ++u) {
      const auto scope = model[u].use();
      for (std::size_t i = 0; i < weights; ++i) tensors[u].data()[i] = 1.0f / static_cast<float>(1 + i + u);
    }
  while (auto step = job.next_step()) {
    bool first = true;
    for (elrun::Slot& slot : step->slots()) {
      look_for_orders(folder);
      if (first && !fast) std::this_thread::sleep_for(std::chrono::milliseconds{20});
      first = false;
      for (std::size_t u = 0; u < units; ++u) {
        const auto scope = model[u].use_grad();
        const auto target = static_cast<float>(slot.samples()[0] % 7);
        for (std::size_t i = 0; i < weights; ++i)
          tensors[u].grad()[i] = tensors[u].data()[i] - target * static_cast<float>(slot.index() + 1);
      }
      slot.report(static_cast<float>(slot.index()), 1);
    }
    const elrun::StepResult r = step->apply(elrun::AdamW{}, {.lr = 1e-2f});
    if (r.decided && !fast)
      job.print("step=" + std::to_string(r.step) + " world=" + std::to_string(r.world) + " generation=" + std::to_string(r.generation) +
                " ");
  }
  job.print("done step=" + std::to_string(job.outcome().step) + " state=" + std::to_string(job.outcome().state_hash) + " ");
}

int count(const std::string& folder) {
  const std::string saved = folder + "/step", end = folder + "/end";
  const bool counts = variable("RANK") == "0";
  std::uint64_t step = 0;
  std::ifstream{saved} >> step;
  for (; ::access(end.c_str(), F_OK) != 0; std::this_thread::sleep_for(std::chrono::milliseconds{20})) {
    look_for_orders(folder);
    if (!counts) continue;
    std::printf("step=%llu world=%s generation=%s \n", static_cast<unsigned long long>(++step), variable("WORLD_SIZE").c_str(),
                variable("ELRUN_GENERATION").c_str());
    std::fflush(stdout);
    if (step % every != 0) continue;
    std::ofstream{saved + ".new"} << step;
    std::filesystem::rename(saved + ".new", saved);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "", folder = argc > 2 ? argv[2] : "";
  if (mode == "plain") return count(folder);
  if (mode != "job" || argc < 5) return 64;
  const bool fast = argc > 5;
  return elrun::run(argc, argv,
                    [&](elrun::Job& job) { train(job, folder, std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10), fast); });
}
