#pragma once
/// \file Core: what two runs of a job come to, one undisturbed and one with faults: facts in, a verdict and its texts out.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/chaos/fault_plan.hpp"
#include "launcher/chaos/final_states.hpp"

namespace elrun::inline v0::launcher {

/// How many lines of one step there are while nothing is done again: of the node that says it most often, and of all nodes together. At least 1.
struct StepVoices {
  std::uint32_t of_node = 1, of_all = 1;
};

/// When the program said its steps. Pure: lines with their times in. Where several ranks say each step, the first line of a step counts, and the others are its echo.
class StepTimeline {
 public:
  /// `mark`: what stands before the number of a step in a line, as `step=`. Empty: steps are not looked for. `voices`: a step that is said more often was gone back to.
  StepTimeline(std::string mark, StepVoices voices) : mark_{std::move(mark)}, voices_{voices} {}
  /// `is_final_state`: it says the final state, and with it perhaps the last step once more.
  void saw(std::string_view line, std::uint32_t node, Duration at, bool is_final_state = false);

  [[nodiscard]] std::optional<std::uint64_t> highest() const { return highest_; }
  /// That count, so without echoes.
  [[nodiscard]] std::uint64_t lines() const { return static_cast<std::uint64_t>(at_.size()); }
  [[nodiscard]] std::uint64_t again() const {
    return again_;
  }  ///< Steps that had been said before, or one above them, and were gone back to.
  [[nodiscard]] StepVoices voices_heard() const { return heard_; }
  /// From the first line to the last.
  [[nodiscard]] Duration span() const { return at_.empty() ? Duration{0} : at_.back() - at_.front(); }
  /// The longest part of [from, until) in which no line came, between the first line of all and the last; nothing without such a part.
  [[nodiscard]] std::optional<Duration> pause(Duration from, Duration until) const;
  /// Of the times between two lines.
  [[nodiscard]] std::optional<Duration> median_gap() const;

  static constexpr std::size_t lines_max = 4'000'000;  ///< What comes later is not remembered.

 private:
  using Times = std::map<std::uint64_t, std::uint32_t>;  // how often a step was said since the job last went back
  [[nodiscard]] static std::uint32_t note(Times& said, std::uint64_t step);
  void count(std::uint64_t step, Duration at);

