#pragma once
/// \file The real processes of one history: agents, workers, a coordinator; what is done to them, and how it ended.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/golden/history.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::golden {

/// The training that all runs do.
struct Training {
  std::string text;  ///< What is learned.
  unsigned steps = 0;
};

struct Ending {
  std::string state;  ///< Of the `done` line; empty when none was seen.
  std::string wrong;  ///< What went otherwise than promised; empty: nothing did.
  std::map<Kind, unsigned> happened;
  unsigned generations = 1;
  Wait took{0};
  std::vector<std::string> trace;                            ///< What was done when.
  std::vector<std::pair<std::string, std::string>> outputs;  ///< Who said what.
};

/// Runs a program to its end, with nothing done to it.
[[nodiscard]] Ending run_bare(const Training& training, const Setting& setting);
[[nodiscard]] Ending run_undisturbed(const Training& training, const Setting& setting);
/// Lets the history happen to a job. What a `worker` of it gets killed by is a real signal at a real time: the same history may
/// meet the job elsewhere the next time.
[[nodiscard]] Ending run_history(const Training& training, const History& history);

}  // namespace elrun::golden
