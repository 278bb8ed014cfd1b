// How many nodes and workers, from the command line or from what started this.
#include <fmt/format.h>

#include "launcher/options/cluster.hpp"
#include "launcher/options/option_parser.hpp"
#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {

void OptionParser::parse_nodes() {
  out_.sources.nodes = source_of("nnodes");
  if (!given_.is_given("nnodes") && !given_.flag("standalone")) return find_nodes();
  const std::string& text = given_.get("nnodes").text;
  const auto colon = text.find(':');
  const auto least = to_integer(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : to_integer(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < 1 || *least > nodes_limit || *most > nodes_limit)
    return problems_.value(fmt::format("{}: must be N or MIN:MAX with numbers from 1 to {}", given_.shown("nnodes"), nodes_limit));
  if (*least > *most)
    return problems_.value(
        fmt::format("{}: the least number of nodes is above the greatest; did you mean {}:{}?", given_.shown("nnodes"), *most, *least));
  out_.round.nodes_min = static_cast<std::uint32_t>(*least);
  out_.round.nodes_max = static_cast<std::uint32_t>(*most);
  if (given_.flag("standalone") && *least == 1 && *most > 1) {  // torchrun takes it, and one node is within the range
    out_.round.nodes_max = 1;
    out_.notes.push_back(fmt::format("--standalone is one node: {} is taken as 1", given_.shown("nnodes")));
  }
}

// One node, unless its surroundings know better. Alone in each pod of a job, all would train, and write, the same.
void OptionParser::find_nodes() {
  if (scheduler_ && scheduler_->tasks > 1) {
    out_.round.nodes_min = out_.round.nodes_max = scheduler_->tasks;
    out_.sources.nodes = scheduler_->name;
    return out_.notes.push_back(
        fmt::format("no --nnodes: {} started {} tasks, and each is taken as a node; give --nnodes=1 for a job on "
                    "this one alone",
                    scheduler_->name, scheduler_->tasks));
  }
  if (given_.variable("OMPI_MCA_orte_default_hostfile") && !scheduler_)
    return problems_.value(
        "this is where an MPI job is started from, not one of its nodes: start elrun by `mpirun --bind-to none -npernode 1`, "
        "or give --nnodes=1 for a job in this container alone");
  std::string why;
  if (const auto index = to_integer(given_.variable("JOB_COMPLETION_INDEX").value_or("0")); index && *index > 0)
    why = fmt::format("JOB_COMPLETION_INDEX={}", *index);
  else if (const auto& name = pod(); name && name->second.empty()) why = fmt::format("this pod is called {}", machine_.host_name());
  else if (name && machine_.resolves(name->second)) why = fmt::format("there is {}", name->second);
  if (!why.empty())
    problems_.contradiction(
        fmt::format("--nnodes is not given, and {}: this looks like one of several nodes; give --nnodes N, or "
                    "--nnodes=1 if it is a job of its own",
                    why));
}

void OptionParser::parse_workers() {
  const std::string_view text = trimmed(given_.get("nproc_per_node").text);
  const bool alone = out_.round.nodes_max == 1;
  std::int64_t number = 0;
  out_.sources.workers = source_of("nproc_per_node");
  const auto take = [&](const Count& count) {
    number = count.number;
    out_.sources.workers += ", by " + count.from;
  };
  if (text == "gpu" || text == "auto") {
    const Count gpus = machine_.gpus();
    if (gpus.number == 0 && text == "auto") take(machine_.cpus());
    else take(gpus);
    if (number == 0 && alone)
      return problems_.value(
          fmt::format("{}: this machine shows no GPU ({}); use a number, cpu or auto", given_.shown("nproc_per_node"), gpus.from));
    if (number == 0) out_.notes.push_back("no GPU here: this node coordinates and runs no worker");
  } else if (text == "cpu") {
    take(machine_.cpus());
  } else if (const auto given = to_integer(text); given && *given >= 0) {
    number = *given;
    if (number == 0 && alone)
      return problems_.value(
          fmt::format("{}: a single node without workers has nothing to do; give at least 1 (0 is for the "
                      "coordinating node of --nnodes above 1)",
                      given_.shown("nproc_per_node")));
  } else if (text == "xpu") {
    return problems_.value(fmt::format("{}: elrun counts devices of NVIDIA only; give their number", given_.shown("nproc_per_node")));
  } else {
    return problems_.value(fmt::format("{}: must be a number, cpu, gpu or auto", given_.shown("nproc_per_node")));
  }
  if (number > workers_per_node_limit)
    return problems_.value(fmt::format("{}: {} workers are more than the {} that one node may have", given_.shown("nproc_per_node"), number,
                                       workers_per_node_limit));
  out_.workers = static_cast<std::uint32_t>(number);
  if (number > 1 && !given_.variable("OMP_NUM_THREADS"))
    out_.notes.push_back(
        fmt::format("OMP_NUM_THREADS is 1 for each of the {} workers here, so that they do not crowd each other; set it "
                    "to what is best for the program",
                    number));
  out_.virtual_local_rank = given_.flag("virtual_local_rank");
  const auto of_cuda = given_.variable("CUDA_VISIBLE_DEVICES"), of_container = given_.variable("NVIDIA_VISIBLE_DEVICES");
  const auto devices = named_devices(of_cuda, of_container);
  const std::string list =
      fmt::format("{}={}", of_cuda ? "CUDA_VISIBLE_DEVICES" : "NVIDIA_VISIBLE_DEVICES", of_cuda ? *of_cuda : of_container.value_or(""));
  if (out_.virtual_local_rank && devices && devices->size() < out_.workers)
    problems_.contradiction(
        fmt::format("--virtual_local_rank gives each worker a device of its own, but {} names {} "
                    "for {} workers; name more, or start fewer with --nproc_per_node",
                    list, devices->size(), out_.workers));
  if (!out_.virtual_local_rank && out_.workers > 1 && devices && !devices->empty() && is_mig_name(devices->front()))
    out_.notes.push_back(fmt::format(
        "{} names MIG instances, and CUDA shows a process only the first of them: --virtual_local_rank gives each worker one of its own",
        list));
}

bool OptionParser::in_kubernetes() const { return given_.variable("KUBERNETES_SERVICE_HOST").has_value(); }

const std::optional<PodName>& OptionParser::pod() {
  if (!pod_)
    pod_ = in_kubernetes() ? pod_name(environment_, machine_.host_name(), machine_.read_file("/etc/hosts").value_or("")) : std::nullopt;
  return *pod_;
}

// "--nnodes", "PET_NNODES" or "default".
std::string OptionParser::source_of(std::string_view option) const {
  const std::string& source = given_.get(option).source;
  return source.empty() ? "default" : source;
}

}  // namespace elrun::inline v0::launcher
