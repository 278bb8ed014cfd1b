#include <fmt/format.h>

#include "launcher/http/status_options.hpp"
#include "launcher/options/option_table.hpp"
#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view status_usage =
    "usage: elrun status [--pid PID] [--endpoint HOST:PORT] [--json] [--timeout SECONDS]\n"
    "\n"
    "What the agents of this user on this machine run; with --endpoint the agent behind another one's --health_port.\n"
    "  --pid PID             only the agent with this process number, or with a worker that has it\n"
    "  --endpoint HOST:PORT  ask there, and not on this machine\n"
    "  --json                one JSON object: {\"agents\": [as each agent says it], \"problems\": [who did not answer]}\n"
    "  --timeout SECONDS     for each agent (5)\n"
    "\n"
    "Exit codes: 0 all that are there answered, 69 none is there or one did not answer, 64 usage.\n";

}  // namespace

std::variant<StatusOptions, Usage> parse_status(std::span<const std::string> words) {
  StatusOptions options;
  std::string problems;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i];
    if (name == "-h" || name == "--help") return Usage{0, std::string{status_usage}};
    if (name == "--json") {
      options.as_json = true;
      continue;
    }
    std::optional<std::string> value;
    if (const auto equals = name.find('='); equals != std::string::npos) value = name.substr(equals + 1), name.resize(equals);
    else if (i + 1 < words.size() && (name == "--pid" || name == "--endpoint" || name == "--timeout")) value = words[++i];
    if (name == "--pid" && value) {
      options.pid = to_integer(*value);
      if (!options.pid || *options.pid < 1) problems += fmt::format("elrun: --pid {}: must be a process number\n", *value);
    } else if (name == "--endpoint" && value) {
      const auto endpoint = parse_endpoint(*value, 0);
      if (endpoint.ok() && !endpoint->host.empty() && endpoint->port != 0) options.endpoint = *endpoint;
      else problems += fmt::format("elrun: --endpoint {}: must be HOST:PORT, the port that --health_port names\n", *value);
    } else if (name == "--timeout" && value) {
      const auto time = to_seconds(*value);
      if (time && *time > Duration{0}) options.timeout = *time;
      else problems += fmt::format("elrun: --timeout {}: must be seconds above 0\n", *value);
    } else {
      problems += fmt::format("elrun: status: `{}` is none of --pid PID, --endpoint HOST:PORT, --json, --timeout SECONDS\n", words[i]);
    }
  }
  if (problems.empty()) return options;
  return Usage{exit_code::usage, problems};
}

}  // namespace elrun::inline v0::launcher
