#pragma once
/// \file Core: how much memory this process may still take, from what the system says of it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace elrun::inline v0 {

/// The text of a file of the system; nothing where it cannot be read.
using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

/// The least of MemAvailable and what the control groups of this process leave (cgroup v2 and v1; cached files count as free). The largest number
/// where the system says nothing.
[[nodiscard]] std::uint64_t memory_left(const ReadText& read);

/// Of that memory, what staging slots may take: the rest is for what the program and the system take later.
[[nodiscard]] constexpr std::uint64_t staging_share(std::uint64_t left) { return left - left / 10; }

}  // namespace elrun::inline v0
