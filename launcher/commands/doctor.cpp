#include "launcher/commands/doctor.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/options/host.hpp"
#include "launcher/process/descriptors.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Findings = std::vector<Finding>;

constexpr Duration name_slow = 1s;
constexpr std::int64_t wall_seconds_least = 1'704'067'200;  // 2024; a clock that shows an earlier day was never set
constexpr std::uint64_t mebi = 1 << 20, gibi = 1 << 30;
constexpr std::uint64_t shared_memory_advised = gibi, shared_memory_least = mebi;
constexpr std::uint64_t descriptors_of_agent = 128, descriptors_per_worker = 8, descriptors_advised = 4096;
constexpr std::uint64_t processes_per_worker = 64, locked_memory_advised = gibi, memory_per_worker = 512 * mebi;

Finding well(std::string subject, std::string what) { return {Finding::Grade::ok, std::move(subject), std::move(what), {}}; }
Finding warn(std::string subject, std::string what, std::string remedy) {
  return {Finding::Grade::warn, std::move(subject), std::move(what), std::move(remedy)};
}
Finding fail(std::string subject, std::string what, std::string remedy) {
  return {Finding::Grade::fail, std::move(subject), std::move(what), std::move(remedy)};
}

std::string size_text(std::uint64_t bytes) {
  return bytes < gibi ? fmt::format("{} MiB", bytes / mebi)
                      : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(gibi));
}

std::string limit_text(const Limit& limit) { return limit ? std::to_string(*limit) : "unlimited"; }

std::string text_of(const Endpoint& e) { return fmt::format("{}:{}", e.host, e.port); }

// --- names and meeting --------------------------------------------------------------------------------------------

Finding own_name(const NameFact& name) {
  if (name.addresses.empty())
    return warn(
        "name",
        fmt::format(
            "this machine's host name does not resolve: {} (after {}); elrun does not need it, gloo and other libraries in the workers may",
            name.problem, for_people(name.took)),
        "add it to /etc/hosts; or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface, and give --local_addr");
  const std::string leads = fmt::format("{} resolves to {} ({})", name.name, fmt::join(name.addresses, ", "), for_people(name.took));
  if (name.took >= name_slow)
    return warn("name", leads + ": each look-up by a worker takes that long",
                "check /etc/resolv.conf for a server that does not answer, or for search domains that are tried first");
  return well("name", leads);
}

EndpointAnswer best_of(const std::vector<DialFact>& dials) {
  const auto best = std::min_element(dials.begin(), dials.end(), [](const DialFact& a, const DialFact& b) { return a.answer < b.answer; });
  return best == dials.end() ? EndpointAnswer::silence : best->answer;
}

Finding other_program_at(const std::string& where) {
  return fail("endpoint",
              fmt::format("a program that is not elrun's rendezvous listens at {} (torchrun's own store, or another program)", where),
              "give --rdzv_endpoint another port, or end the program that listens there");
}

Finding endpoint_elsewhere(const LaunchOptions& options, const ServiceFact& service) {
  const std::string where = fmt::format("{} ({})", text_of(service.endpoint), fmt::join(service.name.addresses, ", "));
  switch (best_of(service.dials)) {
    case EndpointAnswer::rendezvous: return well("endpoint", fmt::format("{} answers as elrun's rendezvous does", where));
    case EndpointAnswer::unchecked:
      return well("endpoint", fmt::format("a program listens at {}; because of TLS its protocol was not checked", where));
    case EndpointAnswer::other_program: return other_program_at(where);
    case EndpointAnswer::nothing:
      return warn("endpoint",
                  fmt::format("nothing listens at {} now; this node would retry for {} at most", where, for_people(options.timeouts.join)),
                  "fine if the node at that address starts later; otherwise start the agent there, or `elrun store`");
    case EndpointAnswer::silence: break;
  }
  return fail("endpoint", fmt::format("{} does not answer: packets are lost on the way, or the machine is down", where),
              "check whether a firewall or a NetworkPolicy closes the port, and whether the address is still right");
}

