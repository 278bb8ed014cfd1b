#pragma once
/// \file Core: the final states of a run, and which ranks said them: lines of its nodes in, states out.
///
/// Of each speaker the last state counts: of a rank, where a node has one worker only or its lines name the worker (`[default1]: `, as `--tee` makes them); else of a node. The
/// lines of a node whose workers cannot be told apart count all that are of its newest step, for they may be of different ranks. Where a line with a state has a step, too, states
/// of earlier steps than the newest of the run are not final: who said them has been lost since, or another rank prints now.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/chaos/fault_plan.hpp"

namespace elrun::inline v0::launcher {

/// The word after the last `mark` in `line`, up to a blank or a quote, without a comma, semicolon, bracket or full stop at its end. Where it opens a bracket, as "[0.1, 0.2]" or
/// "tensor(0.1, dtype=float64)", it goes on until that is closed, blanks and quotes included. Nothing without one, for a bracket that is not closed in this line, and for one that is
/// too long to be compared. A mark that begins with a letter does not count in the middle of a longer name.
[[nodiscard]] std::optional<std::string> word_after(std::string_view line, std::string_view mark);
/// The number there. Nothing without one.
[[nodiscard]] std::optional<std::uint64_t> number_after(std::string_view line, std::string_view mark);

/// The worker that a line's prefix names, `[ROLE N]: ` without the blank. Nothing: it names none, or one of more than `workers`. `role`: what the role is; empty: it is not known, and
/// taken to have no digit at its end.
[[nodiscard]] std::optional<std::uint32_t> worker_of(std::string_view line, std::uint32_t workers, std::string_view role = {});

/// One state, and all that said it last.
struct ReportedState {
  std::string state;
  std::vector<std::string>
      who{};  ///< "rank 2" as ranks are at the beginning, or "node 1" where its workers cannot be told apart; in order.
  friend bool operator==(const ReportedState&, const ReportedState&) = default;
};
/// "a (rank 0 and rank 1), b (rank 2)"; of a single state the word alone. For people.
[[nodiscard]] std::string in_words(const std::vector<ReportedState>& states);

class FinalStates {
 public:
  /// Marks and role as in ChaosOptions.
  FinalStates(const FaultWorld& world, std::string state_mark, std::string step_mark, std::string role = {})
      : world_{world}, state_mark_{std::move(state_mark)}, step_mark_{std::move(step_mark)}, role_{std::move(role)} {}

  /// A line of that node's output. True: it has a state.
  bool saw(std::string_view line, std::uint32_t node);
  /// A worker was killed: what it said is not final, for another one goes on in its place. It counts only where nobody says any state after that: the job was over.
  void lost(std::uint32_t node, std::uint32_t local_rank);
  /// The same of all workers of a node.
  void lost(std::uint32_t node);

  /// One for each state, in the order of the speakers; empty: none was said.
  [[nodiscard]] std::vector<ReportedState> states() const;
  /// All of them were killed after they had said it, and nobody has said any state since.
  [[nodiscard]] bool are_of_killed() const { return reported_.empty() && !of_killed_.empty(); }

  static constexpr std::size_t states_max = 8;  ///< Of one speaker; further ones are not remembered.

 private:
  /// A node, and a worker of it; `all_workers` where that is not known.
  using Speaker = std::pair<std::uint32_t, std::uint32_t>;
  static constexpr std::uint32_t all_workers = ~std::uint32_t{0};
  struct Said {
    std::optional<std::uint64_t> step{};  // that stood in the same line
    std::vector<std::string> states{};    // different ones; of a single worker one
  };
  [[nodiscard]] std::string name_of(const Speaker& speaker) const;
  FaultWorld world_;
  std::string state_mark_, step_mark_, role_;
  std::map<Speaker, Said> reported_, of_killed_;
};

}  // namespace elrun::inline v0::launcher
