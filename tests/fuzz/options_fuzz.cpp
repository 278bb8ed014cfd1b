// Any words and any variables give options within their bounds, or say what is wrong; nothing crashes.
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "launcher/commands/plan.hpp"
#include "launcher/options/devices.hpp"
#include "launcher/options/options.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;
using namespace elrun::launcher;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> words(1);
  Variables environment;
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') words.emplace_back();
    else words.back() += static_cast<char>(data[i]);
  }
  for (std::size_t i = 0; i < words.size();) {
    const auto equals = words[i].find('=');
    if (!words[i].empty() && words[i][0] >= 'A' && words[i][0] <= 'Z' && equals != std::string::npos) {
      environment[words[i].substr(0, equals)] = words[i].substr(equals + 1);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  // What else is known of a machine is as hostile: here it is the last word.
  const std::string last = words.empty() ? "" : words.back();
  const auto command =
      parse_command(words, environment,
                    {.gpus = [&] { return count_gpus(environment, [] { return DeviceFiles{.nodes = 2}; }); },
                     .cpus = [&] { return count_cpus(3, cpu_quota([&](const std::string&) { return std::optional{last}; })); },
                     .host_name = [&] { return last; },
                     .read_file = [&](const std::string&) { return std::optional{last}; },
                     .resolves = [](const std::string& name) { return name.size() % 2 == 0; }});
  if (const auto* o = std::get_if<LaunchOptions>(&command)) {
    ELRUN_ASSERT(o->round.nodes_min >= 1 && o->round.nodes_min <= o->round.nodes_max && o->round.nodes_max <= nodes_limit);
    ELRUN_ASSERT(o->workers <= workers_per_node_limit && (o->workers > 0 || o->round.nodes_max > 1));
    ELRUN_ASSERT(o->timeouts.consistent());
    ELRUN_ASSERT(o->endpoint.has_value() || !o->etcd.empty() || o->round.nodes_max == 1);
    ELRUN_ASSERT(o->etcd.size() <= etcd_servers_max && (o->etcd.empty() || !o->endpoint));
    for (const Endpoint& server : o->etcd) ELRUN_ASSERT(!server.host.empty() && server.port != 0);
    ELRUN_ASSERT(o->topology.size() <= topology_max);
    ELRUN_ASSERT(!o->endpoint || (!o->endpoint->host.empty() && o->endpoint->port != 0));
    ELRUN_ASSERT(!o->program.name.empty());
    for (const StreamsByRank* streams : {&o->redirects, &o->tee})
      for (const auto& [rank, which] : streams->ranks) ELRUN_ASSERT(rank < workers_per_node_limit && streams->of(LocalRank{rank}) == which);
    ELRUN_ASSERT(!o->local_ranks_filter || !o->local_ranks_filter->empty());
    for (const auto* filters : {&o->duplicate_stdout_filters, &o->duplicate_stderr_filters})
      for (const std::string& filter : *filters) ELRUN_ASSERT(!filter.empty());
    for (const int number : o->signals_to_handle) ELRUN_ASSERT(number > 0 && number < 32 && number != SIGKILL && number != SIGSTOP);
    ELRUN_ASSERT(o->hang_timeout >= Duration{0});
    ELRUN_ASSERT(o->node_rank >= -1 && o->node_rank < static_cast<std::int32_t>(nodes_limit));
    ELRUN_ASSERT(plan_text(*o, environment, Command{"/p", {"p"}}).starts_with('{'));
  } else if (const auto* usage = std::get_if<Usage>(&command)) {
    ELRUN_ASSERT(!usage->text.empty());
  }
  return 0;
}

std::vector<std::string> fuzz_examples() {
  static constexpr const char* pieces[] = {"--nnodes",
                                           "--nproc_per_node",
                                           "--nproc",
                                           "--rdzv_endpoint",
                                           "--rdzv_conf",
                                           "--rdzv-id",
                                           "--max-restarts",
                                           "--shutdown_timeout",
                                           "--standalone",
                                           "-m",
                                           "--no-python",
                                           "-r",
                                           "-t",
                                           "--",
                                           "store",
                                           "--port",
                                           "=",
                                           ":",
                                           ",",
                                           "\n",
                                           "\n",
                                           "\n",
                                           "\n",
                                           "1",
                                           "2",
                                           "1:2",
                                           "gpu",
                                           "auto",
                                           "h:29400",
                                           "[::1]:1",
                                           "join_timeout=3",
                                           "keep_alive_interval=1e300",
                                           "-1",
                                           "99999999999999999999",
                                           "nan",
                                           "inf",
                                           "PET_NNODES=2",
                                           "PET_MODULE=",
                                           "MASTER_ADDR=m",
                                           "MASTER_PORT=x",
                                           "KUBERNETES_SERVICE_HOST=1",
                                           "JOB_COMPLETION_INDEX=1",
                                           "RANK=3",
                                           "SLURM_STEP_NUM_TASKS=2",
                                           "SLURM_PROCID=1",
                                           "SLURM_STEP_NODELIST=n[1-2],m",
                                           "PMI_RANK=0",
                                           "PMI_SIZE=2",
                                           "MPI_LOCALNRANKS=2",
                                           "CUDA_VISIBLE_DEVICES=0,-1",
                                           "NVIDIA_VISIBLE_DEVICES=GPU-a",
                                           "j-worker-1",
                                           "t-node-0-1",
                                           "0::/a\n",
                                           "POD_IP=::1",
                                           "auto",
                                           "--master_addr",
                                           "--master_port",
                                           "--node_rank",
                                           "s.py",
                                           "--rdzv_backend",
                                           "etcd",
                                           "etcd-v2",
                                           "c10d",
                                           "--topology",
                                           "zone/rack",
                                           "is_host=0",
                                           "token=x",
                                           "cacert=/ca",
                                           "lease_ttl=5",
                                           "--checkpoint_root",
                                           "--local_addr",
                                           "--redirects",
                                           "--tee=",
                                           "0:1",
                                           "10:3",
                                           "--local-ranks-filter",
                                           "--log",
                                           "--duplicate-stdout-filters",
                                           ",,",
                                           "a,b",
                                           "--signals-to-handle",
                                           "SIGUSR1",
                                           "SIGKILL",
                                           "--hang-timeout",
                                           "--run-path",
                                           "--numa-binding",
                                           "exclusive",
                                           "--exit-codes",
                                           "torchrun",
                                           "--print-completion",
                                           "bash",
                                           "--local-rank-argument",
                                           "x.py",
                                           " ",
                                           "\t",
                                           "$"};
  std::vector<std::string> examples{"--nnodes\n1:2\n--rdzv_endpoint\nh:29400\n--rdzv_conf\njoin_timeout=3\ns.py"};
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng{seed};
    std::string& words = examples.emplace_back();
    for (auto n = rng.below(24); n > 0; --n) {
      words += pieces[rng.below(std::size(pieces))];
      if (rng.chance(0.6)) words += "\n";
    }
  }
  return examples;
}