Finding endpoint_here(const ServiceFact& service, const HostPlace& place, const std::string& port_problem) {
  const std::string where = text_of(service.endpoint);
  if (port_problem.empty())
    return well("endpoint", fmt::format("{} is this machine; this node would serve the rendezvous at {}:{}", where, place.listen,
                                        service.endpoint.port));
  switch (best_of(service.dials)) {
    case EndpointAnswer::rendezvous:
    case EndpointAnswer::unchecked:
      return well("endpoint", fmt::format("{} is this machine, and a server answers there already; this node would join it", where));
    case EndpointAnswer::other_program: return other_program_at(where);
    case EndpointAnswer::nothing:
    case EndpointAnswer::silence: break;
  }
  return fail("endpoint", fmt::format("{} is this machine, but the port cannot be opened: {}", where, port_problem),
              "give --rdzv_endpoint another port");
}

// What this machine would be as the coordinator's host; nothing when that is elsewhere.
std::optional<HostPlace> place_here(const LaunchOptions& options, const DoctorFacts& facts) {
  if (!facts.endpoint) return std::nullopt;
  const ServiceFact& service = *facts.endpoint;
  return host_place(service.endpoint, options.host_rule, {facts.own_name.name, facts.own_addresses, service.name.addresses});
}

Findings endpoint(const LaunchOptions& options, const DoctorFacts& facts) {
  if (!facts.endpoint) return options.etcd.empty() ? Findings{well("endpoint", "a single node: no rendezvous is needed")} : Findings{};
  const ServiceFact& service = *facts.endpoint;
  Findings all;
  if (service.name.took >= name_slow)
    all.push_back(warn("endpoint", fmt::format("the look-up of {} took {}", service.endpoint.host, for_people(service.name.took)),
                       "check /etc/resolv.conf; a dot at the end of the name skips the search domains"));
  if (service.name.addresses.size() > 1)
    all.push_back(warn("endpoint",
                       fmt::format("{} resolves to {} addresses; nodes may connect to different ones", service.endpoint.host,
                                   service.name.addresses.size()),
                       "give the name of a single pod or machine, not of a whole service"));
  const auto place = place_here(options, facts);
  if (place) all.push_back(endpoint_here(service, *place, facts.endpoint_port_problem));
  else if (service.name.addresses.empty())
    all.push_back(fail(
        "endpoint", service.name.problem,
        fmt::format(
            "check the spelling, and whether the name is published (a headless service with publishNotReadyAddresses); a node would wait {} for it",
            for_people(options.timeouts.join))));
  else all.push_back(endpoint_elsewhere(options, service));
  return all;
}

Findings etcd(const std::vector<ServiceFact>& servers) {
  if (servers.empty()) return {};
  std::vector<std::string> there, away;
  for (const ServiceFact& server : servers) {
    const EndpointAnswer answer = best_of(server.dials);
    (answer == EndpointAnswer::rendezvous || answer == EndpointAnswer::unchecked ? there : away).push_back(text_of(server.endpoint));
  }
  if (there.empty())
    return {fail("etcd", fmt::format("no etcd server answers: {}", fmt::join(away, ", ")),
                 "check --rdzv_endpoint and firewalls; the port must be etcd's client port (2379)")};
  if (!away.empty())
    return {warn("etcd", fmt::format("{} answers; {} does not", fmt::join(there, ", "), fmt::join(away, ", ")),
                 "start or repair those servers: without a majority of them no coordinator can be elected")};
  return {well("etcd", fmt::format("{} answers", fmt::join(there, ", ")))};
}

Findings access(const DoctorFacts& facts) {
  Findings all;
  for (const std::string& problem : facts.access_problems)
    all.push_back(fail("access", problem, "correct the token, cacert, cert or key that is named; elrun would end with 78"));
  for (const std::string& warning : facts.access_warnings)
    all.push_back(warn("access", warning, "the job starts all the same, but change this"));
  return all;
}

