#include "launcher/options/cluster.hpp"

#include <map>

#include <fmt/format.h>

#include "launcher/options/devices.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

std::string hint(const Variables& environment, std::string_view host = "box") {
  const auto found = rank_hint(environment, scheduler_of(environment), host);
  return found ? fmt::format("{} by {}", found->rank, found->source) : "none";
}

std::string pod(std::string_view host, std::string_view hosts_file = "", bool kubernetes = true) {
  const auto found = pod_name(kubernetes ? Variables{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}} : Variables{}, host, hosts_file);
  return found ? fmt::format("{}|{}|{}", found->first, found->port.value_or(0), found->second) : "none";
}

}  // namespace

TEST_CASE("the first host of Slurm's list", "[cluster]") {
  CHECK(first_host("a") == "a");
  CHECK(first_host("a,b") == "a");
  CHECK(first_host("n[01-04,07],m") == "n01");
  CHECK(first_host("n[7],m") == "n7");
  CHECK(first_host("r[1-2]-n[05-09]x") == "r1-n05x");
  CHECK(first_host("n[1-2,5").empty());
  CHECK(first_host("").empty());
  CHECK(first_host("[3-4]") == "3");
}

TEST_CASE("srun and mpirun say how many they started and which this one is", "[cluster]") {
  SECTION("Slurm: all tasks of a step name one place, another step another") {
    const auto started = [](const char* step, const char* rank) {
      return *scheduler_of({{"SLURM_JOB_ID", "17"},
                            {"SLURM_STEP_ID", step},
                            {"SLURM_STEP_NUM_TASKS", "3"},
                            {"SLURM_PROCID", rank},
                            {"SLURM_STEP_NODELIST", "n[1-3]"}});
    };
    const Scheduler a = started("0", "0"), b = started("0", "2"), other = started("1", "0");
    CHECK(a.tasks == 3);
    CHECK(b.rank == 2);
    REQUIRE(a.endpoint);
    CHECK(a.endpoint->host == "n1");
    CHECK(a.endpoint->port == b.endpoint->port);
    CHECK(a.run == b.run);
    CHECK(a.run != other.run);
    CHECK(a.endpoint->port != other.endpoint->port);
    CHECK((a.endpoint->port >= 20000 && a.endpoint->port < 32000));
  }
  SECTION("a batch script is not started by srun") {
    CHECK_FALSE(scheduler_of({{"SLURM_JOB_ID", "17"}, {"SLURM_NNODES", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "n[1-3]"}}));
  }
  SECTION("MPI tells where rank 0 is only when all are on one machine") {
    const auto open = scheduler_of(
        {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "x"}});
    REQUIRE(open);
    CHECK(open->endpoint->host == "127.0.0.1");
    CHECK(open->rank == 1);
    const auto hydra = scheduler_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}});
    REQUIRE(hydra);
    CHECK(hydra->tasks == 4);
    CHECK_FALSE(hydra->endpoint);
  }
  SECTION("what cannot be is no start") {
    CHECK_FALSE(scheduler_of({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}));
    CHECK_FALSE(scheduler_of({{"PMI_RANK", "x"}, {"PMI_SIZE", "4"}}));
    CHECK_FALSE(scheduler_of({{"PMI_RANK", "-1"}, {"PMI_SIZE", "4"}}));
  }
}

TEST_CASE("the order of ranks is hinted at by the nearest that knows", "[cluster]") {
  Variables all{{"JOB_COMPLETION_INDEX", "1"}, {"RANK", "2"},     {"MASTER_ADDR", "m"},
                {"VC_TASK_INDEX", "3"},        {"PMI_RANK", "4"}, {"PMI_SIZE", "9"}};
  const std::string host = "node-5";
  CHECK(hint(all, host) == "1 by JOB_COMPLETION_INDEX");
  all.erase("JOB_COMPLETION_INDEX");
  CHECK(hint(all, host) == "2 by RANK");
  SECTION("RANK of a worker, or without a master, is not a node's") {
    all.emplace(GENERATE("LOCAL_RANK", "x"), "0");
    if (all.count("LOCAL_RANK") == 0) all.erase("MASTER_ADDR");
    CHECK(hint(all, host) == "3 by VC_TASK_INDEX");
  }
  all.erase("RANK"), all.erase("VC_TASK_INDEX");
  CHECK(hint(all, host) == "4 by PMI_RANK");
  all.erase("PMI_RANK");
  CHECK(hint(all, host) == "5 by the host's name");
  CHECK(hint({}, "gpu12.cluster.local") == "12 by the host's name");
  CHECK(hint({}, "n007") == "7 by the host's name");
  for (const char* none : {"box", "", "12", "node-99999999999999999999", "node-131073"}) CHECK(hint({}, none) == "none");
  CHECK(hint({{"JOB_COMPLETION_INDEX", "x"}}) == "none");
}

