#include "launcher/report/evidence.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

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

}  // namespace

std::vector<Path> memory_event_files(std::string_view proc_self_cgroup, const Path& root) {
  std::vector<Path> second, first;
  for_each_line(proc_self_cgroup, [&](std::string_view line) {  // hierarchy:controllers:name
    const auto a = line.find(':'), b = a == std::string_view::npos ? a : line.find(':', a + 1);
    if (b == std::string_view::npos) return;
    const std::string controllers = fmt::format(",{},", line.substr(a + 1, b - a - 1));
    const std::string_view name = line.substr(b + 1);
    if (controllers == ",,") second = {below(root, name) / "memory.events", root / "memory.events"};
    if (controllers.find(",memory,") != std::string::npos)
      first = {below(root / "memory", name) / "memory.oom_control", root / "memory" / "memory.oom_control"};
  });
  first.insert(first.end(), second.begin(), second.end());  // where both are mounted, memory belongs to the first
  return first;
}

std::optional<std::uint64_t> oom_kills_of(std::string_view text) {
  std::optional<std::uint64_t> kills;
  constexpr std::string_view key = "oom_kill ";
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(key)) kills = number_of(line.substr(key.size()));
  });
  return kills;
}

std::string evidence_of(const Ending& ending, const Circumstances& s) {
  if (ending.signal == SIGKILL && s.oom_kills > 0)
    return fmt::format(
        "OOM-killed by the kernel ({} counts {} more oom_kill{}); give the container more memory, or let the program use less",
        s.oom_counter, s.oom_kills, s.memory_limit ? fmt::format(", the limit is {}", for_people(*s.memory_limit)) : "");
  if (ending.signal == SIGBUS && s.shm_bytes && *s.shm_bytes < shm_small)
    return fmt::format(
        "/dev/shm was probably full: it has {}, {} free now, and torch's data loaders pass tensors through it; make it larger "
        "(docker --shm-size, in Kubernetes an emptyDir of medium Memory at /dev/shm)",
        for_people(*s.shm_bytes), for_people(s.shm_free.value_or(0)));
  if (!ending.ok() && !s.full_log_directory.empty())
    return fmt::format(
        "the disk of its log files is full ({}): what it wrote there failed; make room, or give --tee, whose files elrun writes",
        s.full_log_directory);
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

MemoryWatch::MemoryWatch(const Path& cgroup_root, const Path& proc_self_cgroup) {
  const auto own = read_regular_file(proc_self_cgroup, system_file_max);
  for (const Path& file : memory_event_files(own.value_or("0::/\n"), cgroup_root))
    if (const auto text = read_regular_file(file, system_file_max); text && oom_kills_of(*text)) {
      counter_ = file;
      return;
    }
}

std::uint64_t MemoryWatch::oom_kills() const {
  const auto text = counter_.empty() ? std::nullopt : read_regular_file(counter_, system_file_max);
  return text ? oom_kills_of(*text).value_or(0) : 0;
}

Circumstances MemoryWatch::since(std::uint64_t oom_kills_before, const Path& log_directory) const {
  Circumstances s;
  const std::uint64_t now = oom_kills();
  s.oom_kills = now > oom_kills_before ? now - oom_kills_before : 0;
  s.oom_counter = counter_.string();
  for (const char* name : {"memory.max", "memory.limit_in_bytes"})
    if (const auto text = counter_.empty() ? std::nullopt : read_regular_file(counter_.parent_path() / name, system_file_max))
      if (const auto bytes = number_of(*text); bytes && *bytes < (std::uint64_t{1} << 60)) s.memory_limit = bytes;  // above: none
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) s.shm_bytes = shm.f_blocks * shm.f_frsize, s.shm_free = shm.f_bavail * shm.f_frsize;
  struct statvfs logs {};
  if (!log_directory.empty() && ::statvfs(log_directory.c_str(), &logs) == 0 && logs.f_blocks > 0 && logs.f_bavail == 0)
    s.full_log_directory = log_directory.string();
  return s;
}

}  // namespace elrun::inline v0::launcher
