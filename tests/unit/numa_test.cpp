#include "launcher/process/numa.hpp"

#include <map>

#include <fmt/format.h>

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

// Two sockets of two nodes each, 4 cores with 2 threads a node: thread 0 of core c is CPU c, thread 1 is CPU 16 + c. A
// cache for each pair of cores. GPUs 0, 1 and 2 on node 1, GPU 3 on node 3.
struct Computer {
  std::map<std::string, std::string> files;
  std::map<std::string, std::vector<std::string>> folders;
  Cpus allowed;

  Computer() {
    const auto cpu_file = [](int cpu, const char* name) { return fmt::format("/sys/devices/system/cpu/cpu{}/{}", cpu, name); };
    for (int node = 0; node < 4; ++node) {
      folders["/sys/devices/system/node"].push_back(fmt::format("node{}", node));
      files[fmt::format("/sys/devices/system/node/node{}/cpulist", node)] =
          fmt::format("{}-{},{}-{}\n", 4 * node, 4 * node + 3, 16 + 4 * node, 19 + 4 * node);
    }
    folders["/sys/devices/system/node"].push_back("possible");
    for (int cpu = 0; cpu < 32; ++cpu) {
      const int core = cpu % 16, first = core / 2 * 2;
      allowed.insert(static_cast<std::uint32_t>(cpu));
      files[cpu_file(cpu, "topology/physical_package_id")] = fmt::format("{}\n", core / 8);
      files[cpu_file(cpu, "topology/thread_siblings_list")] = fmt::format("{},{}\n", core, 16 + core);
      folders[cpu_file(cpu, "cache")] = {"index0", "index3", "uevent"};
      files[cpu_file(cpu, "cache/index0/level")] = fmt::format("1\n");
      files[cpu_file(cpu, "cache/index0/shared_cpu_list")] = fmt::format("{}\n", cpu);
      files[cpu_file(cpu, "cache/index3/level")] = fmt::format("3\n");
      files[cpu_file(cpu, "cache/index3/shared_cpu_list")] = fmt::format("{}-{},{}-{}\n", first, first + 1, 16 + first, 17 + first);
    }
    for (int gpu = 0; gpu < 4; ++gpu) {
      folders["/proc/driver/nvidia/gpus"].insert(folders["/proc/driver/nvidia/gpus"].begin(),
                                                 fmt::format("0000:0{}:00.0", gpu + 4));  // in no order
      files[fmt::format("/proc/driver/nvidia/gpus/0000:0{}:00.0/information", gpu + 4)] =
          fmt::format("Model: X\nGPU UUID: \t GPU-{}{}\n", gpu, gpu);
      files[fmt::format("/sys/bus/pci/devices/0000:0{}:00.0/numa_node", gpu + 4)] = fmt::format("{}\n", gpu == 3 ? 3 : 1);
    }
  }

  [[nodiscard]] Result<std::vector<Cpus>> bound(NumaBinding how, std::uint32_t workers, const Variables& environment = {}) const {
    return cpus_of_workers(
        how, workers, environment,
        {.read_file = [&](const std::string& path) { return files.count(path) ? std::optional{files.at(path)} : std::nullopt; },
         .names_in = [&](const std::string& folder) { return folders.count(folder) ? folders.at(folder) : std::vector<std::string>{}; },
         .allowed = allowed});
  }
  [[nodiscard]] std::vector<Cpus> cpus(NumaBinding how, std::uint32_t workers, const Variables& environment = {}) const {
    const auto found = bound(how, workers, environment);
    if (!found.ok()) FAIL(found.failure().what);
    return *found;
  }
};

}  // namespace

