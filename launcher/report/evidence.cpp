#include "launcher/report/evidence.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t system_file_max = 64 << 10;
constexpr std::uint64_t shm_small = std::uint64_t{1} << 30;

std::string for_people(std::uint64_t bytes) {
  constexpr double mib = 1 << 20, gib = 1 << 30;
  const auto size = static_cast<double>(bytes);
  return size < gib ? fmt::format("{:.0f} MiB", size / mib) : fmt::format("{:.1f} GiB", size / gib);
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{}) return {};
  return number;
}

// Calls `use` with each line.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    use(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
}

// A cgroup's name is below its mount point, or outside what is mounted here: `/../..`.
Path below(const Path& root, std::string_view name) {
  return name.find("..") != std::string_view::npos ? root : root / Path{name}.relative_path();
}

// Of one controller: the file of version 1, in a hierarchy of its own, and that of version 2.
std::vector<Path> counter_files(std::string_view proc_self_cgroup, const Path& root, std::string_view controller, const char* name_first,
                                const char* name_second) {
  std::vector<Path> second, first;
  for_each_line(proc_self_cgroup, [&](std::string_view line) {  // hierarchy:controllers:name
    const auto a = line.find(':'), b = a == std::string_view::npos ? a : line.find(':', a + 1);
    if (b == std::string_view::npos) return;
    const std::string controllers = fmt::format(",{},", line.substr(a + 1, b - a - 1));
    const std::string_view name = line.substr(b + 1);
    if (controllers == ",,") second = {below(root, name) / name_second, root / name_second};
    if (controllers.find(fmt::format(",{},", controller)) != std::string::npos)
      first = {below(root / controller, name) / name_first, root / controller / name_first};
  });
  first.insert(first.end(), second.begin(), second.end());  // where both are mounted, the controller belongs to the first
  return first;
}

// The number behind `key`, which ends with a blank.
std::optional<std::uint64_t> count_of(std::string_view text, std::string_view key) {
  std::optional<std::uint64_t> count;
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(key)) count = number_of(line.substr(key.size()));
  });
  return count;
}

}  // namespace

std::vector<Path> memory_event_files(std::string_view proc_self_cgroup, const Path& root) {
  return counter_files(proc_self_cgroup, root, "memory", "memory.oom_control", "memory.events");
}

std::vector<Path> pids_event_files(std::string_view proc_self_cgroup, const Path& root) {
  return counter_files(proc_self_cgroup, root, "pids", "pids.events", "pids.events");
}

std::optional<std::uint64_t> oom_kills_of(std::string_view text) { return count_of(text, "oom_kill "); }

std::optional<std::uint64_t> refusals_of(std::string_view text) { return count_of(text, "max "); }

std::string evidence_of(const Ending& ending, const SystemEvidence& s) {
  if (ending.signal == SIGKILL && s.oom_kills > 0)
    return fmt::format(
        "OOM-killed by the kernel ({} counts {} more oom_kill{}); give the container more memory, or let the program use less",
        s.oom_counter, s.oom_kills, s.memory_limit ? fmt::format(", the limit is {}", for_people(*s.memory_limit)) : "");
  if (ending.signal == SIGBUS && s.shm_bytes && *s.shm_bytes < shm_small)
    return fmt::format(
        "/dev/shm was probably full: it has {}, {} free now, and torch's data loaders pass tensors through it; make it larger "
        "(docker --shm-size, in Kubernetes an emptyDir of medium Memory at /dev/shm)",
        for_people(*s.shm_bytes), for_people(s.shm_free.value_or(0)));
  if (!ending.ok() && s.refusals > 0)
    return fmt::format(
        "processes or threads were refused: {} counts {} more{}; raise pids.max (the kubelet's podPidsLimit, --pids-limit of the container), or let the program "
        "start fewer: data loaders' workers, OMP_NUM_THREADS",
        s.refusal_counter, s.refusals, s.pids_limit ? fmt::format(", the limit is {}", *s.pids_limit) : "");
  if (!ending.ok() && !s.full_log_directory.empty())
    return fmt::format(
        "the disk of its log files is full ({}): what it wrote there failed; make room, or give --tee, whose files elrun writes",
        s.full_log_directory);
  return {};
}