Findings health_port(const LaunchOptions& options, const DoctorFacts& facts) {
  if (!options.side.health) return {};
  const std::string port = std::to_string(options.side.health->port);
  // The agent opens it before it serves the rendezvous.
  if (options.side.health->port != 0 && place_here(options, facts) && facts.endpoint->endpoint.port == options.side.health->port)
    return {fail("health",
                 fmt::format("port {} is also that of the endpoint, which leads to this machine: this node could not serve it", port),
                 "give --health_port another port, or 0 for any")};
  if (facts.health_port_problem.empty()) return {well("health", fmt::format("port {} can be opened", port))};
  Finding finding = fail("health", fmt::format("port {} cannot be opened: {}", port, facts.health_port_problem),
                         "give --health_port another port, or 0 for any");
  if (!options.side.health->is_needed) finding.grade = Finding::Grade::warn;
  return {finding};
}

Findings master_port(const LaunchOptions& options, const DoctorFacts& facts) {
  if (!options.master_port || options.node_rank > 0) return {};  // rank 0 is elsewhere
  if (facts.master_port_problem.empty())
    return {well("master", fmt::format("the worker of rank 0 can listen at port {}", *options.master_port))};
  return {fail("master", fmt::format("the worker of rank 0 cannot listen at port {}: {}", *options.master_port, facts.master_port_problem),
               "give --master_port another port, or 0 for any")};
}

// --- the machine --------------------------------------------------------------------------------------------------

Findings clocks(const LaunchOptions& options, const DoctorFacts& facts) {
  Findings all;
  if (!facts.monotonic_clock_rises)
    all.push_back(fail("clock", "the monotonic clock went backwards: every deadline depends on it",
                       "this is a fault of the machine or its hypervisor; use another one"));
  if (facts.wall_seconds < wall_seconds_least) {
    const bool needs_day = options.access.has_tls();
    all.push_back({needs_day ? Finding::Grade::fail : Finding::Grade::warn, "clock",
                   fmt::format("the system clock shows {} seconds after 1970: it was never set{}", facts.wall_seconds,
                               needs_day ? ", so no certificate is valid" : ""),
                   "set the clock, or run NTP"});
  } else if (options.round.nodes_max > 1 && facts.wall_clock_is_synchronised == false) {
    all.push_back(warn("clock", "the kernel reports that the time of day is not synchronised; only the times in logs depend on it",
                       "run NTP, so that the logs of several nodes can be compared"));
  }
  if (all.empty()) all.push_back(well("clock", "the monotonic clock advances, and the time of day is set"));
  return all;
}

Finding kernel(const std::string& problem) {
  if (problem.empty()) return well("kernel", "it tells elrun when a worker ends");
  return fail("kernel", problem + "; the start would end with 70",
              "use a machine with Linux 5.3 or later; in a sandbox or container allow the call in its seccomp profile");
}

Finding threads(const std::string& problem) {
  if (problem.empty()) return well("threads", "one can be started");
  return fail("threads", problem + "; the start would end with 70",
              "raise the limit that is named; in a sandbox or container let the seccomp profile answer ENOSYS to clone3, or allow it");
}

std::vector<std::string> entries_of(std::string_view text) {
  std::vector<std::string> all;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view entry = rest.substr(0, rest.find(','));
    rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    all.emplace_back(entry);
  }
  return all;
}

// CUDA takes the entries up to the first that is no device, as -1, and hides the rest.
struct VisibleDevices {
  std::size_t count = 0;
  std::string why_no_more{};  // empty: all are taken, or all are hidden on purpose
};
VisibleDevices visible_devices(const std::string& list, std::size_t devices) {
  const auto entries = entries_of(list);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string& entry = entries[i];
    const bool is_number = !entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos;
    const bool is_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    const bool is_there = is_number ? entry.size() < 8 && std::stoul(entry) < devices : is_name && devices > 0;
    const auto here = entries.begin() + static_cast<std::ptrdiff_t>(i);
    if (is_there && std::find(entries.begin(), here, entry) != here) return {i, fmt::format("names device {} twice", entry)};
    if (is_there) continue;
    if (is_number || is_name) return {i, fmt::format("names device {}, but there are {} here (/dev/nvidia*)", entry, devices)};
    return {i, i == 0 ? "" : fmt::format("has the entry \"{}\", which is no device", entry)};
  }
  return {entries.size()};
}

