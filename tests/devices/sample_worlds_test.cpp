// The samples on fake devices under other orders of streams, blocks and threads: every world and placement comes to the state of one process
// on the host, also when workers are killed. ELRUN_FULL has 200 seeds of each sample, and 100 histories with kills.

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/digits.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun::test;

namespace {

using Words = std::vector<std::string>;

struct World {
  unsigned nodes, workers_per_node;
  std::string zero, overlap;
};

Words operator+(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// 1 to 4 workers with each stage, two nodes with both hybrids; exchanges between slots, and beside them.
std::vector<World> all_worlds() {
  std::vector<World> worlds;
  for (const std::string overlap : {"off", "on"}) {
    for (const unsigned workers : {1u, 2u, 3u, 4u})
      for (const std::string zero : {"0", "1", "2", "3"}) worlds.push_back({1, workers, zero, overlap});
    for (const std::string zero : {"hybrid2", "hybrid3"})
      for (const unsigned workers : {1u, 2u}) worlds.push_back({2, workers, zero, overlap});
  }
  return worlds;
}

/// Those that go on without a worker: with its state, or, where it had the only copy of a shard, from the first step again.
std::vector<World> worlds_of_several() {
  std::vector<World> worlds;
  for (const std::string overlap : {"off", "on"}) {
    for (const unsigned workers : {2u, 3u, 4u})
      for (const std::string zero : {"0", "1", "3", "mirrored1", "mirrored2", "mirrored3"}) worlds.push_back({1, workers, zero, overlap});
    for (const std::string zero : {"hybrid2", "mirrored3"}) worlds.push_back({2, 2, zero, overlap});
  }
  return worlds;
}

/// Each of `worlds` comes up equally often, and few seeds already go through stages, sizes and overlap.
const World& world_of(const std::vector<World>& worlds, std::uint64_t seed) {
  REQUIRE(worlds.size() == 40);
  return worlds[seed * 17 % 40];
}

/// 1 to `few`, to `all` with ELRUN_FULL, or the one that ELRUN_SEED replays.
std::vector<std::uint64_t> seeds(std::uint64_t few, std::uint64_t all) {
  if (const char* only = std::getenv("ELRUN_SEED")) return {std::strtoull(only, nullptr, 0)};
  std::vector<std::uint64_t> out;
  for (std::uint64_t seed = 1; seed <= (std::getenv("ELRUN_FULL") != nullptr ? all : few); ++seed) out.push_back(seed);
  return out;
}

/// A program on the host and on fake devices, and what it is started with.
struct Sample {
  std::string host, devices, process;  ///< The last one: as much of the name as the system keeps.
  Words arguments;
};

struct Result {
  int code = 0;
  std::string done, output;  ///< The `done` line: loss, accuracy, state.
  unsigned killed = 0;
};

std::string done_line(const std::string& output) {
  const auto at = output.rfind("\ndone ");
  return at == std::string::npos ? "" : output.substr(at + 1, output.find('\n', at + 1) - at - 1);
}

std::string on_the_host(const Sample& sample) {
  const Ended host = run(sample.host, sample.arguments, {{"ELRUN_DEVICE", "cpu"}});
  INFO(host.output);
  REQUIRE(host.code == 0);
  REQUIRE(done_line(host.output).find("state=") != std::string::npos);
  return done_line(host.output);
}

/// One job on devices whose order follows from `seed`. A worker is killed after each of the steps `kill_after`; which one, `rng` says.
Result on_devices(const Sample& sample, const World& world, std::uint64_t seed, const std::vector<unsigned>& kill_after = {}) {
  const TemporaryDirectory nccl, reports;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  static const char* const progress[] = {"seeded", "lazy", "eager"};
  std::vector<std::unique_ptr<Job>> agents;
  for (unsigned node = 0; node < world.nodes; ++node) {
    std::string visible;  // nodes of one machine: each gets devices of its own
    for (unsigned w = 0; w < world.workers_per_node; ++w)
      visible += (w == 0 ? "" : ",") + std::to_string(node * world.workers_per_node + w);
    Words options{"--nproc_per_node", std::to_string(world.workers_per_node)};
    options = world.nodes == 1
                  ? options + Words{"--standalone"}
                  : options + Words{"--nnodes", std::to_string(world.nodes), "--node_rank", std::to_string(node), "--rdzv_backend",
                                    "c10d",     "--rdzv_endpoint",           endpoint};
    options = options + Words{"--max_restarts", "10", "--no_python", test_program_path(sample.devices)} + sample.arguments +
              Words{"--zero", world.zero, "--overlap", world.overlap};
    agents.push_back(start("elrun", options,
                           {{"ELRUN_DEVICE", "cuda"},
                            {"FAKEGPU_DEVICES", "4"},
                            {"FAKEGPU_SEED", std::to_string(seed)},
                            {"FAKEGPU_PROGRESS", progress[seed % 3]},
                            {"FAKEGPU_NCCL_DIR", nccl.path()},
                            {"FAKEGPU_REPORTS", reports.path() + "/reports"},
                            {"CUDA_VISIBLE_DEVICES", visible}}));
  }
  Result result;
  elrun::Rng rng{seed};
  for (const unsigned step : kill_after) {
    if (!agents[0]->line("step=" + std::to_string(step) + " ")) break;
    const auto workers = agents[rng.below(agents.size())]->children_named(sample.process);
    if (workers.empty()) break;
    result.killed += ::kill(workers[rng.below(workers.size())], SIGKILL) == 0 ? 1 : 0;
  }
  for (const auto& agent : agents) {
    const Ended ended = finish(*agent);
    if (ended.code != 0) result.code = ended.code;
    result.output += ended.output;
    if (result.done.empty()) result.done = done_line(ended.output);
  }
  std::ifstream told{reports.path() + "/reports"};
  result.output += std::string{std::istreambuf_iterator<char>{told}, {}};
  return result;
}

void check(const Result& result, const Sample& sample, const World& world, std::uint64_t seed, const std::string& expected) {
  INFO("replay with ELRUN_SEED=" << seed << ": " << sample.host << " on " << world.nodes << " node(s) of " << world.workers_per_node
                                 << ", zero " << world.zero << ", overlap " << world.overlap << '\n'
                                 << result.output);
  CHECK(result.code == 0);
  CHECK(result.done == expected);
  CHECK(result.output.find("fakegpu") == std::string::npos);
}

void check_seeds(const Sample& sample, const std::string& expected, std::uint64_t few) {
  const std::vector<World> worlds = all_worlds();
  for (const std::uint64_t seed : seeds(few, 200)) {
    const World& world = world_of(worlds, seed);
    check(on_devices(sample, world, seed), sample, world, seed, expected);
  }
}

Sample gpt(const Folder& folder, unsigned steps, const Words& more = {}) {
  return {"gpt", "gpt_on_fake_devices", "gpt_on_fake_dev",
          gpt_arguments(folder / "text", steps, Words{"--context", "16", "--global-batch", "4"} + more)};
}

}  // namespace

TEST_CASE("gpt comes to the host's state on devices, whatever the world, the placement, overlap and the order of streams", "[devices]") {
  const Folder folder;
  const Sample sample = gpt(folder, 2);
  check_seeds(sample, on_the_host(sample), 6);
}

TEST_CASE("mnist does so, too", "[devices]") {
  const TemporaryDirectory images;
  write_digits(images.path(), "t10k", 10, 1);  // eight are trained on, and two are tested at the end; each takes a second of a processor
  const Sample sample{
      "mnist",
      "mnist_on_fake_devices",
      "mnist_on_fake_d",
      {"--data_path", images.path(), "--micro_batch", "1", "--global_batch", "3", "--steps", "1", "--test_every", "9", "--seed", "7"}};
  check_seeds(sample, on_the_host(sample), 2);
}

#ifdef GPT_IN_BF16
TEST_CASE("gpt in bf16 has one state on devices, whatever the world, the placement, overlap and the order of streams", "[devices]") {
  const Folder folder;
  const Sample sample = gpt(folder, 2, {"--precision", "bf16"});
  const Result alone = on_devices(sample, {1, 1, "0", "off"}, 0);
  INFO(alone.output);
  REQUIRE(alone.code == 0);
  REQUIRE(alone.done.find("state=") != std::string::npos);
  check_seeds(sample, alone.done, 2);
}
#endif

TEST_CASE("gpt comes to the host's state on devices, whichever workers are killed", "[devices]") {
  const Folder folder;
  const Sample sample = gpt(folder, 8);
  const std::string expected = on_the_host(sample);
  const std::vector<World> worlds = worlds_of_several();
  const std::vector<std::uint64_t> histories = seeds(2, 100);
  std::size_t killed = 0;
  for (const std::uint64_t seed : histories) {
    const World& world = world_of(worlds, seed);
    const unsigned first = 1 + static_cast<unsigned>(seed % 3);
    const Result result = on_devices(sample, world, seed, {first, first + 2});
    check(result, sample, world, seed, expected);
    killed += result.killed;
  }
  CHECK(killed >= histories.size());  // of two in each; the second one's job may have gone further by then
}
