#pragma once
/// \file What a job runs on and what happens to it, as values: cells of the matrix, and histories drawn from seeds.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/spawn.hpp"

namespace elrun::golden {

using test::Wait;

/// What may stand in a program's command line for one of its options, the choice of which must not move a bit of its state:
/// `--zero 0` or `--zero 1`; nothing or `--recompute`.
using Choice = std::vector<std::string>;
using Dimension = std::vector<Choice>;

/// Of the options that are known to be such, those that a program's help offers, as `--name a|b|c`, `--name 0..3` or `--name` alone.
[[nodiscard]] std::vector<Dimension> dimensions_in(const std::string& help);

/// How a job is run.
struct Setting {
  unsigned agents = 1, workers = 1, threads = 1;  ///< Workers of each agent, threads of each worker.
  unsigned fewer = 0;                             ///< So many fewer workers of the second agent.
  std::string transport = "auto";                 ///< ELRUN_TRANSPORT.
  std::vector<Choice> options;
  unsigned checkpoint_every = 0;   ///< 0: without checkpoints.
  bool coordinator_apart = false;  ///< `elrun store`; otherwise an agent of two is the coordinator, or one is alone.
};

/// Every cell of the matrix, in a fixed order.
[[nodiscard]] std::vector<Setting> matrix(const std::vector<Dimension>& dimensions);

enum class Kind { worker_killed, workers_killed, worker_paused, agent_killed, agent_drained, agent_joins, coordinator_killed };
inline constexpr Kind kinds[] = {Kind::worker_killed, Kind::workers_killed, Kind::worker_paused,     Kind::agent_killed,
                                 Kind::agent_drained, Kind::agent_joins,    Kind::coordinator_killed};
[[nodiscard]] std::string to_string(Kind kind);

struct Event {
  Kind kind = Kind::worker_killed;
  unsigned step = 0;       ///< Once this step was seen decided, and the event before this one has happened,
  Wait after{0};           ///< and so long after that.
  std::uint64_t whom = 0;  ///< Drawn: who of those that live then.
  bool comes_back = true;  ///< An agent; a coordinator always does, at the same name.
  Wait away{0};            ///< How long it is away, or paused.
};

struct History {
  std::uint64_t seed = 0;
  Setting setting;
  std::vector<Event> events;
};

/// The history of a seed: for a job of so many steps.
[[nodiscard]] History draw(std::uint64_t seed, const std::vector<Dimension>& dimensions, unsigned steps);

[[nodiscard]] std::string describe(const Setting& setting);
[[nodiscard]] std::string describe(const Event& event);

}  // namespace elrun::golden