Findings devices(const LaunchOptions& options, const DoctorFacts& facts) {
  Findings all;
  for (const DeviceFact& device : facts.devices)
    if (!device.problem.empty())
      all.push_back(fail("device", fmt::format("/dev/nvidia{} cannot be opened: {}", device.number, device.problem),
                         "run the container with the device allowed (--gpus, nvidia.com/gpu), or as a user who may use it"));
  std::size_t usable = facts.devices.size();
  if (facts.visible_devices) {
    const VisibleDevices visible = visible_devices(*facts.visible_devices, facts.devices.size());
    usable = visible.count;
    if (!visible.why_no_more.empty())
      all.push_back(fail(
          "device",
          fmt::format("CUDA_VISIBLE_DEVICES={} {}: CUDA ignores this entry and all after it", *facts.visible_devices, visible.why_no_more),
          "name devices that exist, each once, or unset the variable"));
  }
  if (usable == 0 && all.empty() && !facts.devices.empty())
    all.push_back(well("device", fmt::format("CUDA_VISIBLE_DEVICES={} hides the {} GPUs: workers compute on the CPU",
                                             facts.visible_devices.value_or(""), facts.devices.size())));
  if (usable == 0) {
    if (all.empty()) all.push_back(well("device", "no GPU was found: workers compute on the CPU"));
  } else if (options.workers > usable) {
    all.push_back(warn("device", fmt::format("{} workers share {} devices", options.workers, usable),
                       "NCCL refuses two ranks on one device; give --nproc_per_node gpu"));
  } else if (all.empty()) {
    all.push_back(well("device", fmt::format("{} GPUs for {} workers", usable, options.workers)));
  }
  return all;
}

Finding shared_memory(const LaunchOptions& options, const std::optional<PathFact>& fact) {
  const std::string remedy = "docker run --shm-size=8g, or in a pod an emptyDir with medium: Memory at /dev/shm";
  if (!fact) return warn("shm", "there is no /dev/shm: NCCL and multi-process data loaders fail without it", remedy);
  const std::string sizes = fmt::format("/dev/shm has {}, {} of it free", size_text(fact->bytes), size_text(fact->bytes_free));
  if (!fact->is_fine) return fail("shm", fmt::format("/dev/shm cannot be written: {}", fact->problem), remedy);
  if (fact->bytes_free < shared_memory_least)
    return fail("shm", sizes + ": workers would be killed by SIGBUS", "remove old files there, or make it larger: " + remedy);
  if (fact->bytes_free < shared_memory_advised * std::max(1u, options.workers) / 8)
    return warn("shm", sizes + ": too little for NCCL and data loaders; a worker that finds it full is killed by SIGBUS", remedy);
  return well("shm", sizes);
}

