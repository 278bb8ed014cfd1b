#include "launcher/process/numa.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::uint32_t cpus_limit = 1 << 16;
constexpr const char* gpu_folder = "/proc/driver/nvidia/gpus";

Failure missing(std::string what) { return {Code::invalid_argument, Remedy::fix_config, "--numa_binding: " + std::move(what)}; }

Cpus both(const Cpus& a, const Cpus& b) {
  Cpus out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(out, out.end()));
  return out;
}

class Binding {
 public:
  Binding(const NumaView& view, std::vector<std::string> gpus) : view_{view}, gpus_{std::move(gpus)} {
    for (const std::string& gpu : gpus_) nodes_.push_back(node_of(gpu));
  }

  Cpus of(NumaBinding how, std::size_t gpu) const {
    const std::uint32_t node = nodes_[gpu];
    switch (how) {
      case NumaBinding::socket: return both(view_.allowed, cpus_of_socket(node));
      case NumaBinding::exclusive: return share_of(gpu);
      case NumaBinding::core_complex: return cache_of(gpu);
      case NumaBinding::node:
      case NumaBinding::none: break;
    }
    return cpus_of_node(node);
  }

 private:
  std::string text(const std::string& path) const { return std::string{trimmed(view_.read_file(path).value_or(""))}; }
  std::uint32_t number(const std::string& path, std::uint32_t otherwise) const {
    const std::string file = text(path);
    const auto found = to_integer(std::string_view{file}.substr(0, file.find('\n')));
    return found && *found >= 0 && *found < cpus_limit ? static_cast<std::uint32_t>(*found) : otherwise;
  }
  static std::string cpu_file(std::uint32_t cpu, const char* name) { return fmt::format("/sys/devices/system/cpu/cpu{}/{}", cpu, name); }

  // -1, on a machine of one node, is node 0.
  std::uint32_t node_of(std::string gpu) const {
    std::transform(gpu.begin(), gpu.end(), gpu.begin(), [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
    return number(fmt::format("/sys/bus/pci/devices/{}/numa_node", gpu), 0);
  }
  Cpus all_of_node(std::uint32_t node) const { return parse_cpus(text(fmt::format("/sys/devices/system/node/node{}/cpulist", node))); }
  Cpus cpus_of_node(std::uint32_t node) const { return both(view_.allowed, all_of_node(node)); }

  std::uint32_t socket_of(std::uint32_t cpu) const { return number(cpu_file(cpu, "topology/physical_package_id"), 0); }
  Cpus cpus_of_socket(std::uint32_t node) const {
    const Cpus here = all_of_node(node);
    if (here.empty()) return {};
    Cpus all;
    for (const std::string& name : view_.names_in("/sys/devices/system/node")) {
      const auto other = name.starts_with("node") ? to_integer(std::string_view{name}.substr(4)) : std::nullopt;
      if (!other || *other < 0 || *other >= cpus_limit) continue;
      const Cpus there = all_of_node(static_cast<std::uint32_t>(*other));
      if (!there.empty() && socket_of(*there.begin()) == socket_of(*here.begin())) all.insert(there.begin(), there.end());
    }
    return all;
  }

  // Which of the GPUs of its node this one is, and how many there are.
  std::pair<std::size_t, std::size_t> place_of(std::size_t gpu) const {
    const auto same = [&](std::uint32_t node) { return node == nodes_[gpu]; };
    return {static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.begin() + static_cast<std::ptrdiff_t>(gpu), same)),
            static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(), same))};
  }

  // Whole cores, with all threads of each that are allowed; the first GPUs get one more when they cannot be shared evenly.
  Cpus share_of(std::size_t gpu) const {
    std::map<std::uint32_t, Cpus> cores;  // by their first thread
    const Cpus here = cpus_of_node(nodes_[gpu]);
    for (const std::uint32_t cpu : here) {
      Cpus threads = both(here, parse_cpus(text(cpu_file(cpu, "topology/thread_siblings_list"))));
      threads.insert(cpu);
      cores[*threads.begin()] = std::move(threads);
    }
    const auto [place, gpus] = place_of(gpu);
    const std::size_t each = cores.size() / gpus, more = cores.size() % gpus;
    const std::size_t begin = place * each + std::min(place, more), count = each + (place < more ? 1 : 0);
    Cpus out;
    auto core = std::next(cores.begin(), static_cast<std::ptrdiff_t>(begin));
    for (std::size_t i = 0; i < count; ++i, ++core) out.insert(core->second.begin(), core->second.end());
    return out;
  }

  Cpus last_cache_of(std::uint32_t cpu) const {
    std::uint32_t highest = 0;
    Cpus shared;
    const std::string folder = cpu_file(cpu, "cache");
    for (const std::string& name : view_.names_in(folder)) {
      if (!name.starts_with("index")) continue;
      const std::uint32_t level = number(fmt::format("{}/{}/level", folder, name), 0);
      if (level > highest) highest = level, shared = parse_cpus(text(fmt::format("{}/{}/shared_cpu_list", folder, name)));
    }
    return shared;
  }

  Cpus cache_of(std::size_t gpu) const {
    const Cpus here = cpus_of_node(nodes_[gpu]);
    std::set<Cpus> found;
    for (const std::uint32_t cpu : here)
      if (Cpus shared = both(here, last_cache_of(cpu)); !shared.empty()) found.insert(std::move(shared));
    if (found.empty()) return here;
    std::vector<Cpus> caches{found.begin(), found.end()};
    std::stable_sort(caches.begin(), caches.end(),
                     [](const Cpus& a, const Cpus& b) { return a.size() != b.size() ? a.size() > b.size() : *a.begin() < *b.begin(); });
    return caches[place_of(gpu).first % caches.size()];
  }

  const NumaView& view_;
  std::vector<std::string> gpus_;     // PCI addresses, in the order in which workers see them
  std::vector<std::uint32_t> nodes_;  // of each
};

