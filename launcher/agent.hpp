#pragma once
/// \file Agent: the loop that feeds the supervisor, and does what it says.

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "launcher/options/environment.hpp"
#include "launcher/options/options.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/numa.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

struct StartRefusal;

struct AgentSetting {
  LaunchOptions options;
  Command command;
  Variables environment;
  Path directory;                      ///< Private to this agent; the guard or the caller removes it.
  std::vector<Cpus> cpus{};            ///< Of each worker, by local rank; empty: as the agent.
  Duration exec_limit{};               ///< A worker's exec that has not returned within this has failed.
  std::uint64_t generation_floor = 0;  ///< Of a coordinator in this process: generations are counted on from it.
};

/// Runs the workers of this node until the job is over for it; returns elrun's exit code.
/// What keeps it from starting is said by `refuse`.
[[nodiscard]] int run_agent(AgentSetting setting, const Guard& guard, const StartRefusal& refuse, const Clock& clock, LogStream& lines);

}  // namespace elrun::inline v0::launcher
