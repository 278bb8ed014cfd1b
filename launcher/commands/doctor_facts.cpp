#include "launcher/commands/doctor_facts.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>

#include "launcher/options/host.hpp"
#include "launcher/output/print_out.hpp"
#include "launcher/process/agent_directory.hpp"
#include "launcher/process/answers_in_time.hpp"
#include "launcher/process/machine.hpp"
#include "lib/base/failure.hpp"
#include "rendezvous/net/access.hpp"
#include "rendezvous/net/lookup.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration name_time_max = 10s, dial_time_max = 3s, path_time_max = 5s;

// --- names and services -------------------------------------------------------------------------------------------

NameFact look_up(const std::string& name, const Clock& clock) {
  NameFact fact{.name = name, .problem = fmt::format("the name \"{}\" got no answer from the name servers in time", name)};
  const Instant began = clock.now();
  boost::asio::io_context loop;
  NameLookup lookup{loop};
  lookup.start({name == "localhost" ? "127.0.0.1" : name, 0}, [&](const Resolved& found) {
    fact.problem = found.problem;
    for (const Address& address : found.addresses) fact.addresses.push_back(address.host);
    loop.stop();
  });
  if (fact.addresses.empty()) {
    const auto work = boost::asio::make_work_guard(loop);
    loop.run_for(name_time_max);
  }
  fact.took = clock.now() - began;
  return fact;
}

bool ready(int socket, short events, Deadline deadline, const Clock& clock) {
  pollfd p{socket, events, 0};
  return ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(deadline.left(clock.now())).count())) > 0;
}

// The opening of HTTP/2 and an empty SETTINGS frame; who speaks it answers with such a frame (type 4).
EndpointAnswer greet(int socket, Deadline deadline, const Clock& clock) {
  constexpr std::string_view opening{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33};
  constexpr std::size_t type_at = 3, frame_head = 9;
  constexpr char settings = 4;
  if (::send(socket, opening.data(), opening.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(opening.size()))
    return EndpointAnswer::other_program;
  std::string answer;
  while (answer.size() < frame_head && ready(socket, POLLIN, deadline, clock)) {
    std::array<char, 64> chunk;
    const ssize_t count = ::recv(socket, chunk.data(), chunk.size(), 0);
    if (count <= 0) break;
    answer.append(chunk.data(), static_cast<std::size_t>(count));
  }
  return answer.size() >= frame_head && answer[type_at] == settings ? EndpointAnswer::rendezvous : EndpointAnswer::other_program;
}

DialFact dial(const std::string& host, std::uint16_t port, bool has_tls, const Clock& clock) {
  DialFact fact{.address = host};
  const auto address = literal_address(host, port);
  if (!address) return fact;
  const Deadline deadline = Deadline::after(clock.now(), dial_time_max);
  const auto socket = connect_begin(*address);
  if (!socket.ok() || !ready(socket->get(), POLLOUT, deadline, clock)) return fact;
  int error = 0;
  socklen_t size = sizeof error;
  (void)::getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == ECONNREFUSED) fact.answer = EndpointAnswer::nothing;
  else if (error == 0) fact.answer = has_tls ? EndpointAnswer::unchecked : greet(socket->get(), deadline, clock);
  return fact;
}

ServiceFact look_at(const Endpoint& endpoint, bool has_tls, const Clock& clock) {
  constexpr std::size_t dials_max = 8;
  ServiceFact fact{endpoint, look_up(endpoint.host, clock), {}};
  for (const std::string& address : fact.name.addresses)
    if (fact.dials.size() < dials_max) fact.dials.push_back(dial(address, endpoint.port, has_tls, clock));
  return fact;
}

std::string problem_of_port(const std::string& host, std::uint16_t port) {
  const auto address = literal_address(host, port);
  if (!address) return fmt::format("{} is no literal address", host);
  const auto socket = listen_on(*address);
  return socket.ok() ? std::string{} : socket.failure().what;
}

// --- the machine --------------------------------------------------------------------------------------------------

std::vector<DeviceFact> devices() {
  std::vector<DeviceFact> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir("/dev"), ::closedir};
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const std::string name{entry->d_name};
    if (!name.starts_with("nvidia") || name.size() == 6 || name.size() > 10 || name.find_first_not_of("0123456789", 6) != std::string::npos)
      continue;
    const Fd device{::open(("/dev/" + name).c_str(), O_RDWR | O_CLOEXEC)};
    all.push_back({static_cast<std::uint32_t>(std::stoul(name.substr(6))), device ? std::string{} : from_errno(errno, "open it").what});
  }
  std::sort(all.begin(), all.end(), [](const DeviceFact& a, const DeviceFact& b) { return a.number < b.number; });
  return all;
}

