#pragma once
/// \file Stacks: what the threads of a worker that hangs are doing, before it is killed.

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// Each thread of the process and of its descendants, a line each: name, state, system call, and where it waits in the
/// kernel, as far as this user may know. By /proc alone, and by nothing of it that can wait for a lock of the process.
[[nodiscard]] std::string thread_states(pid_t process);

/// Where the stacks of all threads of a process come from.
struct StackSource {
  std::vector<std::string> tool;  ///< The command that prints them; argument 0 is its path. Empty: no tool is asked.
  std::string why_none;           ///< In words for the log, when no tool is asked.
};
/// The paths of the tools; empty: not found.
struct StackPrograms {
  std::string py_spy, eu_stack, gdb;
  std::vector<std::string> silent;  ///< Folders of PATH that did not answer.
  std::vector<std::string>
      not_asked;  ///< Those that were not looked at, because five others had not answered, or there was no thread for it.
};
/// Looks each folder of PATH up on another thread, 500 ms for each that does not answer, the system's folders first. For the start of an agent: when workers hang, the storage that they hang on may have
/// some of those folders.
[[nodiscard]] StackPrograms find_stack_programs(const Variables& environment);
/// For Python py-spy, where it was found; else no tool, for Python tells its own stacks when it gets SIGABRT, and a debugger
/// that stops it before would keep it from that. For other programs eu-stack or gdb.
[[nodiscard]] StackSource stack_source(pid_t process, const StackPrograms& programs);

/// What a tool finds in its environment: nothing that is meant for the workers' Python, and no server of debug symbols, which
/// it would wait for.
[[nodiscard]] Variables tool_environment(Variables environment);

}  // namespace elrun::inline v0::launcher