// The PCI addresses of the GPUs that workers see: all in the order of their addresses, or those that CUDA_VISIBLE_DEVICES
// names by number or UUID.
Result<std::vector<std::string>> visible_gpus(const Variables& environment, const NumaView& view) {
  std::vector<std::string> all = view.names_in(gpu_folder);
  std::sort(all.begin(), all.end());
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible == environment.end()) return all;
  std::vector<std::string> chosen;
  for (const std::string& entry : parse_devices(visible->second)) {
    auto found = all.end();
    if (const auto index = to_integer(entry); index && *index >= 0 && static_cast<std::uint64_t>(*index) < all.size())
      found = all.begin() + static_cast<std::ptrdiff_t>(*index);
    else if (entry.starts_with("GPU-"))
      found = std::find_if(all.begin(), all.end(), [&](const std::string& gpu) {
        return view.read_file(fmt::format("{}/{}/information", gpu_folder, gpu)).value_or("").find(entry) != std::string::npos;
      });
    if (found == all.end()) return missing(fmt::format("CUDA_VISIBLE_DEVICES names {}, which is not below {}", entry, gpu_folder));
    chosen.push_back(*found);
  }
  return chosen;
}

}  // namespace

Cpus parse_cpus(std::string_view text) {
  Cpus cpus;
  while (!text.empty()) {
    const std::string_view range = trimmed(text.substr(0, text.find_first_of(",\n")));
    text.remove_prefix(std::min(text.find_first_of(",\n"), text.size() - 1) + 1);
    const auto dash = range.find('-');
    const auto first = to_integer(range.substr(0, dash)),
               last = dash == std::string_view::npos ? first : to_integer(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= cpus_limit) break;
    for (auto cpu = *first; cpu <= *last; ++cpu) cpus.insert(static_cast<std::uint32_t>(cpu));
  }
  return cpus;
}

Result<std::vector<Cpus>> cpus_of_workers(NumaBinding how, std::uint32_t workers, const Variables& environment, const NumaView& view) {
  std::vector<Cpus> cpus;
  if (how == NumaBinding::none) return cpus;
  const auto gpus = visible_gpus(environment, view);
  if (!gpus.ok()) return gpus.failure();
  if (gpus->size() < workers)
    return missing(
        fmt::format("each of the {} workers needs a GPU to be near to, and there {} {} ({}); leave the option out, or start fewer workers",
                    workers, gpus->size() == 1 ? "is" : "are", gpus->size(), gpu_folder));
  const Binding binding{view, *gpus};
  for (std::size_t worker = 0; worker < workers; ++worker) {
    cpus.push_back(binding.of(how, worker));
    if (!cpus.back().empty()) continue;
    if (how == NumaBinding::exclusive && !binding.of(NumaBinding::node, worker).empty())
      return missing(fmt::format(
          "exclusive gives each GPU whole cores of its own, and near GPU {} ({}) this process may use fewer cores than there are GPUs; "
          "take --numa_binding=node, or allow more (taskset, cgroup)",
          worker, (*gpus)[worker]));
    return missing(
        fmt::format("of the CPUs near GPU {} ({}) this process may use none (taskset, cgroup); leave the option out, or allow some", worker,
                    (*gpus)[worker]));
  }
  return cpus;
}

}  // namespace elrun::inline v0::launcher