Findings limits(const LaunchOptions& options, const DoctorFacts& facts) {
  const std::uint64_t needed = descriptors_of_agent + descriptors_per_worker * options.workers;
  const bool may_coordinate = place_here(options, facts).has_value() || (!options.etcd.empty() && options.host_rule != HostRule::never);
  const std::uint64_t needed_by_coordinator = may_coordinate ? descriptors_of_coordinator(options.round.nodes_max) : 0;
  Findings all;
  const std::string raise = "ulimit -n 65536 before the start, LimitNOFILE= in a unit, --ulimit nofile=65536 for a container";
  if (facts.descriptors_most && *facts.descriptors_most < needed)
    all.push_back(fail("limits",
                       fmt::format("at most {} file descriptors are allowed (nofile); {} workers need about {}", *facts.descriptors_most,
                                   options.workers, needed),
                       raise));
  else if (facts.descriptors_most && *facts.descriptors_most < needed_by_coordinator)
    all.push_back(
        fail("limits",
             fmt::format(
                 "at most {} file descriptors are allowed (nofile); the coordinator of {} nodes needs {}; with fewer it refuses some nodes",
                 *facts.descriptors_most, options.round.nodes_max, needed_by_coordinator),
             raise));
  else if (facts.descriptors && *facts.descriptors < descriptors_advised)
    all.push_back(warn("limits", fmt::format("workers get {} file descriptors (nofile): few for data loaders", *facts.descriptors), raise));
  const std::uint64_t processes = processes_per_worker * options.workers;
  for (const auto& [limit, name, how] : {std::tuple{facts.processes, "nproc", "ulimit -u unlimited"},
                                         std::tuple{facts.cgroup_processes, "pids of the cgroup",
                                                    "a higher podPidsLimit of the kubelet, or --pids-limit of the container"}}) {
    if (limit && *limit < options.workers + 4)
      all.push_back(
          fail("limits", fmt::format("{} processes and threads are allowed ({}): fewer than the workers need", *limit, name), how));
    else if (limit && *limit < processes)
      all.push_back(
          warn("limits",
               fmt::format("{} processes and threads are allowed ({}); {} workers with their threads and data loaders need about {}",
                           *limit, name, options.workers, processes),
               how));
  }
  if (facts.has_rdma && facts.locked_memory && *facts.locked_memory < locked_memory_advised)
    all.push_back(warn("limits",
                       fmt::format("{} of memory may be locked (memlock), and there is RDMA hardware: NCCL and UCX cannot register memory",
                                   size_text(*facts.locked_memory)),
                       "ulimit -l unlimited, LimitMEMLOCK=infinity, --ulimit memlock=-1, or CAP_IPC_LOCK"));
  if (all.empty())
    all.push_back(well("limits", fmt::format("nofile {}, nproc {}, memlock {}", limit_text(facts.descriptors), limit_text(facts.processes),
                                             limit_text(facts.locked_memory))));
  return all;
}

Findings room(const LaunchOptions& options, const DoctorFacts& facts) {
  Findings all;
  const std::string cpus = fmt::format("{} CPUs for {} workers (from {})", facts.cpus.number, options.workers, facts.cpus.from);
  if (options.workers > facts.cpus.number)
    all.push_back(warn("cpu", cpus + ": workers share CPUs and slow each other down",
                       "start fewer workers, or raise the affinity mask or the container's CPU limit"));
  else all.push_back(well("cpu", cpus));
  if (!facts.memory) return all.push_back(well("memory", "the cgroup sets no memory limit")), all;
  const std::uint64_t left = *facts.memory - std::min(*facts.memory, facts.memory_used.value_or(0));
  const std::string text =
      fmt::format("{} of {} are left in the cgroup, for {} workers", size_text(left), size_text(*facts.memory), options.workers);
  if (left < memory_per_worker * options.workers)
    all.push_back(
        warn("memory",
             text + ": a worker with PyTorch needs about half a GiB before it does anything; a worker that exceeds the limit is OOM-killed",
             "raise the memory limit; /dev/shm counts towards it"));
  else all.push_back(well("memory", text));
  return all;
}

// --- files --------------------------------------------------------------------------------------------------------

