#pragma once
/// \file Options: argv and environment to LaunchOptions, torchrun's spellings and PET_* defaults, all problems at once.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <elrun/ids.hpp>

#include "lib/base/timeouts.hpp"
#include "rendezvous/access.hpp"
#include "rendezvous/node_link.hpp"

namespace elrun::inline v0::launcher {

using Variables = std::map<std::string, std::string, std::less<>>;  ///< An environment.

constexpr std::uint16_t endpoint_port_default = 29400;
constexpr std::size_t etcd_servers_max = 32;
constexpr std::uint16_t etcd_port_default = 2379;
constexpr std::uint16_t master_port_default = 29500;

constexpr std::size_t topology_max = 1024;

/// Exit codes of elrun itself, see launcher/README.md.
namespace exit_code {
constexpr int usage = 64, no_input = 66, internal = 70, contradiction = 78, cannot_execute = 126, not_found = 127;
constexpr int join_deadline = 170, coordinator_lost = 171;
}  // namespace exit_code

/// What the options need to know of this machine; asked only when an option depends on it.
struct Machine {
  std::function<std::uint32_t()> gpus;  ///< Devices that a worker would see.
  std::function<std::uint32_t()> cpus;  ///< In this process's affinity mask.
};

/// What each worker runs.
struct Program {
  enum class Kind { script, module, executable };  ///< python -u FILE, python -u -m NAME, FILE itself
  Kind kind = Kind::script;
  std::string name;
  std::vector<std::string> arguments;
};

/// Whether this agent may open the coordinator's port.
enum class HostRule { if_endpoint_is_here, always, never };

struct LaunchOptions {
  RoundOptions round;
  std::uint32_t workers = 1;  ///< Of this node; 0: it only coordinates.
  Program program;
  std::optional<Endpoint> endpoint;  ///< None: a single node, served in this process without gRPC.
  std::string checkpoint_root;  ///< Where the job's checkpoints are; empty: not given
  std::string topology;         ///< "zone/rack/host"; empty: not given
  std::vector<Endpoint> etcd;        ///< Servers that elect the coordinator among the agents; then there is no endpoint.
  HostRule host_rule = HostRule::if_endpoint_is_here;  ///< With etcd: any agent may be elected, unless `never`.
  std::int32_t node_rank = -1;  ///< A hint for the first order of ranks; -1: not given.
  RunId run;                    ///< Empty: the shell draws a random one.
  std::string role = "default";
  std::string local_address;                 ///< Empty: found out.
  std::optional<std::uint16_t> master_port;  ///< For workers of a single node; otherwise a fresh one per generation.
  Timeouts timeouts;
  Access access;                   ///< To the rendezvous; of a single node, which has none, without effect.
  std::vector<std::string> notes;  ///< What was understood differently than one might think.
};

/// `elrun store`: the coordinator alone.
struct StoreOptions {
  std::string host = "0.0.0.0";
  std::uint16_t port = endpoint_port_default;
  Timeouts timeouts;
  Access access;
  std::string checkpoint_root;
  std::vector<std::string> notes;
};

/// Nothing is to be started: help (0), or everything that is wrong with the command line.
struct Usage {
  int exit_code = 0;
  std::string text;
};

/// Parses the arguments after the program's name.
[[nodiscard]] std::variant<LaunchOptions, StoreOptions, Usage> parse_command(std::span<const std::string> arguments,
                                                                             const Variables& environment,
                                                                             const Machine& machine);

/// An environment without what is secret in it, for processes that are not elrun: no ELRUN_RDZV_TOKEN, and no token in
/// PET_RDZV_CONF.
[[nodiscard]] Variables without_secrets(Variables environment);

/// `host`, `host:port`, `:port`, `[v6]:port` or a bare v6 address; a host without port gets `port_default`.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t port_default);

}  // namespace elrun::inline v0::launcher
