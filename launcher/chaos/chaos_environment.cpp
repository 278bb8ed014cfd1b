#include "launcher/chaos/chaos_environment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/options/environment.hpp"
#include "launcher/process/machine.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr int tool_limit_ms = 10'000;
constexpr const char* fill_file = "elrun-chaos-fill";
constexpr std::uint64_t memory_left_min = 512ull << 20;

/// Runs a tool to its end. Its output is not shown: what it says is in the failure's words, as far as its exit code tells.
Result<void> run_tool(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int fd = 0; fd <= 2; ++fd) posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  const std::string shown = fmt::format("{}", fmt::join(words, " "));
  if (error != 0) return from_errno(error, "run " + shown);
  bool in_time = true;
  if (const Fd watch{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))}) {
    pollfd p{watch.get(), POLLIN, 0};
    int got = 0;
    do got = ::poll(&p, 1, tool_limit_ms);
    while (got < 0 && errno == EINTR);
    in_time = got > 0;
  }
  if (!in_time) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return Failure{
      Code::io, Remedy::fix_config,
      in_time ? fmt::format("`{}` failed ({})", shown, WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status)) : "by a signal")
              : fmt::format("`{}` took more than {} s", shown, tool_limit_ms / 1000)};
}

bool is_root() { return ::geteuid() == 0; }

std::uint64_t memory_available() {
  std::ifstream file{"/proc/meminfo"};
  for (std::string name; file >> name;) {
    std::uint64_t kilobytes = 0;
    if (!(file >> kilobytes)) return 0;
    if (name == "MemAvailable:") return kilobytes << 10;
    std::getline(file, name);
  }
  return 0;
}

std::string why_no_networks() {
  if (!is_root()) return "it needs a network for each node, which only root can make";
  for (const char* tool : {"ip", "nsenter", "unshare"})
    if (!run_tool({tool, "--help"}).ok() && !run_tool({tool, "-V"}).ok())
      return fmt::format("`{}` is not installed (iproute2, util-linux)", tool);
  if (const auto tried = run_tool({"unshare", "--net", "ip", "link", "add", "bridge", "type", "bridge"}); !tried.ok())
    return "this machine gives no network of its own: " + tried.failure().what;
  return {};
}

std::string why_no_disk(const ChaosOptions& options) {
  if (!options.mentions("{disk}")) return "it needs {disk} in the command, which chaos replaces by a small disk";
  if (!is_root()) return "it needs a disk of its own in memory, which only root can mount";
  if (const auto tried = run_tool({"unshare", "--mount", "true"}); !tried.ok())
    return "this machine gives no mount namespace: " + tried.failure().what;
  if (memory_available() < 2 * options.disk_bytes + memory_left_min)
    return fmt::format("two disks of {} MiB in memory would leave less than {} MiB of it; take a smaller --disk", options.disk_bytes >> 20,
                       memory_left_min >> 20);
  return {};
}

}  // namespace

std::vector<KindProblem> kind_problems(const ChaosOptions& options) {
  std::vector<KindProblem> problems;
  if (options.own_node) {
    // What is drawn follows from the words alone: all nodes have to draw the same.
    problems.push_back({FaultKind::cut, "chaos cuts networks that it made, and here each node has its own"});
    if (options.endpoint_port == 0)
      problems.push_back({FaultKind::coordinator, "etcd elects who serves the rendezvous, at a port that is not known here"});
    else if (options.never_host)
      problems.push_back({FaultKind::coordinator, "no agent serves the rendezvous (is_host=0), and chaos hits only what it started"});
    std::string why = why_no_disk(options);
    const bool can_fill = why.empty();
    problems.push_back(
        {FaultKind::fill, can_fill ? "whether another node can fill its disk is not known: --kinds names it" : std::move(why), can_fill});
    return problems;
  }
  const bool alone = options.world.nodes == 1;
  if (alone) {
    problems.push_back({FaultKind::cut, "the job has one node only"});
    const std::string why = "the job has one node only, so all of it would begin again";
    problems.push_back({FaultKind::kill_agent, why, true});
    problems.push_back({FaultKind::coordinator, why, !options.launcher.empty() ? false : true});
  } else if (std::string why = why_no_networks(); !why.empty()) {
    problems.push_back({FaultKind::cut, std::move(why)});
  }
  if (std::string why = why_no_disk(options); !why.empty()) problems.push_back({FaultKind::fill, std::move(why)});
  return problems;
}

// --- SmallDisk ---

Result<void> leave_mounts_to_others() {
  if (::unshare(CLONE_NEWNS) != 0) return from_errno(errno, "take a mount namespace for the disk that is filled");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return from_errno(errno, "make this process's mounts its own");
  return {};
}

