#pragma once
/// \file Stacks: what the threads of a worker that hangs are doing, before it is killed.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launcher/options.hpp"

namespace elrun::inline v0::launcher {

/// Each thread of the process and of its descendants, a line each: name, state, system call, and where it waits in the
/// kernel, as far as this user may know. By /proc alone.
[[nodiscard]] std::string thread_states(pid_t process);

/// Argument 0 is its path.
using ToolCommand = std::vector<std::string>;
/// The program that prints the stacks of all threads of this process, if this machine has one: py-spy for Python, else
/// eu-stack or gdb.
[[nodiscard]] std::optional<ToolCommand> stack_tool(pid_t process, const Variables& environment);

}  // namespace elrun::inline v0::launcher
