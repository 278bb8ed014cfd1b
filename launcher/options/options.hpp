#pragma once
/// \file Options: argv and environment to LaunchOptions, torchrun's spellings and PET_* defaults, all problems at once.

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <elrun/ids.hpp>

#include "checkpoint/tools/choose.hpp"
#include "checkpoint/tools/reader_share.hpp"
#include "launcher/chaos/chaos_options.hpp"
#include "launcher/options/admin_options.hpp"
#include "launcher/process/preempt_notice.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/endpoint.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/net/access.hpp"

namespace elrun::inline v0::launcher {

using Variables = std::map<std::string, std::string, std::less<>>;  ///< An environment.

constexpr std::uint16_t endpoint_port_default = 29400;
constexpr std::size_t etcd_servers_max = 32;
constexpr std::uint16_t etcd_port_default = 2379;
constexpr std::uint16_t master_port_default = 29500;
/// Where the nodes of a static rendezvous meet when the worker of rank 0 listens at their one known port: 10000 below it, or
/// above it where that would be a port of the system.
constexpr std::uint16_t meeting_port_beside(std::uint16_t master_port) {
  constexpr std::uint16_t distance = 10000, system_ports = 1024;
  return static_cast<std::uint16_t>(master_port >= distance + system_ports ? master_port - distance : master_port + distance);
}

constexpr std::size_t topology_max = 1024;
constexpr std::size_t role_max = 256;  ///< Bytes of its name.

/// Exit codes of elrun itself, see launcher/README.md.
namespace exit_code {
constexpr int usage = 64, damaged = 65, no_input = 66, unavailable = 69, internal = 70, contradiction = 78, cannot_execute = 126,
              not_found = 127;
constexpr int join_deadline = 170, coordinator_lost = 171, checkpoint_too_old = 173, hang = 174;
}  // namespace exit_code

/// A number of things, and how it is known.
struct Count {
  std::uint32_t number = 0;
  std::string from;
};
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;  ///< None: it cannot be read.

/// What the options need to know of this machine; asked only when an option depends on it.
struct Machine {
  std::function<Count()> gpus;  ///< Devices that the workers would see.
  std::function<Count()> cpus;  ///< That this process may use.
  std::function<std::string()> host_name = [] { return std::string{}; };
  ReadFile read_file = [](const std::string&) { return std::optional<std::string>{}; };
  std::function<bool(const std::string&)> resolves = [](const std::string&) { return false; };  ///< Asks the resolver.
};

/// What each worker runs.
struct Program {
  /// python -u FILE; python -u -m NAME; FILE itself; python -u with runpy, which runs FILE and writes its error file
  enum class Kind { script, module, executable, run_path };
  Kind kind = Kind::script;
  std::string name;
  std::vector<std::string> arguments;
};

/// Whether this agent may open the coordinator's port.
enum class HostRule { if_endpoint_is_here, always, never };

/// Which of a worker's two output streams something applies to.
struct Streams {
  bool out = false, err = false;
  friend bool operator==(const Streams&, const Streams&) = default;
};

/// The same for each worker of a node, by local rank. Ranks that the node does not have are without effect.
struct StreamsByRank {
  Streams others;  ///< Of every rank that is not named.
  std::map<std::uint32_t, Streams> ranks;
  [[nodiscard]] Streams of(LocalRank rank) const {
    const auto found = ranks.find(rank.value());
    return found == ranks.end() ? others : found->second;
  }
  friend bool operator==(const StreamsByRank&, const StreamsByRank&) = default;
};

enum class EventLogHandler { null, console, dynamic_rendezvous };  ///< torchrun's: nothing, JSON lines on stderr, nothing
enum class NumaBinding { none, node, socket, exclusive, core_complex };
enum class ExitCodes { elrun, torchrun };  ///< The root cause's, see launcher/README.md; 1 for every failure, 2 for usage
enum class LogFormat { text, json };       ///< Of the launcher's own lines.
enum class HangSign { progress, output };  ///< Whose absence is a hang: a Job's steps and heartbeats; any worker's output

/// Which option, variable or file decided what, for people.
struct Sources {
  std::string nodes, workers, endpoint, node_rank, run;
};

/// A table of values: one field for each thing that an option, a variable or a file can say. Whoever needs some of them takes those, so they
/// are not grouped further.
struct LaunchOptions {
  RoundOptions round;
  std::uint32_t workers = 1;  ///< Of this node; 0: it only coordinates.
  Program program;
  std::optional<Endpoint> endpoint;                    ///< None: a single node, served in this process without gRPC.
  std::string backend = "static";                      ///< As it was called; what follows from it stands in the other fields.
  std::string checkpoint_root;                         ///< Where the job's checkpoints are; empty: not given
  std::string topology;                                ///< "zone/rack/host"; empty: not given
  std::vector<Endpoint> etcd;                          ///< Servers that elect the coordinator among the agents; then there is no endpoint.
  HostRule host_rule = HostRule::if_endpoint_is_here;  ///< With etcd: any agent may be elected, unless `never`.
  bool never_host = false;                             ///< The rule says so by --rdzv_conf is_host=0, and not by a node's number.
  std::int32_t node_rank = -1;                         ///< Orders the ranks of new nodes, and of all nodes of a fixed world; -1: not given.
  RunId run;                                           ///< Empty: the shell draws a random one.
  std::string role = "default";
  std::string local_address;                 ///< Empty: found out.
  std::optional<std::uint16_t> master_port;  ///< MASTER_PORT of the workers, with the static backend; none: a fresh one per generation.
  Timeouts timeouts;
  Access access;  ///< To the rendezvous; of a single node, which has none, without effect.