  static constexpr std::size_t steps_kept = 4096;  // of each node; an older one that is said was gone back to
  std::string mark_;
  StepVoices voices_, heard_;
  std::optional<std::uint64_t> highest_, newest_;  // of all, and since the job last went back
  std::uint64_t again_ = 0;
  std::map<std::uint32_t, Times> by_node_;
  Times by_all_;
  std::vector<Duration> at_;  // of each line that counts, in order
};

/// Where the time of a run went, as the agent with the longest account of it said: its line `elrun.time`.
struct ReportedTimes {
  std::uint32_t node = 0;  ///< Of that agent.
  double wall_seconds = 0;
  std::vector<std::pair<std::string, double>> by_cause{};  ///< In the ledger's order; those that are not 0.
  std::uint64_t incidents = 0;
  nlohmann::json newest_incidents = nlohmann::json::array();
};
/// Of the newest incidents, how long each took from its first sign to the first step after it; sorted. Those without both are left out.
[[nodiscard]] std::vector<Duration> recovery_times(const ReportedTimes& said);
/// Of event logs, one text for each node; nothing where no agent said any. What cannot be read is passed over.
[[nodiscard]] std::optional<ReportedTimes> reported_times(std::span<const std::string> event_logs);

/// How a node's launcher ended by itself.
struct NodeEnd {
  std::uint32_t node = 0;
  int exit_code = 0;
  Duration at{};  ///< Since the run began.
  bool was_away =
      false;  ///< When the first node ended with success, the plan had taken it away or cut its network, and it did not work for the job again.
};
/// The nodes that make a run a failure, the first that ended first: all that did not end with success, but for one that was away when another ended with success, and that ended
/// after that. It may have come back to a job that was over.
[[nodiscard]] std::vector<NodeEnd> nodes_that_failed(std::span<const NodeEnd> ends);

/// "process 12 and process 13 have not ended within 5.0 s of SIGKILL, ...", by their numbers; empty for none.
[[nodiscard]] std::string words_of_remaining(std::span<const int> processes, Duration limit);

struct RunFacts {
  bool in_time = true;                 ///< False: it was ended, because it took longer than its limit.
  std::optional<std::string> unfit{};  ///< Why the run was ended and says nothing: the job is not what the options say.
  int exit_code = 0;                   ///< Of the first of the nodes that failed; 0: none did.
  std::vector<NodeEnd> failed{};       ///< As `nodes_that_failed` has them.
  bool some_node_succeeded = false;
  bool was_away = false;  ///< Of an own node: at its end the plan had taken it away, and it did not work for the job again.
  Duration wall{};        ///< From the start of the first launcher to the end of the first that ended with success; of none, of the last.
  std::vector<ReportedState> states{};  ///< The final ones that the program said: more than one where ranks differ.
  bool states_of_killed = false;        ///< They were said by workers that were killed after that, and by no other.
  std::optional<std::uint64_t> step{};  ///< The highest that the program said.
  std::uint64_t step_lines = 0, steps_again = 0;
  StepVoices step_voices{};
  Duration step_span{};                ///< From the first to the last line with a step.
  std::optional<Duration> step_gap{};  ///< The median of the times between two.
  std::optional<ReportedTimes> times{};
  std::vector<std::string> notes{};  ///< What was odd, in words.
  [[nodiscard]] bool succeeded() const { return in_time && !unfit && exit_code == 0; }
};

/// What became of one fault of the plan.
struct FaultRecord {
  Fault fault{};
  std::optional<Duration> began{}, ended{};  ///< Since the plan's time 0; nothing: it did not come to that.
  std::optional<Duration> pause{};           ///< The longest time without a line of a step, from its beginning to the next fault's.
  std::string words{};                       ///< What was hit, or why it was left out.
  bool of_others = false;                    ///< It is another `elrun chaos`'s to make, which has that node.
  bool came = false;                         ///< Of those: its time came.
};

/// The final checkpoints of both runs.
struct CheckpointsCompared {
  enum class Outcome : std::uint8_t { not_asked, equal, different, impossible };
  Outcome outcome = Outcome::not_asked;
  std::string words{};
};

/// Exit codes of `elrun chaos` beyond those of all commands.
namespace chaos_code {
constexpr int equal = 0, different = 1, did_not_finish = 2, unknown = 3;
}

struct Verdict {
  int exit_code = chaos_code::unknown;
  std::string words;
  std::optional<double> wall_share{};  ///< Undisturbed time / disturbed time, of the whole runs.
  std::optional<double> step_share{};  ///< The same, from the first to the last line with a step.
};
/// Without `disturbed` it is the undisturbed run that failed. With `own_node` all is known of that node alone:
///  * that its workers said no state is no gap, but for node 0, where rank 0 is at the beginning: the node whose workers say one has the verdict;
///  * that they said one in one of the runs only is none either where the checkpoints are equal;
///  * a node that was away when it failed may have come back to a job that was over: only equal checkpoints can tell.
[[nodiscard]] Verdict judge(const RunFacts& reference, const std::optional<RunFacts>& disturbed, std::span<const FaultRecord> records,
                            const CheckpointsCompared& checkpoints, std::optional<std::uint32_t> own_node = {});

/// All of a rehearsal, for its reports.
struct ChaosReport {
  std::string work;                         ///< The directory with logs and the plan.
  std::string job;                          ///< "2 nodes of 2 workers under elrun".
  std::optional<std::uint32_t> own_node{};  ///< That all is known of; none: of all nodes.
  std::vector<std::string> left_out{};      ///< Kinds that were not drawn, and why.
  RunFacts reference{};
  std::optional<RunFacts> disturbed{};  ///< None: the undisturbed run failed, so there was no other.
  std::vector<FaultRecord> records{};
  CheckpointsCompared checkpoints{};
  Verdict verdict{};
};
[[nodiscard]] std::string report_text(const ChaosReport& report);
/// What is planned, before anything of it was done.
[[nodiscard]] nlohmann::json plan_json(const std::string& job, std::span<const Fault> plan, std::span<const std::string> left_out);
[[nodiscard]] nlohmann::json report_json(const ChaosReport& report);

}  // namespace elrun::inline v0::launcher
