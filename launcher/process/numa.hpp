#pragma once
/// \file Numa: which CPUs each worker of a node may use, so that it runs near its GPU (`--numa_binding`).

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

using Cpus = std::set<std::uint32_t>;

/// What is read of this machine: files below /sys and /proc, the names in a folder there, and the CPUs it may use at all.
struct NumaView {
  ReadFile read_file;
  std::function<std::vector<std::string>(const std::string& folder)> names_in;
  Cpus allowed;
};

/// For each worker the CPUs of its GPU's node, socket, share of the node's cores, or last-level cache; never another than
/// allowed. Worker i has the i-th GPU that it may see. A failure names the GPU or file that is missing.
[[nodiscard]] Result<std::vector<Cpus>> cpus_of_workers(NumaBinding how, std::uint32_t workers, const Variables& environment,
                                                        const NumaView& view);

/// `0-3,8`, as the kernel writes sets of CPUs; what cannot be read ends it.
[[nodiscard]] Cpus parse_cpus(std::string_view text);

}  // namespace elrun::inline v0::launcher
