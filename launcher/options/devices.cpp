#include "launcher/options/devices.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

bool names_device(std::string_view entry) {
  return entry.starts_with("GPU-") || entry.starts_with("MIG-") ||
         (!entry.empty() && entry.find_first_not_of("0123456789") == std::string_view::npos);
}

// As CUDA reads its list: up to the first entry that is no device.
std::uint32_t devices_in(std::string_view list) {
  std::uint32_t count = 0;
  for (bool more = true; more; ++count) {
    const auto comma = list.find(',');
    if (!names_device(trimmed(list.substr(0, comma)))) break;
    more = comma != std::string_view::npos;
    list.remove_prefix(more ? comma + 1 : list.size());
  }
  return count;
}

std::optional<double> to_number(std::string_view text) {
  text = trimmed(text.substr(0, text.find('\n')));
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || !(number > 0)) return std::nullopt;
  return number;
}

std::optional<double> ratio(std::string_view quota, std::string_view period) {
  const auto q = to_number(quota), p = to_number(period);
  return q && p ? std::optional{*q / *p} : std::nullopt;  // "max" and -1 are no limit
}

// Of one group. Version 2 has a file for both numbers, version 1 a file for each.
std::optional<double> quota_of(const std::string& folder, bool version2, const ReadFile& read_file) {
  if (!version2) {
    const auto quota = read_file(folder + "/cpu.cfs_quota_us"), period = read_file(folder + "/cpu.cfs_period_us");
    return quota && period ? ratio(*quota, *period) : std::nullopt;
  }
  const auto both = read_file(folder + "/cpu.max");
  if (!both) return std::nullopt;
  const std::string_view text = *both;
  const auto blank = text.find(' ');
  return blank == std::string_view::npos ? std::nullopt : ratio(text.substr(0, blank), text.substr(blank + 1));
}

}  // namespace

Count count_gpus(const Variables& environment, const std::function<DeviceFiles()>& files) {
  if (const auto visible = environment.find("CUDA_VISIBLE_DEVICES"); visible != environment.end())
    return {devices_in(visible->second), "CUDA_VISIBLE_DEVICES"};
  if (const auto visible = environment.find("NVIDIA_VISIBLE_DEVICES"); visible != environment.end()) {
    if (visible->second == "none") return {0, "NVIDIA_VISIBLE_DEVICES"};
    if (const std::uint32_t count = devices_in(visible->second)) return {count, "NVIDIA_VISIBLE_DEVICES"};  // not `all`, `void`
  }
  const DeviceFiles found = files();
  return found.nodes > 0 ? Count{found.nodes, "/dev/nvidia*"} : Count{found.driver, "/proc/driver/nvidia/gpus"};
}

std::optional<double> cpu_quota(const ReadFile& read_file) {
  const auto groups = read_file("/proc/self/cgroup");
  std::optional<double> least;
  for (std::string_view rest = groups ? std::string_view{*groups} : std::string_view{}; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));  // hierarchy:controllers:path
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const auto first = line.find(':'), second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && fmt::format(",{},", controllers).find(",cpu,") == std::string::npos) continue;
    const std::string root = version2 ? "/sys/fs/cgroup" : fmt::format("/sys/fs/cgroup/{}", controllers);
    std::string path{line.substr(second + 1)};
    while (path.ends_with('/')) path.pop_back();
    while (true) {  // from the group itself to the root, which is the container's own group when the path is not shown to it
      if (const auto quota = quota_of(root + path, version2, read_file); quota && (!least || *quota < *least)) least = quota;
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

Count count_cpus(std::uint32_t in_mask, std::optional<double> quota) {
  const auto allowed = quota ? std::max(1.0, std::floor(std::min(*quota, 1e6))) : 1e6;
  if (allowed < in_mask) return {static_cast<std::uint32_t>(allowed), "the CPU quota of the control group"};
  return {std::max(in_mask, 1u), "the CPU affinity mask"};
}

}  // namespace elrun::inline v0::launcher
