#pragma once
/// \file The words after `elrun chaos`. A core: the command itself is in chaos.hpp.

#include <cstdint>
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

/// `elrun chaos`: a job, undisturbed and then with failures. A table of values.
struct ChaosOptions {
  std::optional<Duration> mtbf{};        ///< None: the plan is in a file.
  std::string plan_file{};               ///< Empty: it is drawn.
  Duration time = 60s;                   ///< Faults are drawn for so long.
  std::uint64_t seed = 1;                ///< Of the plan.
  std::vector<FaultKind> kinds{};        ///< That are drawn; empty: all that can run here.
  FaultWorld world{};                    ///< Nodes that are started here, and workers of each.
  std::vector<std::string> agent{};      ///< Options of elrun for each agent, as they were given.
  std::vector<std::string> program{};    ///< With its arguments.
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
};

/// `environment` is what elrun's own options may come from; see `chaos_environment`.
[[nodiscard]] std::variant<ChaosOptions, Usage> parse_chaos(std::span<const std::string> words, const Machine& machine);

/// What stands in a word for what is known when it is started.
struct Places {
  std::string run;                                 ///< {run}: the run's own directory
  std::string disk;                                ///< {disk}: a small disk of the run
  std::uint32_t node = 0, nodes = 1, workers = 1;  ///< {node}, {nnodes}, {nproc}
  std::string host;                                ///< {host}: where the nodes meet, and
  std::uint16_t port = 0;                          ///< {port}
};
[[nodiscard]] std::string filled_in(std::string_view word, const Places& places);

/// The words of the process that is node `places.node`: under elrun `elrun`, its agent, the path of this program.
[[nodiscard]] std::vector<std::string> node_command(const ChaosOptions& options, const Places& places, const std::string& elrun);

/// A text to words, at blanks; "..." and '...' keep theirs. Nothing where a quotation mark has no end.
[[nodiscard]] std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace elrun::inline v0::launcher
