#pragma once
/// \file How many files this process may have open. The coordinator's process needs one for each node.

#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace elrun::inline v0::launcher {

/// With which this process was started. Its workers get the same: there are programs that select, or close all there can be.
[[nodiscard]] const rlimit& descriptors_at_start();

/// Takes as many as the system grants; how many those are.
std::uint64_t raise_descriptors();

/// What is to be said where a coordinator with so many cannot have as many nodes; empty where it can.
[[nodiscard]] std::string descriptors_warning(std::uint64_t limit, std::uint32_t nodes);

}  // namespace elrun::inline v0::launcher
