#include "launcher/chaos/process_tree.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "launcher/options/environment.hpp"
#include "launcher/process/children.hpp"

namespace elrun::inline v0::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t processes_max = 65536;

/// The worker that this process is, or that one of its ancestors is.
std::optional<WorkerProcess> worker_in(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/environ", pid), std::ios::binary};
  std::optional<std::uint32_t> of_elrun, plain, nodes;
  bool has_rank = false;
  const auto number = [](std::string_view text) -> std::optional<std::uint32_t> {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
  };
  const std::string own = std::string{local_rank_variable} + "=";
  for (std::string variable; std::getline(file, variable, '\0');) {
    const std::string_view text = variable;
    if (text.starts_with(own)) of_elrun = number(text.substr(own.size()));
    else if (text.starts_with("LOCAL_RANK=")) plain = number(text.substr(11));
    else if (text.starts_with("GROUP_WORLD_SIZE=")) nodes = number(text.substr(17));
    else if (text.starts_with("RANK=")) has_rank = true;
  }
  if (!has_rank || !(of_elrun || plain)) return std::nullopt;
  return WorkerProcess{pid, of_elrun ? *of_elrun : *plain, nodes};  // LOCAL_RANK may be virtual
}

bool has_ended(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/stat", pid)};
  std::string line;
  if (!std::getline(file, line)) return true;
  const auto name_end = line.rfind(')');  // the name may have anything in it
  return name_end != std::string::npos && line.substr(name_end).starts_with(") Z");
}

/// A child of a worker that has ended: it has the worker's environment, and whoever collects orphans is its parent now. Launchers put each worker into a process group of its own.
bool is_left_behind(pid_t pid) {
  const pid_t group = ::getpgid(pid);
  return group != pid && (group < 0 || has_ended(group));
}

/// The sockets that listen at the port: their numbers in /proc.
void add_listening(const std::string& table, std::uint16_t port, std::set<std::string>& sockets) {
  std::ifstream file{table};
  std::string line;
  std::getline(file, line);  // titles
  while (std::getline(file, line)) {
    unsigned local_port = 0, state = 0;
    char address[64] = {}, remote[80] = {};
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), " %*[^:]: %63[0-9A-Fa-f]:%x %79s %x %*s %*s %*s %*s %*s %llu", address, &local_port, remote, &state,
                    &inode) == 5 &&
        local_port == port && state == 0x0A)
      sockets.insert(fmt::format("socket:[{}]", inode));
  }
}

}  // namespace

std::vector<pid_t> processes_below(pid_t pid) {
  std::vector<pid_t> all = children_of(pid);
  for (std::size_t i = 0; i < all.size() && all.size() < processes_max; ++i)
    for (const pid_t child : children_of(all[i])) all.push_back(child);
  return all;
}

std::vector<WorkerProcess> workers_below(pid_t launcher) {
  std::vector<WorkerProcess> workers;
  std::vector<pid_t> others{launcher};
  for (std::size_t i = 0; i < others.size() && others.size() < processes_max; ++i)
    for (const pid_t child : children_of(others[i])) {
      const auto worker = worker_in(child);
      if (!worker) others.push_back(child);
      else if (!is_left_behind(child)) workers.push_back(*worker);
    }
  return workers;
}

std::string process_name(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/comm", pid)};
  std::string name;
  std::getline(file, name);
  return name;
}

bool listens_at(pid_t pid, std::uint16_t port) {
  std::set<std::string> sockets;
  for (const char* table : {"tcp", "tcp6"}) add_listening(fmt::format("/proc/{}/net/{}", pid, table), port, sockets);
  if (sockets.empty()) return false;
  std::error_code error;
  for (fs::directory_iterator at{fmt::format("/proc/{}/fd", pid), error}, end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(at->path(), gone).string())) return true;
  }
  return false;
}

Fd hold_worker(const WorkerProcess& worker) {
  Fd process{static_cast<int>(::syscall(SYS_pidfd_open, worker.pid, 0))};
  const auto there = process ? worker_in(worker.pid) : std::nullopt;
  return there && there->local_rank == worker.local_rank ? std::move(process) : Fd{};
}

bool signal_process(const Fd& process, int number) {
  return process && ::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0) == 0;
}

}  // namespace elrun::inline v0::launcher
