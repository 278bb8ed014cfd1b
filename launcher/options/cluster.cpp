#include "launcher/options/cluster.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::uint16_t operator_port = 23456;         // of PyTorchJob, unless its manifest says otherwise
constexpr std::uint16_t scheduled_port_first = 20000;  // below the ports that Linux gives to connections, 32768 and up
constexpr std::uint64_t scheduled_ports = 12000;

std::string text_of(const Variables& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string{} : found->second;
}

std::optional<std::uint32_t> number_of(const Variables& environment, std::string_view name) {
  const auto number = to_integer(text_of(environment, name));
  if (!number || *number < 0 || *number >= nodes_limit) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

// The same on all nodes of a job, and seldom that of another job on the same machine.
std::uint16_t port_for(std::string_view job) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::uint16_t>(scheduled_port_first + hash % scheduled_ports);
}

std::optional<Scheduler> slurm(const Variables& environment) {
  // Only srun sets these; in a batch script, which runs once, SLURM_NNODES would mislead.
  const auto tasks = number_of(environment, "SLURM_STEP_NUM_TASKS"), rank = number_of(environment, "SLURM_PROCID");
  if (!tasks || !rank || *rank >= *tasks) return std::nullopt;
  Scheduler s{.name = "Slurm", .tasks = *tasks, .rank = *rank, .rank_from = "SLURM_PROCID"};
  if (const std::string job = text_of(environment, "SLURM_JOB_ID"); !job.empty())
    s.run = fmt::format("slurm-{}.{}", job, text_of(environment, "SLURM_STEP_ID"));
  std::string nodes = text_of(environment, "SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = text_of(environment, "SLURM_JOB_NODELIST");
  if (const std::string host = first_host(nodes); host_is_plain(host)) s.endpoint = Endpoint{host, port_for(s.run)};
  return s;
}

struct MpiNames {
  const char *program, *rank, *size, *local_size, *job;
};
constexpr std::array mpi_names{
    MpiNames{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    MpiNames{"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_PORT"}};

std::optional<Scheduler> mpi(const Variables& environment, const MpiNames& names) {
  const auto tasks = number_of(environment, names.size), rank = number_of(environment, names.rank);
  if (!tasks || !rank || *rank >= *tasks) return std::nullopt;
  Scheduler s{.name = names.program, .tasks = *tasks, .rank = *rank, .rank_from = names.rank};
  if (const std::string job = text_of(environment, names.job); !job.empty()) s.run = fmt::format("{}-{:04x}", names.program, port_for(job));
  // MPI does not tell its processes where rank 0 is, unless all are on one machine.
  if (number_of(environment, names.local_size) == s.tasks) s.endpoint = Endpoint{"127.0.0.1", port_for(s.run)};
  return s;
}

// "t5-node-0" and 3 of "t5-node-0-3".
struct Numbered {
  std::string_view stem;
  std::optional<std::uint32_t> number;
};
Numbered numbered(std::string_view name) {
  const auto digits = name.find_last_not_of("0123456789");
  if (digits == std::string_view::npos || digits + 1 == name.size()) return {name, std::nullopt};
  const auto number = to_integer(name.substr(digits + 1));
  if (!number || *number >= nodes_limit) return {name, std::nullopt};
  return {name.substr(0, digits + 1), static_cast<std::uint32_t>(*number)};
}

}  // namespace

std::string first_host(std::string_view nodelist) {
  std::string host;
  for (std::size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      host += nodelist[i];
      continue;
    }
    const auto close = nodelist.find(']', i);
    if (close == std::string_view::npos) return {};
    const std::string_view ranges = nodelist.substr(i + 1, close - i - 1);
    host += ranges.substr(0, ranges.find_first_of(",-"));
    i = close;
  }
  return host;
}

std::optional<Scheduler> scheduler_of(const Variables& environment) {
  if (auto found = slurm(environment)) return found;
  for (const MpiNames& names : mpi_names)
    if (auto found = mpi(environment, names)) return found;
  return std::nullopt;
}

std::optional<RankHint> rank_hint(const Variables& environment, const std::optional<Scheduler>& scheduler, std::string_view host_name) {
  const auto by = [&](const char* name) -> std::optional<RankHint> {
    if (const auto rank = number_of(environment, name)) return RankHint{*rank, name};
    return std::nullopt;
  };
  if (auto hint = by("JOB_COMPLETION_INDEX")) return hint;
  // An operator calls the pod's number RANK. Beside LOCAL_RANK it would be that of a worker.
  if (environment.count("MASTER_ADDR") != 0 && environment.count("LOCAL_RANK") == 0)
    if (auto hint = by("RANK")) return hint;
  for (const char* name : {"VC_TASK_INDEX", "VK_TASK_INDEX"})
    if (auto hint = by(name)) return hint;
  if (scheduler) return RankHint{scheduler->rank, scheduler->rank_from};
  if (const auto number = numbered(host_name.substr(0, host_name.find('.'))).number) return RankHint{*number, std::string{by_host_name}};
  return std::nullopt;
}

std::string name_with_domain(std::string_view host_name, std::string_view hosts_file) {
  const std::string beginning = std::string{host_name} + ".";
  while (!hosts_file.empty()) {
    std::string_view line = hosts_file.substr(0, hosts_file.find('\n'));
    hosts_file.remove_prefix(std::min(line.size() + 1, hosts_file.size()));
    line = line.substr(0, line.find('#'));
    while (!line.empty()) {
      const std::string_view word = line.substr(0, line.find_first_of(" \t"));
      line.remove_prefix(std::min(word.size() + 1, line.size()));
      if (word.size() > beginning.size() && word.starts_with(beginning) && host_is_plain(word)) return std::string{word};
    }
  }
  return {};
}

std::optional<PodName> pod_name(const Variables& environment, std::string_view host_name, std::string_view hosts_file) {
  if (environment.count("KUBERNETES_SERVICE_HOST") == 0) return std::nullopt;
  const auto [stem, index] = numbered(host_name);
  if (!index || !stem.ends_with('-') || !host_is_plain(host_name)) return std::nullopt;
  if (stem.ends_with("-master-") && *index == 0)
    return PodName{std::string{host_name}, operator_port, fmt::format("{}worker-0", stem.substr(0, stem.size() - 7))};
  if (stem.ends_with("-worker-")) return PodName{fmt::format("{}0", stem), operator_port, *index == 0 ? fmt::format("{}1", stem) : ""};
  const std::string full = name_with_domain(host_name, hosts_file);
  if (full.empty() || !numbered(stem.substr(0, stem.size() - 1)).number) return std::nullopt;  // X-0-N: a JobSet's
  const std::string_view domain = std::string_view{full}.substr(host_name.size() + 1);
  const std::string_view service = domain.substr(0, domain.find('.'));
  return PodName{fmt::format("{}0.{}", stem, service), std::nullopt, *index == 0 ? fmt::format("{}1.{}", stem, service) : ""};
}

}  // namespace elrun::inline v0::launcher