std::string limit_behind(int error, const Limits& l) {
  if (error == EAGAIN && l.pids && l.pids_used && *l.pids_used + 2 >= *l.pids)
    return fmt::format(
        "pids.max of this container is {}, and {} processes and threads run in it: raise the kubelet's podPidsLimit, or --pids-limit of the container",
        *l.pids, *l.pids_used);
  if (error == EAGAIN && l.processes)
    return fmt::format("at most {} processes and threads of this user are allowed: raise nproc (ulimit -u)", *l.processes);
  if (error == EMFILE && l.descriptors)
    return fmt::format("at most {} file descriptors are allowed: raise nofile (ulimit -n, LimitNOFILE=, --ulimit nofile=65536)",
                       *l.descriptors);
  if (error == ENFILE) return "the machine's file descriptors are used up: raise fs.file-max, or look for who holds them";
  if (error == ENOMEM && l.memory)
    return fmt::format("the container's memory limit is {}{}: raise it, or let the program use less", for_people(*l.memory),
                       l.memory_used ? fmt::format(", of which {} is used", for_people(*l.memory_used)) : "");
  return {};
}

std::optional<std::string> read_regular_file(const Path& path, std::size_t most) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  std::string text(std::min<std::size_t>(most, std::max<std::size_t>(4096, static_cast<std::size_t>(info.st_size))) + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0) return {};
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > most) return {};
  text.resize(size);
  return text;
}

namespace {

std::optional<std::uint64_t> number_in(const Path& path) {
  const auto text = read_regular_file(path, system_file_max);
  return text ? number_of(*text) : std::nullopt;  // "max" is none
}

// The first of these files that has the count which `read` looks for.
template <class Read>
Path first_with(const std::vector<Path>& files, Read read) {
  for (const Path& file : files)
    if (const auto text = read_regular_file(file, system_file_max); text && read(*text)) return file;
  return {};
}

template <class Read>
std::uint64_t count_in(const Path& file, Read read) {
  const auto text = file.empty() ? std::nullopt : read_regular_file(file, system_file_max);
  return text ? read(*text).value_or(0) : 0;
}

std::optional<std::uint64_t> first_number_in(const Path& counter, std::initializer_list<const char*> names) {
  constexpr std::uint64_t none = std::uint64_t{1} << 60;  // how version 1 says that there is no limit
  for (const char* name : names)
    if (const auto number = counter.empty() ? std::nullopt : number_in(counter.parent_path() / name); number && *number < none)
      return number;
  return {};
}

std::optional<std::uint64_t> own_limit(decltype(RLIMIT_NOFILE) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return limit.rlim_cur;
}

}  // namespace

CgroupWatch::CgroupWatch(const Path& cgroup_root, const Path& proc_self_cgroup) {
  const std::string own = read_regular_file(proc_self_cgroup, system_file_max).value_or("0::/\n");
  memory_ = first_with(memory_event_files(own, cgroup_root), oom_kills_of);
  pids_ = first_with(pids_event_files(own, cgroup_root), refusals_of);
}

CgroupCounts CgroupWatch::counts() const { return {count_in(memory_, oom_kills_of), count_in(pids_, refusals_of)}; }

Limits CgroupWatch::limits() const {
  return {.pids = first_number_in(pids_, {"pids.max"}),
          .pids_used = first_number_in(pids_, {"pids.current"}),
          .memory = first_number_in(memory_, {"memory.max", "memory.limit_in_bytes"}),
          .memory_used = first_number_in(memory_, {"memory.current", "memory.usage_in_bytes"}),
          .processes = own_limit(RLIMIT_NPROC),
          .descriptors = own_limit(RLIMIT_NOFILE)};
}

SystemEvidence CgroupWatch::since(const CgroupCounts& before, const Path& log_directory) const {
  SystemEvidence s;
  const CgroupCounts now = counts();
  s.oom_kills = now.oom_kills > before.oom_kills ? now.oom_kills - before.oom_kills : 0;
  s.oom_counter = memory_.string();
  s.refusals = now.refusals > before.refusals ? now.refusals - before.refusals : 0;
  s.refusal_counter = pids_.string();
  const Limits of_cgroup = limits();
  s.memory_limit = of_cgroup.memory;
  s.pids_limit = of_cgroup.pids;
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) s.shm_bytes = shm.f_blocks * shm.f_frsize, s.shm_free = shm.f_bavail * shm.f_frsize;
  struct statvfs logs {};
  if (!log_directory.empty() && ::statvfs(log_directory.c_str(), &logs) == 0 && logs.f_blocks > 0 && logs.f_bavail == 0)
    s.full_log_directory = log_directory.string();
  return s;
}

}  // namespace elrun::inline v0::launcher