Findings program(const DoctorOptions& options, const DoctorFacts& facts) {
  if (!options.has_program) return {};
  if (facts.script && !facts.script->answers)
    return {fail("program", fmt::format("{} cannot be read: {}", options.launch.program.name, facts.script->problem),
                 "look at the file system and its server, or name a program elsewhere")};
  if (!facts.command_problem.empty())
    return {fail(
        "program", fmt::format("what starts {} cannot be looked up: {}", options.launch.program.name, facts.command_problem),
        "look at the file systems of the program, of the directories of PATH and of PYTHON_EXEC or VIRTUAL_ENV, and at their servers")};
  if (!facts.command) return {};
  if (const auto* none = std::get_if<NoCommand>(&*facts.command))
    return {fail("program", fmt::format("{}; the start would end with {}", none->why, none->exit_code),
                 "check the program's path, PATH and PYTHON_EXEC on this node")};
  Findings all{well("program", fmt::format("starts {}", std::get<Command>(*facts.command).path))};
  if (const std::string& warning = std::get<Command>(*facts.command).warning; !warning.empty())
    all.push_back(warn("program", warning, "if the script is Python, remove its first line (#!)"));
  if (facts.script && !facts.script->is_fine)
    all.push_back(fail("program", fmt::format("{} cannot be read: {}", options.launch.program.name, facts.script->problem),
                       "check its mode and owner, and the directories above it"));
  return all;
}

Findings directory(std::string subject, const std::string& path, const std::optional<PathFact>& fact, std::string remedy) {
  if (!fact) return {};
  if (fact->is_fine)
    return {well(std::move(subject),
                 fmt::format("{} can be {}, {} free", path, fact->is_missing ? "made" : "written", size_text(fact->bytes_free)))};
  return {fail(std::move(subject), fmt::format("{} cannot be written: {}", path, fact->problem), std::move(remedy))};
}

}  // namespace

std::vector<Finding> diagnose(const DoctorOptions& options, const DoctorFacts& facts) {
  const LaunchOptions& launch = options.launch;
  Findings all;
  const auto add = [&](Findings more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  add(program(options, facts));
  add(directory("directory", "the agent's directory", facts.agent_directory,
                "set XDG_RUNTIME_DIR to a directory that can be written, or mount an emptyDir at /tmp"));
  all.push_back(own_name(facts.own_name));
  add(endpoint(launch, facts));
  add(etcd(facts.etcd));
  add(access(facts));
  add(master_port(launch, facts));
  add(health_port(launch, facts));
  all.push_back(kernel(facts.kernel_problem));
  all.push_back(threads(facts.thread_problem));
  if (!facts.has_proc)
    all.push_back(warn("proc",
                       "there is no /proc: every save of a checkpoint blocks, and nothing that workers leave behind is found or ended",
                       "mount it: mount -t proc proc /proc"));
  add(clocks(launch, facts));
  add(devices(launch, facts));
  all.push_back(shared_memory(launch, facts.shared_memory));
  add(limits(launch, facts));
  add(room(launch, facts));
  if (const auto& root = facts.checkpoint_root; root && root->is_fine && root->is_missing)
    add({warn("checkpoint", fmt::format("{} does not exist, and would be made", launch.checkpoint_root),
              "if a file system belongs there, mount it: nothing else has the checkpoints of earlier starts")});
  else
    add(directory("checkpoint", launch.checkpoint_root, facts.checkpoint_root,
                  "make the directory, for the user that elrun runs as; on NFS check root_squash"));
  add(directory("logs", launch.log_dir, facts.log_directory, "give --log_dir a directory that can be written"));
  return all;
}

std::string findings_for_people(std::span<const Finding> findings) {
  std::string text;
  for (const Finding& f : findings) {
    const char* grade = f.grade == Finding::Grade::ok ? "ok" : f.grade == Finding::Grade::warn ? "warn" : "FAIL";
    text += fmt::format("{:<5} {:<10} {}\n", grade, f.subject, f.what);
    if (!f.remedy.empty()) text += fmt::format("{:<16} remedy: {}\n", "", f.remedy);
  }
  const auto count = [&](Finding::Grade grade) {
    return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.grade == grade; });
  };
  return text + fmt::format("{} checks failed, {} warnings\n", count(Finding::Grade::fail), count(Finding::Grade::warn));
}

int exit_code_of(std::span<const Finding> findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.grade == Finding::Grade::fail; })
             ? exit_code::contradiction
             : 0;
}

}  // namespace elrun::inline v0::launcher