  StreamsByRank redirects;               ///< These streams go to a file only.
  StreamsByRank tee;                     ///< These go to a file, and line by line with a prefix to elrun's own output.
  std::string log_dir;                   ///< Where those files are; empty: a directory of its own; "/dev/null": no files
  std::string log_line_prefix_template;  ///< Empty: torchrun's `[role local_rank]:`.
  std::optional<std::set<std::uint32_t>> local_ranks_filter;  ///< Only these are shown; none: all
  std::vector<std::string> duplicate_stdout_filters;          ///< Lines that contain one go to filtered_stdout.log as well.
  std::vector<std::string> duplicate_stderr_filters;
  EventLogHandler event_log_handler = EventLogHandler::null;
  std::string event_log;  ///< A file to which events are appended as lines of JSON; empty: none
  LogFormat log_format = LogFormat::text;

  std::vector<int> signals_to_handle{SIGTERM, SIGINT, SIGHUP, SIGQUIT};  ///< Passed on to the workers; then elrun ends.
  ExitCodes exit_codes = ExitCodes::elrun;
  std::optional<std::string> begin_anew{};       ///< The name of a lost checkpoint that a `Job` goes on without: `40@7` or `40`.
  std::optional<NoticeSource> preempt_notice{};  ///< Which says that this node will be taken away; none: nothing is looked at
  Duration hang_timeout{0};                      ///< 0: hangs are not looked for.
  HangSign hang_sign = HangSign::progress;

  bool virtual_local_rank = false;  ///< Each worker sees one device and LOCAL_RANK 0.
  NumaBinding numa_binding = NumaBinding::none;
  AdminOptions side;
  bool dry_run = false;  ///< Print what would be done, start nothing.

  Sources sources;
  std::vector<std::string> notes;  ///< What was understood differently than one might think.
};

/// `elrun store`: the coordinator alone.
struct StoreOptions {
  std::string host = "0.0.0.0";
  std::uint16_t port = endpoint_port_default;
  RunId run;                                   ///< Empty: taken from the first node.
  std::uint32_t nodes_min = 0, nodes_max = 0;  ///< 0: taken from the first node.
  Timeouts timeouts;
  Access access;
  std::string checkpoint_root;
  LogFormat log_format = LogFormat::text;
  std::vector<std::string> notes;
};

/// `elrun status`: what runs on this machine.
struct StatusOptions {
  std::optional<std::int64_t> pid;   ///< Of an agent or of one of its workers; none: all agents
  std::optional<Endpoint> endpoint;  ///< Of one agent's --health_port, instead of those on this machine.
  bool as_json = false;
  Duration timeout = 5s;  ///< For each agent.
};

/// `elrun doctor`: what would fail if these options were used here.
struct DoctorOptions {
  LaunchOptions launch;
  bool has_program = false;  ///< A program was named, so it is looked for too.
};

/// `elrun install DIR`.
struct InstallOptions {
  std::string directory;
  bool replaces_foreign = false;  ///< `--force`: also a torchrun there that is not elrun's.
};

/// `elrun drain`: the agents of this machine are asked to leave, and waited for.
struct DrainOptions {
  std::optional<std::int64_t> pid;  ///< Of an agent or of one of its workers; none: all agents
  Duration timeout = 600s;          ///< Until all have left.
};

/// `elrun ckpt ls | inspect | verify | diff`: what lies under a checkpoint root.
struct CkptOptions {
  enum class Verb : std::uint8_t { ls, inspect, verify, diff };
  Verb verb = Verb::ls;
  std::vector<CheckpointName> names;  ///< One; two of diff.
  bool as_json = false;
  std::optional<ReadingWorld> reads_as{};  ///< `inspect --plan W [--zero Z] [--per_node N]`
  unsigned readers = 0;                    ///< `verify --readers N`; 0: as many as pay.
};

/// `elrun ckptd`: an agent starts it.
struct CkptdOptions {
  LogFormat log_format = LogFormat::text;
};

/// Nothing is to be started: help (0), or everything that is wrong with the command line.
struct Usage {
  int exit_code = 0;
  std::string text;
};

/// What the first word may ask for in place of a program; under the name torchrun there is no such word.
using Parsed = std::variant<LaunchOptions, StoreOptions, StatusOptions, DoctorOptions, InstallOptions, DrainOptions, CkptOptions,
                            ChaosOptions, CkptdOptions, Usage>;

/// What runs beside a job and is no part of it: status, drain, doctor, install, ckpt, chaos, ckptd. Under the name `torchrun` there is none.
[[nodiscard]] bool is_side_command(std::span<const std::string> arguments, std::string_view program_name = "elrun");

/// Parses the arguments after the program's name. Under the name `torchrun`, exit codes are torchrun's.
[[nodiscard]] Parsed parse_command(std::span<const std::string> arguments, const Variables& environment, const Machine& machine,
                                   std::string_view program_name = "elrun");

/// An environment without what is secret in it, for processes that are not elrun: no ELRUN_RDZV_TOKEN, and no token in
/// PET_RDZV_CONF.
[[nodiscard]] Variables without_secrets(Variables environment);

/// `host`, `host:port`, `:port`, `[v6]:port` or a bare v6 address; a host without port gets `port_default`.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t port_default);

}  // namespace elrun::inline v0::launcher
