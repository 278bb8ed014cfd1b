#pragma once
/// \file Explorer: all interleavings of a small world, with one fault at any place. Depth first, over copies of the simulation.

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {

/// The one fault of a search.
enum class OneFault : std::uint8_t { none, agent_crash, coordinator_crash, broken_stream, worker_failure };

struct Search {
  std::string_view name;
  OneFault fault = OneFault::none;
  std::uint32_t nodes_min = 2;
  bool returns = false;  ///< A crashed agent is started again at once, while what it left behind is still under way.
  bool jobs = false;     ///< Workers use the store and decide one step; else they are programs that run and end.
};
/// What `--exhaustive` looks at.
inline constexpr auto searches = std::to_array<Search>({
    {"an agent crashes, two go on", OneFault::agent_crash, 2, false, false},
    {"an agent crashes and is started again", OneFault::agent_crash, 3, true, false},
    {"the coordinator crashes, a fresh one answers", OneFault::coordinator_crash, 3, false, false},
    {"a stream breaks", OneFault::broken_stream, 3, false, false},
    {"a worker fails", OneFault::worker_failure, 3, false, false},
});

struct SearchResult {
  std::uint64_t states = 0;   ///< That differ
  std::uint64_t moves = 0;    ///< Events and faults tried
  std::uint64_t ends = 0;     ///< Different ends of the job (or of what is looked at)
  double paths = 0;           ///< Orders of events that lead from the beginning to an end
  std::uint64_t longest = 0;  ///< Events of the longest
  bool whole = true;          ///< Not stopped by `states_max`
  std::optional<Violation> violation;
  std::deque<std::string> trace;  ///< Of the violation
};

class Explorer {
 public:
  explicit Explorer(const Search& search, std::uint64_t states_max = std::numeric_limits<std::uint64_t>::max());
  [[nodiscard]] SearchResult run();

 private:
  struct Move {
    enum class Kind : std::uint8_t { event, crash_during, crash, break_stream, fail } kind = Kind::event;
    std::uint64_t which = 0;    // the event's sequence, the process or the stream
    std::uint32_t actions = 0;  // crash_during: that were still performed
  };

  [[nodiscard]] static Simulation begin(const Search& search, bool traced);
  [[nodiscard]] static std::vector<Move> events(Simulation& at);
  [[nodiscard]] std::vector<Move> faults(const Simulation& at) const;
  static void drop_what_nobody_waits_for(Simulation& at);
  /// Whether there was anything to crash in the middle of.
  bool apply(Simulation& at, const Move& move) const;
  void after_crash(Simulation& at, ProcessId crashed) const;
  double explore(const Simulation& at, bool spent);
  double go(const Simulation& from, const Move& move, bool spent, bool& done);
  [[nodiscard]] std::deque<std::string> trace_of_path() const;

  Search search_;
  std::uint64_t states_max_;
  SearchResult result_;
  std::unordered_map<std::uint64_t, double> paths_;  // by fingerprint: to an end
  std::vector<Move> path_;
};

}  // namespace elrun::sim