TEST_CASE("a pod's name tells where the first pod is", "[cluster]") {
  CHECK(pod("t4-master-0") == "t4-master-0|23456|t4-worker-0");
  CHECK(pod("t4-worker-0") == "t4-worker-0|23456|t4-worker-1");
  CHECK(pod("t4-worker-2") == "t4-worker-0|23456|");
  const char* hosts = "127.0.0.1 localhost\n# 1 t5-node-0-1.comment\n10.1.2.3\tt5-node-0-1.t5.ns.svc.cluster.local t5-node-0-1\n";
  CHECK(pod("t5-node-0-1", hosts) == "t5-node-0-0.t5|0|");
  CHECK(pod("t5-node-0-0", "10.1.2.3 t5-node-0-0.t5 t5-node-0-0") == "t5-node-0-0.t5|0|t5-node-0-1.t5");
  CHECK(pod("t5-node-0-1", "") == "none");                           // without a domain there is no name to ask for
  CHECK(pod("web-1", "10.1.2.3 web-1.web.ns.svc web-1") == "none");  // of a StatefulSet: any program of its own
  CHECK(pod("t4-worker-2", "", false) == "none");
  CHECK(pod("t4-master-1") == "none");
  CHECK(pod("") == "none");
}

TEST_CASE("GPUs are counted as CUDA and the device plugin list them", "[devices]") {
  const auto count = [](const Variables& environment, DeviceFiles files = {}) {
    const Count c = count_gpus(environment, [&] { return files; });
    return fmt::format("{} by {}", c.number, c.from);
  };
  CHECK(count({}, {.nodes = 8, .driver = 8}) == "8 by /dev/nvidia*");
  CHECK(count({}, {.nodes = 0, .driver = 4}) == "4 by /proc/driver/nvidia/gpus");
  CHECK(count({{"CUDA_VISIBLE_DEVICES", " 4, 5"}}, {.nodes = 8}) == "2 by CUDA_VISIBLE_DEVICES");
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "GPU-a,MIG-b,2,-1,3"}}, {.nodes = 8}) == "3 by CUDA_VISIBLE_DEVICES");
  CHECK(count({{"CUDA_VISIBLE_DEVICES", ""}}, {.nodes = 8}) == "0 by CUDA_VISIBLE_DEVICES");
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}, {.nodes = 8}) == "0 by CUDA_VISIBLE_DEVICES");
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "0,"}}, {.nodes = 8}) == "1 by CUDA_VISIBLE_DEVICES");
  // A privileged container sees the devices of all.
  CHECK(count({{"NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d"}}, {.nodes = 8}) == "4 by NVIDIA_VISIBLE_DEVICES");
  for (const char* says_nothing : {"all", "void", ""})
    CHECK(count({{"NVIDIA_VISIBLE_DEVICES", says_nothing}}, {.nodes = 8}) == "8 by /dev/nvidia*");
  CHECK(count({{"NVIDIA_VISIBLE_DEVICES", "none"}}, {.nodes = 8}) == "0 by NVIDIA_VISIBLE_DEVICES");
}

TEST_CASE("CPUs are what the mask and the control group's quota leave", "[devices]") {
  std::map<std::string, std::string> files;
  const auto quota = [&] {
    return cpu_quota([&](const std::string& path) { return files.count(path) ? std::optional{files[path]} : std::nullopt; });
  };
  CHECK_FALSE(quota());
  SECTION("version 2: the least of a group and those above it") {
    files = {{"/proc/self/cgroup", "0::/a/b\n"}, {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}};
    CHECK_FALSE(quota());
    files.emplace("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    CHECK(quota() == 3.5);
    files.emplace("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    CHECK(quota() == 0.5);
  }
  SECTION("version 2 in a container, which sees itself as the root") {
    files = {{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}};
    CHECK(quota() == 2.0);
  }
  SECTION("version 1") {
    files = {{"/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/kubepods/x\n0::/\n"},
             {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
             {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}};
    CHECK_FALSE(quota());
    files.insert_or_assign("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", std::string{"400000\n"});
    CHECK(quota() == 4.0);
  }
  SECTION("nonsense is no limit") {
    files = {{"/proc/self/cgroup", "0::/../..\nnone\n"}, {"/sys/fs/cgroup/cpu.max", GENERATE("", "1", "-1 -1", "x y", "0 0", "1 0")}};
    CHECK_FALSE(quota());
  }
  CHECK(count_cpus(8, 3.5).number == 3);
  CHECK(count_cpus(8, 0.5).number == 1);
  CHECK(count_cpus(8, 64.0).number == 8);
  CHECK(count_cpus(8, std::nullopt).number == 8);
  CHECK(count_cpus(0, 1e300).number == 1);
}
