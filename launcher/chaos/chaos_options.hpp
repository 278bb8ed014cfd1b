#pragma once
/// \file The words after `elrun chaos`. A core: the command itself is in chaos.hpp.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/chaos/fault_plan.hpp"

namespace elrun::inline v0::launcher {

struct Machine;
struct Usage;
using Variables = std::map<std::string, std::string, std::less<>>;

/// `elrun chaos`: a job, undisturbed and then with failures. A table of values.
struct ChaosOptions {
  std::optional<Duration> mtbf{};  ///< None: the plan is in a file.
  std::string plan_file{};         ///< Empty: it is drawn.
  Duration time = 60s;             ///< Faults are drawn for so long.
  std::uint64_t seed = 1;          ///< Of the plan.
  std::vector<FaultKind> kinds{};  ///< That are drawn; empty: all that can run here.
  FaultWorld world{};              ///< All nodes of the job, and workers of each.
  std::optional<std::uint32_t>
      own_node{};         ///< Only this node is started here, and each other one by its own `elrun chaos`. Nothing: all are started here.
  std::string meeting{};  ///< With own_node: where the nodes meet, and what says so. For people.
  std::uint16_t endpoint_port = 0;     ///< With own_node: where the rendezvous is served; 0: etcd elects who does, at any port.
  bool never_host = false;             ///< With own_node: no agent serves the rendezvous (--rdzv_conf is_host=0), but another process does.
  std::string run_id{};                ///< With own_node: what the ids of both runs begin with; see `id_of_plan`.
  std::vector<std::string> agent{};    ///< Options of elrun for each agent, as they were given.
  std::vector<std::string> program{};  ///< With its arguments.
  std::vector<std::string> launcher{};   ///< Another launcher with its options; empty: elrun.
  std::string work{};                    ///< Empty: a new directory in $TMPDIR or /tmp.
  std::string checkpoint_root{};         ///< Of the final checkpoints that are compared; empty: none are.
  std::string state_mark = "state=";     ///< What stands before the final state in the program's output.
  std::string step_mark = "step=";       ///< What stands before a step's number.
  Duration limit{0};                     ///< Of the disturbed run; 0: ten times the undisturbed one and two minutes.
  std::uint64_t disk_bytes = 256 << 20;  ///< Of the disk that {disk} names.
  bool has_store = false;                ///< The rendezvous is served by `elrun store`.
  bool gives_restarts = true;            ///< No --max_restarts was given, so that each fault may cost one.
  bool gives_prefixes = true;            ///< Nothing of where output goes was given, so lines get a prefix that names their worker.
  std::string rendezvous_conf{};         ///< As it was given.
  std::string role{};                    ///< Of the workers, as elrun names it in front of their lines; empty: not known.
  bool as_json = false;
  bool dry_run = false;  ///< The plan is shown, nothing is started.

  /// Whether a word of the program, its launcher or its agents has this in it: "{disk}".
  [[nodiscard]] bool mentions(std::string_view place) const;
  /// Nodes that are started here: from `first_node`, so many.
  [[nodiscard]] std::uint32_t first_node() const { return own_node.value_or(0); }
  [[nodiscard]] std::uint32_t nodes_here() const { return own_node ? 1 : world.nodes; }
  /// The directory that {disk} stands for, in that of a run: of this node alone, where others may share the run's.
  [[nodiscard]] std::string disk_in(const std::string& run) const;
};

/// Where the words or `environment` name a place at which elrun meets other nodes, and there are several, the options have an `own_node`. Else
/// the environment does not count: all nodes are started here, whatever it says.
[[nodiscard]] std::variant<ChaosOptions, Usage> parse_chaos(std::span<const std::string> words, const Variables& environment,
                                                            const Machine& machine);

/// An id that nodes with another plan, or with a plan for another world, do not have: they never meet.
[[nodiscard]] std::string id_of_plan(const std::string& run_id, std::span<const Fault> plan, const FaultWorld& world);

/// What stands in a word for what is known when it is started.
struct Places {
  std::string run;                                 ///< {run}: the run's own directory
  std::string disk;                                ///< {disk}: a small disk of the run
  std::uint32_t node = 0, nodes = 1, workers = 1;  ///< {node}, {nnodes}, {nproc}
  std::string host;                                ///< {host}: where the nodes meet, and
  std::uint16_t port = 0;                          ///< {port}
  std::string run_name;                            ///< "undisturbed": with `own_node`, part of the run's id
};
[[nodiscard]] std::string filled_in(std::string_view word, const Places& places);

/// The words of the process that is node `places.node`: under elrun `elrun`, its agent, the path of this program.
[[nodiscard]] std::vector<std::string> node_command(const ChaosOptions& options, const Places& places, const std::string& elrun);

/// A text to words, at blanks; "..." and '...' keep theirs. Nothing where a quotation mark has no end.
[[nodiscard]] std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace elrun::inline v0::launcher
