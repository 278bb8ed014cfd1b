#include "lib/base/memory_left.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) return {};
  return value;
}

/// The number after `key` at the begin of a line.
std::optional<std::uint64_t> number_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return number_at(line.substr(key.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

/// What one group leaves; nothing where it has no limit, or is none.
std::optional<std::uint64_t> left_in(const ReadText& read, const std::string& group, const char* limit, const char* usage,
                                     const char* inactive) {
  const auto max = read(group + limit), now = read(group + usage);
  if (!max || !now) return {};
  const auto most = number_at(*max), used = number_at(*now);
  if (!most || !used) return {};  // "max"
  const auto stat = read(group + "/memory.stat");
  const std::uint64_t cached = stat ? number_of(*stat, inactive).value_or(0) : 0;
  const std::uint64_t held = *used - std::min(*used, cached);
  return *most - std::min(*most, held);
}

/// The path of this process's group in the hierarchy whose line begins with a number and then `controller`.
std::optional<std::string> group_of(std::string_view text, std::string_view controller) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto first = line.find(':');
    if (first == line.npos || !line.substr(first).starts_with(controller)) continue;
    return std::string{line.substr(first + controller.size())};
  }
  return {};
}

}  // namespace

std::optional<std::string> text_of_system(const std::string& path) {
  std::ifstream file{path};
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();  // istreambuf_iterator throws where a read fails
  return text.str();
}

std::uint64_t memory_left(const ReadText& read) {
  std::uint64_t least = unlimited;
  const auto take = [&](std::optional<std::uint64_t> left) { least = std::min(least, left.value_or(unlimited)); };
  if (const auto machine = read("/proc/meminfo"))
    if (const auto kb = number_of(*machine, "MemAvailable:")) take(*kb * 1024);
  const auto groups = read("/proc/self/cgroup");
  if (!groups) return least;
  const auto walk = [&](const std::string& root, std::string path, const char* limit, const char* usage, const char* inactive) {
    for (;; path.resize(path.find_last_of('/'))) {
      take(left_in(read, root + (path == "/" ? "" : path), limit, usage, inactive));
      if (path.find_last_of('/') == path.npos || path.empty()) return;
    }
  };
  if (const auto v2 = group_of(*groups, "::")) walk("/sys/fs/cgroup", *v2, "/memory.max", "/memory.current", "inactive_file ");
  if (const auto v1 = group_of(*groups, ":memory:"))
    walk("/sys/fs/cgroup/memory", *v1, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file ");
  return least;
}

std::uint64_t memory_to_spare() {
  if (rlimit addresses{}; ::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY) return 0;
  return memory_left(text_of_system);
}

}  // namespace elrun::inline v0