Result<SmallDisk> SmallDisk::mount(const std::string& directory, std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) return from_errno(error.value(), "create " + directory);
  if (::mount("elrun-chaos", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, fmt::format("size={},mode=0755", bytes).c_str()) != 0)
    return from_errno(errno, "mount a disk in memory on " + directory);
  Fd root{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  struct statfs disk {};
  const bool is_small_disk = root && ::fstatfs(root.get(), &disk) == 0 && disk.f_type == TMPFS_MAGIC &&
                             static_cast<std::uint64_t>(disk.f_blocks) * static_cast<std::uint64_t>(disk.f_bsize) <= bytes + (1 << 20);
  if (is_small_disk) return SmallDisk{directory, std::move(root), bytes};
  ::umount2(directory.c_str(), MNT_DETACH);
  return Failure{Code::io, Remedy::fix_config, fmt::format("{} is not the disk in memory that was mounted there", directory)};
}

SmallDisk::~SmallDisk() {
  if (!root_) return;  // moved from
  root_ = Fd{};
  ::umount2(path_.c_str(), MNT_DETACH);
}

Result<void> SmallDisk::fill() const {
  const Fd file{::openat(root_.get(), fill_file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!file) return from_errno(errno, fmt::format("create {}/{}", path_, fill_file));
  const std::string zeros(1 << 20, '\0');
  // The size of the disk is a bound of its own: whatever this is, no more is written.
  for (std::uint64_t written = 0; written <= bytes_;) {
    const ssize_t got = ::write(file.get(), zeros.data(), zeros.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return errno == ENOSPC || errno == EDQUOT ? Result<void>{} : Result<void>{from_errno(errno, "fill " + path_)};
    written += static_cast<std::uint64_t>(got);
  }
  return {};
}

void SmallDisk::make_room() const { ::unlinkat(root_.get(), fill_file, 0); }

// --- NodeNetworks ---

Result<std::unique_ptr<NodeNetworks>> NodeNetworks::make(boost::asio::io_context& loop, const Guard& guard, const Variables& environment,
                                                         std::uint32_t nodes) {
  std::unique_ptr<NodeNetworks> networks{new NodeNetworks};
  const auto command = resolve_command({.kind = Program::Kind::executable, .name = "unshare"}, environment, look_up_file, "elrun");
  const auto* const unshare = std::get_if<Command>(&command);
  if (unshare == nullptr) return Failure{Code::not_found, Remedy::fix_config, std::get<NoCommand>(command).why};
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/ns/net", error);
  for (std::uint32_t i = 0; i <= nodes; ++i) {
    Execution execution{unshare->path, {"unshare", "--net", "sleep", "infinity"}, environment};
    const Fd null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
    execution.in = execution.out = execution.err = null.get();
    ELRUN_TRY_ASSIGN(auto holder, Child::start(loop, guard, execution, [](Ending) {}));
    const std::string link = fmt::format("/proc/{}/ns/net", holder->pid());
    constexpr int looks_max = 2000;
    for (int look = 0; std::filesystem::read_symlink(link, error) == own || error; ++look) {
      if (look == looks_max) return Failure{Code::io, Remedy::fix_config, "no network namespace came up within 2 s"};
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    networks->holders_.push_back(std::move(holder));
  }
  ELRUN_TRY(networks->run_inside(nodes, {"ip", "link", "set", "lo", "up"}));
  ELRUN_TRY(networks->run_inside(nodes, {"ip", "link", "add", "bridge", "address", "02:00:00:00:00:01", "type", "bridge"}));
  ELRUN_TRY(networks->run_inside(nodes, {"ip", "addr", "add", address(nodes) + "/24", "dev", "bridge"}));
  ELRUN_TRY(networks->run_inside(nodes, {"ip", "link", "set", "bridge", "up"}));
  for (std::uint32_t i = 0; i < nodes; ++i) {
    const std::string link = fmt::format("node{}", i), holder = fmt::to_string(networks->holders_[i]->pid());
    ELRUN_TRY(networks->run_inside(nodes, {"ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", holder}));
    ELRUN_TRY(networks->run_inside(nodes, {"ip", "link", "set", link, "master", "bridge", "up"}));
    ELRUN_TRY(networks->run_inside(i, {"ip", "link", "set", "lo", "up"}));
    ELRUN_TRY(networks->run_inside(i, {"ip", "addr", "add", address(i) + "/24", "dev", "eth0"}));
    ELRUN_TRY(networks->run_inside(i, {"ip", "link", "set", "eth0", "up"}));
  }
  return networks;
}

std::vector<std::string> NodeNetworks::inside(std::uint32_t node, std::vector<std::string> command) const {
  std::vector<std::string> words{"nsenter", fmt::format("--net=/proc/{}/ns/net", holders_[node]->pid()), "--"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string NodeNetworks::address(std::uint32_t node) { return fmt::format("10.199.77.{}", node + 1); }

Result<void> NodeNetworks::run_inside(std::uint32_t node, std::vector<std::string> command) const {
  return run_tool(inside(node, std::move(command)));
}

Result<void> NodeNetworks::cut(std::uint32_t node) const {
  return run_inside(static_cast<std::uint32_t>(holders_.size() - 1), {"ip", "link", "set", fmt::format("node{}", node), "down"});
}
Result<void> NodeNetworks::mend(std::uint32_t node) const {
  return run_inside(static_cast<std::uint32_t>(holders_.size() - 1), {"ip", "link", "set", fmt::format("node{}", node), "up"});
}

}  // namespace elrun::inline v0::launcher
