#pragma once
/// \file How much memory this process may still take, from what the system says of it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace elrun::inline v0 {

/// The text of a file of the system; nothing where it cannot be read.
using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

/// As the system has it; for files of /proc and /sys, whose size is not known before.
[[nodiscard]] std::optional<std::string> text_of_system(const std::string& path);

/// The least of MemAvailable and what the control groups of this process leave (cgroup v2 and v1; cached files count as free). The largest number
/// where the system says nothing.
[[nodiscard]] std::uint64_t memory_left(const ReadText& read);

/// What this process may take, as the system says now, for what is not needed but saves time. 0 where its addresses are limited (`ulimit -v`): nobody knows how
/// many it will need.
[[nodiscard]] std::uint64_t memory_to_spare();

}  // namespace elrun::inline v0
