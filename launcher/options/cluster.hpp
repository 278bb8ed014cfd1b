#pragma once
/// \file Cluster: what the environment says about the nodes of a job when the command line does not. Every answer comes
/// with the name of what it was taken from.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// A scheduler that starts one elrun for each of its tasks: srun of Slurm, mpirun of Open MPI, mpiexec of MPICH.
struct Scheduler {
  std::string name;
  std::uint32_t tasks = 1, rank = 0;
  std::string rank_from;             ///< The variable that holds it.
  std::optional<Endpoint> endpoint;  ///< Where task 0 is, at a port that follows from the job's number.
  std::string run;                   ///< Differs from that of other jobs; empty: not known
};
[[nodiscard]] std::optional<Scheduler> scheduler_of(const Variables& environment);

/// The first name of Slurm's `node[01-04,07],other`; empty when it cannot be read.
[[nodiscard]] std::string first_host(std::string_view nodelist);

/// Where a new node comes in the order of ranks; in a fixed world each node, each time. It never identifies a node: two may have the same.
struct RankHint {
  std::uint32_t rank = 0;
  std::string source;
};
inline constexpr std::string_view leads_nowhere =
    "torchrun's default, which leads nowhere else";                  ///< Source of such an endpoint: this machine.
inline constexpr std::string_view by_host_name = "the host's name";  ///< Such a source: the weakest.
/// JOB_COMPLETION_INDEX, RANK beside MASTER_ADDR, VC_TASK_INDEX, a scheduler's rank, the number that the host's name ends with.
[[nodiscard]] std::optional<RankHint> rank_hint(const Variables& environment, const std::optional<Scheduler>& scheduler,
                                                std::string_view host_name);

/// What the name of a pod says about the other pods of its job.
struct PodName {
  std::string first;                  ///< The pod where the nodes can meet.
  std::optional<std::uint16_t> port;  ///< There, if its operator fixes one.
  std::string second;                 ///< The second pod, if this is the first; else empty
};
/// Of PyTorchJob (X-master-0, X-worker-N) and JobSet (X-0-N with its domain in /etc/hosts); none outside Kubernetes.
[[nodiscard]] std::optional<PodName> pod_name(const Variables& environment, std::string_view host_name, std::string_view hosts_file);

/// The name in /etc/hosts that begins with this host's and has a domain; empty when there is none.
[[nodiscard]] std::string name_with_domain(std::string_view host_name, std::string_view hosts_file);

}  // namespace elrun::inline v0::launcher
