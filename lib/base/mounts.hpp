#pragma once
/// \file What /etc/fstab says about a path and the kernel does not.

#include <string>
#include <string_view>

#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// The mount point above `path` (absolute), or `path` itself, that `fstab` has and `mounts` (as /proc/self/mounts) has not; the deepest one.
/// Empty: there is none. Entries with `noauto` are mounted when somebody wants to, and count for nothing.
[[nodiscard]] std::string missing_mount(const Path& path, std::string_view fstab, std::string_view mounts);

}  // namespace elrun::inline v0