bool has_entries(const char* directory) {
  std::error_code error;
  return std::filesystem::directory_iterator{directory, error} != std::filesystem::directory_iterator{} && !error;
}

Limit limit_of(decltype(RLIMIT_NOFILE) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

Limit number_in(const Path& path) {
  std::uint64_t number = 0;
  std::ifstream file{path};
  if (!(file >> number)) return std::nullopt;  // "max" as well
  return number;
}

// Version 2: the nearest bound above this process; inside a container its own group is the root of what is seen.
void read_cgroup(DoctorFacts& facts) {
  std::string line, own;
  for (std::ifstream file{"/proc/self/cgroup"}; std::getline(file, line);)
    if (line.starts_with("0::")) own = line.substr(3);
  const Path root{"/sys/fs/cgroup"};
  const auto least = [](Limit& into, Limit other) {
    if (other && (!into || *other < *into)) into = other;
  };
  std::vector<Path> groups{root};
  for (const Path& part : Path{own}.relative_path()) groups.push_back(groups.back() / part);
  for (const Path& group : groups) {
    if (const Limit memory = number_in(group / "memory.max"); memory && (!facts.memory || *memory < *facts.memory))
      facts.memory = memory, facts.memory_used = number_in(group / "memory.current");
    least(facts.cgroup_processes, number_in(group / "pids.max"));
  }
}

void measure(const Path& path, PathFact& fact) {
  struct statvfs where {};
  if (::statvfs(path.c_str(), &where) != 0) return;
  fact.bytes = where.f_blocks * where.f_frsize;
  fact.bytes_free = where.f_bavail * where.f_frsize;
}

// By making a file and taking it away again: rights alone do not tell it on NFS, nor a quota.
// One that is not there would be made by the start: it is tried in the nearest directory above it that is.
PathFact try_directory(const Path& path) {
  PathFact fact;
  std::error_code error;
  Path there = std::filesystem::absolute(path, error);
  while (std::filesystem::symlink_status(there, error).type() == std::filesystem::file_type::not_found && there.has_relative_path())
    there = there.parent_path(), fact.is_missing = true;
  std::string name = (there / ".elrun-doctor-XXXXXX").native();
  const Fd file{::mkostemp(name.data(), O_CLOEXEC)};
  fact.is_fine = static_cast<bool>(file);
  if (!file) fact.problem = from_errno(errno, "make a file in it").what;
  if (file) (void)::unlink(name.c_str());
  measure(there, fact);
  return fact;
}

// A share or a bucket that is mounted as a folder may have no hard links, or not sync a folder.
PathFact try_checkpoint_root(const Path& path) {
  PathFact fact = try_directory(path);
  if (!fact.is_fine) return fact;
  std::error_code error;
  Path there = std::filesystem::absolute(path, error);
  while (std::filesystem::symlink_status(there, error).type() == std::filesystem::file_type::not_found && there.has_relative_path())
    there = there.parent_path();
  std::string name = (there / ".elrun-doctor-XXXXXX").native();
  const Fd file{::mkostemp(name.data(), O_CLOEXEC)};
  const std::string linked = name + "-link";
  if (file && ::link(name.c_str(), linked.c_str()) != 0)
    fact.problem = from_errno(errno, "make a hard link in it, as checkpoints need").what;
  const Fd directory{::open(there.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (fact.problem.empty() && (!directory || ::fsync(directory.get()) != 0)) fact.problem = from_errno(errno, "sync it").what;
  (void)::unlink(linked.c_str());
  (void)::unlink(name.c_str());
  fact.is_fine = fact.problem.empty();
  return fact;
}

PathFact try_reading(const Path& path) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  return {.is_fine = static_cast<bool>(file), .problem = file ? std::string{} : from_errno(errno, "open it").what};
}

// Storage may stand still, and then a call there never comes back.
template <class Answer>
Answer in_time(std::function<Answer()> look) {
  if (auto fact = answer_in_time<Answer>(std::move(look), path_time_max)) return *std::move(fact);
  return PathFact{.problem = fmt::format("its file system has not answered within {}", for_people(path_time_max)), .answers = false};
}

PathFact in_time(PathFact (*look)(const Path&), const Path& path) {
  return in_time<PathFact>([look, path] { return look(path); });
}

void look_for_command(const Program& program, const Variables& environment, std::string_view elrun_name, DoctorFacts& facts) {
  using Found = std::variant<Command, NoCommand>;
  facts.command = answer_in_time<Found>(
      [program, environment, name = std::string{elrun_name}] { return resolve_command(program, environment, look_up_file, name); },
      path_time_max);
  if (!facts.command) facts.command_problem = fmt::format("a file system has not answered within {}", for_people(path_time_max));
}

PathFact try_agent_directory(const Variables& environment) {
  const auto made = make_agent_directory(environment);
  if (!made.ok()) return {.problem = made.failure().what};
  PathFact fact{.is_fine = true};
  measure(*made, fact);
  std::error_code ignored;
  std::filesystem::remove(*made, ignored);
  return fact;
}

/// None: there is no /dev/shm.
std::optional<PathFact> try_shared_memory() {
  std::error_code error;
  if (!std::filesystem::is_directory("/dev/shm", error)) return {};
  return try_directory("/dev/shm");
}

void look_at_machine(const DoctorOptions& options, const Variables& environment, const Clock& clock, std::string_view elrun_name,
                     DoctorFacts& facts) {
  const Instant first = clock.now();
  facts.monotonic_clock_rises = clock.now() >= first;
  facts.wall_seconds = clock.wall_ns() / 1'000'000'000;
  timex time{};
  if (::adjtimex(&time) >= 0) facts.wall_clock_is_synchronised = (time.status & STA_UNSYNC) == 0;
  facts.kernel_problem = kernel_problem();
  facts.thread_problem = thread_problem();
  facts.has_proc = ::access("/proc/self/exe", F_OK) == 0 || errno != ENOENT;
  facts.devices = devices();
  if (const auto visible = environment.find("CUDA_VISIBLE_DEVICES"); visible != environment.end()) facts.visible_devices = visible->second;
  facts.has_rdma = has_entries("/sys/class/infiniband");
  facts.cpus = this_machine(environment).cpus();
  facts.shared_memory = in_time<std::optional<PathFact>>(try_shared_memory);
  facts.descriptors = limit_of(RLIMIT_NOFILE);
  if (rlimit limit{}; ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY) facts.descriptors_most = limit.rlim_max;
  facts.processes = limit_of(RLIMIT_NPROC);
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  read_cgroup(facts);
  facts.agent_directory = in_time<PathFact>([environment] { return try_agent_directory(environment); });
  const LaunchOptions& launch = options.launch;
  if (!launch.checkpoint_root.empty()) facts.checkpoint_root = in_time(try_checkpoint_root, launch.checkpoint_root);
  if (!launch.log_dir.empty() && launch.log_dir != "/dev/null") facts.log_directory = in_time(try_directory, launch.log_dir);
  if (!options.has_program) return;
  if (launch.program.kind == Program::Kind::script || launch.program.kind == Program::Kind::run_path)
    facts.script = in_time(try_reading, launch.program.name);
  if (!facts.script || facts.script->answers) look_for_command(launch.program, environment, elrun_name, facts);
}

void look_at_meeting(const LaunchOptions& options, const Clock& clock, DoctorFacts& facts) {
  facts.own_name = look_up(host_name(), clock);
  facts.own_addresses = own_addresses();
  const bool has_tls = options.access.has_tls();
  if (options.endpoint) {
    facts.endpoint = look_at(*options.endpoint, has_tls, clock);
    const auto place =
        host_place(*options.endpoint, options.host_rule, {facts.own_name.name, facts.own_addresses, facts.endpoint->name.addresses});
    if (place) facts.endpoint_port_problem = problem_of_port(place->listen, options.endpoint->port);
  }
  for (const Endpoint& server : options.etcd) facts.etcd.push_back(look_at(server, has_tls, clock));
  if (options.master_port && options.node_rank <= 0) facts.master_port_problem = problem_of_port("0.0.0.0", *options.master_port);
  if (options.side.health)
    facts.health_port_problem =
        problem_of_port(options.side.health->host.empty() ? "0.0.0.0" : options.side.health->host, options.side.health->port);
  if (!options.endpoint && options.etcd.empty()) return;
  if (const auto credentials = read_credentials(options.access, options.etcd.empty() ? AccessPeer::coordinator : AccessPeer::etcd);
      !credentials.ok())
    facts.access_problems.push_back(credentials.failure().what);
  facts.access_warnings = access_warnings(options.access, facts.wall_seconds);
}

}  // namespace

DoctorFacts gather_facts(const DoctorOptions& options, const Variables& environment, const Clock& clock, std::string_view elrun_name) {
  DoctorFacts facts;
  look_at_machine(options, environment, clock, elrun_name, facts);
  look_at_meeting(options.launch, clock, facts);
  return facts;
}

int run_doctor(const DoctorOptions& options, const Variables& environment, const Clock& clock, std::string_view elrun_name) {
  for (const std::string& note : options.launch.notes) print_out(fmt::format("note  {}\n", note));
  const auto findings = diagnose(options, gather_facts(options, environment, clock, elrun_name));
  print_out(findings_for_people(findings));
  return exit_code_of(findings);
}

}  // namespace elrun::inline v0::launcher
