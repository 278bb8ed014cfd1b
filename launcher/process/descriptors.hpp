#pragma once
/// \file How many files this process may have open. The coordinator's process needs one for each node.

#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace elrun::inline v0::launcher {

/// Opens what this process was started without (`>&-`) of standard input, output and error to nowhere. Else the next file or socket has its number,
/// and what is printed goes there. Before anything is opened.
void open_standard_streams();

/// With which this process was started. Its workers get the same: there are programs that select, or close all there can be.
[[nodiscard]] const rlimit& descriptors_at_start();

/// How many the process needs that serves the rendezvous for so many nodes: one for each, its own, and those that admission control leaves free.
[[nodiscard]] constexpr std::uint64_t descriptors_of_coordinator(std::uint32_t nodes) { return std::uint64_t{nodes} + 160; }

/// Takes as many as the system grants; how many those are.
std::uint64_t raise_descriptors();

/// What is to be said where a coordinator with so many cannot have as many nodes; empty where it can.
[[nodiscard]] std::string descriptors_warning(std::uint64_t limit, std::uint32_t nodes);

}  // namespace elrun::inline v0::launcher
