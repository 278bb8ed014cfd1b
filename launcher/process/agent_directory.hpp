#pragma once
/// \file The agents' private directories: where they are made, and which there are.

#include <string_view>
#include <vector>

#include <elrun/result.hpp>

#include "launcher/options/options.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

constexpr std::string_view status_socket_name = "status.sock";
constexpr std::size_t agent_directories_max = 1024;  ///< That are looked at.

/// `elrun-XXXXXX`, of mode 0700, in $XDG_RUNTIME_DIR, /tmp or what is writable instead: not every container has a /tmp.
[[nodiscard]] Result<Path> make_agent_directory(const Variables& environment);

/// Those of this user, sorted; of agents that live, and of some that are gone.
[[nodiscard]] std::vector<Path> agent_directories(const Variables& environment);

}  // namespace elrun::inline v0::launcher
