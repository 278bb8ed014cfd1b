#pragma once
/// \file Environment: what a worker finds in its environment, and what it is started with.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

/// All that one worker's environment depends on.
struct WorkerSetting {
  const LaunchOptions& options;
  const World& world;
  RunId run;
  NodeId node;
  LocalRank local_rank;
  std::uint32_t node_restarts = 0;  ///< Generations that ended by a failure of this node's own workers.
  Path socket;                      ///< Where the agent serves the worker protocol.
  std::uint32_t place = 0;          ///< Among the workers that the node has in `world`
  Path error_file{};                ///< Where the worker may explain its failure (torch's `record`); empty: nowhere.
};

/// Which worker of its node a process is, or was started by. LOCAL_RANK does not tell: it may be virtual.
constexpr const char* local_rank_variable = "ELRUN_LOCAL_RANK";
/// Leads to the agent. Workers and the writer of checkpoints have it, and what they start.
constexpr const char* socket_variable = "ELRUN_SOCKET";

/// The agent's own environment, overlaid as torchrun does (RANK, WORLD_SIZE, ... TORCHELASTIC_*) and with ELRUN_*.
[[nodiscard]] Variables worker_environment(Variables own, const WorkerSetting& setting);

/// `${local_rank}` and `$local_rank` become the number, `$$` becomes `$`; any other `$` stays.
[[nodiscard]] std::string substitute_macros(std::string_view text, LocalRank local_rank);

enum class FileKind { missing, not_executable, executable };
struct FoundFile {
  FileKind kind = FileKind::missing;
  std::string head{};  ///< Its first bytes.
};
using LookUp = std::function<FoundFile(const std::string& path)>;

/// A shell or another interpreter that is not Python, named by a script's first line: `#!/bin/sh`, `#!/usr/bin/env bash`.
/// Nothing where there is no such line, or where it may lead to Python all the same.
[[nodiscard]] std::string other_interpreter(std::string_view head);

/// What a worker is executed with: an absolute or relative path, and the arguments in front of the program's own.
struct Command {
  std::string path;
  std::vector<std::string> arguments;  ///< Without macros replaced; the first is the name of the program.
  std::string warning{};               ///< It can be started, but probably not as was meant.
};
/// Why a program cannot be started, and elrun's exit code for it.
struct NoCommand {
  int exit_code = 0;
  std::string why;
};
/// Finds the executable (PATH), or the interpreter: $PYTHON_EXEC; the one beside elrun, as `elrun_name` was called, where that
/// is a virtual environment, and beside a link called torchrun also where no environment is active; $VIRTUAL_ENV/bin/python;
/// python3 or python on PATH.
[[nodiscard]] std::variant<Command, NoCommand> resolve_command(const Program& program, const Variables& environment, const LookUp& look_up,
                                                               std::string_view elrun_name);
/// The arguments of one worker.
[[nodiscard]] std::vector<std::string> worker_arguments(const Command& command, const Program& program, LocalRank local_rank);

}  // namespace elrun::inline v0::launcher