TEST_CASE("a worker is bound to the CPUs near its GPU", "[numa]") {
  Computer computer;
  const Cpus node1{4, 5, 6, 7, 20, 21, 22, 23}, node3{12, 13, 14, 15, 28, 29, 30, 31};
  CHECK(computer.cpus(NumaBinding::none, 4).empty());
  CHECK(computer.cpus(NumaBinding::node, 4) == std::vector<Cpus>{node1, node1, node1, node3});
  SECTION("its socket: both nodes of it") {
    const auto by_socket = computer.cpus(NumaBinding::socket, 4);
    CHECK(by_socket[0] == parse_cpus("0-7,16-23"));
    CHECK(by_socket[3] == parse_cpus("8-15,24-31"));
  }
  SECTION("exclusive: whole cores, each of one worker, the first with one more") {
    CHECK(computer.cpus(NumaBinding::exclusive, 4) == std::vector<Cpus>{{4, 5, 20, 21}, {6, 22}, {7, 23}, node3});
  }
  SECTION("its core complex, taken in turn") {
    CHECK(computer.cpus(NumaBinding::core_complex, 4) ==
          std::vector<Cpus>{{4, 5, 20, 21}, {6, 7, 22, 23}, {4, 5, 20, 21}, {12, 13, 28, 29}});
  }
  SECTION("only what this process may use; the larger cache first") {
    computer.allowed = parse_cpus("5-7,21-23,30");
    CHECK(computer.cpus(NumaBinding::node, 4) ==
          std::vector<Cpus>{{5, 6, 7, 21, 22, 23}, {5, 6, 7, 21, 22, 23}, {5, 6, 7, 21, 22, 23}, {30}});
    CHECK(computer.cpus(NumaBinding::exclusive, 3) == std::vector<Cpus>{{5, 21}, {6, 22}, {7, 23}});
    CHECK(computer.cpus(NumaBinding::core_complex, 2) == std::vector<Cpus>{{6, 7, 22, 23}, {5, 21}});
  }
  SECTION("the GPUs that it may see, by number or by name") {
    CHECK(computer.cpus(NumaBinding::node, 2, {{"CUDA_VISIBLE_DEVICES", " 3, 0"}}) == std::vector<Cpus>{node3, node1});
    CHECK(computer.cpus(NumaBinding::node, 2, {{"CUDA_VISIBLE_DEVICES", "GPU-11,GPU-33"}}) == std::vector<Cpus>{node1, node3});
  }
  SECTION("a machine that knows of no nodes has one") {
    for (auto& [path, text] : computer.files)
      if (path.ends_with("numa_node")) text.assign("-1\n");
    CHECK(computer.cpus(NumaBinding::node, 1)[0] == parse_cpus("0-3,16-19"));
  }
}

TEST_CASE("what is missing for a binding is named", "[numa]") {
  Computer computer;
  const auto why = [&](std::uint32_t workers, const Variables& environment = {}, NumaBinding how = NumaBinding::node) {
    const auto found = computer.bound(how, workers, environment);
    return found.ok() ? std::string{"bound"} : found.failure().what;
  };
  CHECK(why(5).find("each of the 5 workers needs a GPU to be near to, and there are 4") != std::string::npos);
  CHECK(why(1, {{"CUDA_VISIBLE_DEVICES", ""}}).find("there are 0") != std::string::npos);
  CHECK(why(1, {{"CUDA_VISIBLE_DEVICES", "4"}}).find("names 4") != std::string::npos);
  CHECK(why(1, {{"CUDA_VISIBLE_DEVICES", "GPU-99"}}).find("names GPU-99") != std::string::npos);
  computer.allowed = {4, 5, 20, 21};  // two cores near GPUs 0, 1 and 2
  CHECK(why(3, {}, NumaBinding::exclusive).find("near GPU 2 (0000:06:00.0) this process may use fewer cores than") != std::string::npos);
  CHECK(why(2, {}, NumaBinding::exclusive) == "bound");
  computer.allowed = {0, 1};
  CHECK(why(1, {}, NumaBinding::exclusive).find("near GPU 0 (0000:04:00.0) this process may use none") != std::string::npos);
  CHECK(why(1).find("near GPU 0 (0000:04:00.0) this process may use none") != std::string::npos);
  computer.folders.clear();
  CHECK(why(1).find("there are 0") != std::string::npos);
}

TEST_CASE("sets of CPUs as the kernel writes them", "[numa]") {
  CHECK(parse_cpus("") == Cpus{});
  CHECK(parse_cpus("0\n") == Cpus{0});
  CHECK(parse_cpus("0-2,5,7-7\n") == Cpus{0, 1, 2, 5, 7});
  for (const char* nonsense : {"x", "-1", "3-1", "0-99999999", "99999999999999999999", ","}) CHECK(parse_cpus(nonsense).empty());
}
