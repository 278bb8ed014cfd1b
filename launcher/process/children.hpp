#pragma once
/// \file Shell: the children of a process, by /proc.

#include <sys/types.h>

#include <vector>

namespace elrun::inline v0::launcher {

/// The living children of a process, and the dead whose end it has not read; none where there is no /proc. Processes may begin and end while it
/// looks.
[[nodiscard]] std::vector<pid_t> children_of(pid_t pid);

}  // namespace elrun::inline v0::launcher
