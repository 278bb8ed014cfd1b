#include "launcher/commands/drain_options.hpp"

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view drain_usage =
    "usage: elrun drain [--pid PID] [--timeout SECONDS]\n"
    "\n"
    "Asks the agents of this user on this machine to leave, as SIGTERM does, and waits until they have: a Job saves a\n"
    "checkpoint at the end of its step, and the other nodes go on without this one (--nnodes MIN:MAX). An agent that is\n"
    "leaving already is waited for. Meant for a container's preStop hook, whoever its process 1 is.\n"
    "  --pid PID          only the agent with this process number, or with a worker that has it\n"
    "  --timeout SECONDS  until all have left (600)\n"
    "\n"
    "Exit codes: 0 all have left, 69 none was there or one is still there, 64 usage.\n";

}  // namespace

std::variant<DrainOptions, Usage> parse_drain(std::span<const std::string> words) {
  DrainOptions options;
  std::string problems;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i];
    if (name == "-h" || name == "--help") return Usage{0, std::string{drain_usage}};
    std::optional<std::string> value;
    if (const auto equals = name.find('='); equals != std::string::npos) value = name.substr(equals + 1), name.resize(equals);
    else if (i + 1 < words.size() && (name == "--pid" || name == "--timeout")) value = words[++i];
    if (name == "--pid" && value) {
      options.pid = to_integer(*value);
      if (!options.pid || *options.pid < 1) problems += fmt::format("elrun: --pid {}: must be a process number\n", *value);
    } else if (name == "--timeout" && value) {
      const auto time = to_seconds(*value);
      if (time && *time > Duration{0}) options.timeout = *time;
      else problems += fmt::format("elrun: --timeout {}: must be seconds above 0\n", *value);
    } else {
      problems += fmt::format("elrun: drain: `{}` is none of --pid PID, --timeout SECONDS\n", words[i]);
    }
  }
  if (problems.empty()) return options;
  return Usage{exit_code::usage, problems};
}

}  // namespace elrun::inline v0::launcher
