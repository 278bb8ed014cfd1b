#pragma once
/// \file A node whose supervisor and job history see the same.

#include <cstdint>
#include <string>
#include <utility>

#include "launcher/http/job_history.hpp"
#include "launcher/http/pages.hpp"
#include "launcher/report/steady_times.hpp"

namespace elrun::test::history {

using namespace elrun::launcher;

inline Generation generation(std::uint64_t number, std::uint64_t lineage = 1) { return {number, {{lineage, lineage}}}; }

inline World world(std::uint64_t number, std::uint64_t lineage = 1) {
  World w;
  w.generation = generation(number, lineage);
  w.seat = {.group_rank = 1, .base_rank = 2, .nodes = 2, .world_size = 4};
  w.restarts.generations = static_cast<std::uint32_t>(number - 1);
  return w;
}

// A node of two workers whose supervisor and job history see the same.
class Node {
 public:
  Node() { on(Started{}); }
  void on(const launcher::Event& event) {
    const auto actions = supervisor_.on(event, now);
    history_.saw({event, actions, supervisor_, now, now.time_since_epoch().count()});
  }
  void hear(CoordinatorMessage m) { on(FromCoordinator{std::move(m)}); }
  void begin(std::uint64_t number, std::uint64_t lineage = 1) {
    hear(world(number, lineage));
    for (const std::uint32_t i : {0u, 1u}) on(WorkerStarted{LocalRank{i}, 100 * static_cast<std::int64_t>(number) + i});
  }
  void end(std::uint32_t worker, Ending ending) { on(WorkerEnded{LocalRank{worker}, ending}); }
  void pass(Duration time) { now += time; }
  [[nodiscard]] const NodeRecord& record() const { return history_.record(); }
  [[nodiscard]] AgentSnapshot snapshot() const {
    return {identity,
            record(),
            true,
            {.cpu_seconds = 0.5, .descriptors = 7},
            now,
            now.time_since_epoch().count(),
            times_.look(record().ledger.totals(now))};
  }
  [[nodiscard]] std::string metrics_text() const { return expose(metrics(snapshot()), Exposition::prometheus); }

  Instant now{1000s};
  AgentIdentity identity{.version = "1.2.3",
                         .run = RunId{"job"},
                         .node = NodeId{"n"},
                         .pid = 77,
                         .program = "train.py",
                         .coordinator = "host:1",
                         .round = {.nodes_min = 1, .nodes_max = 3}};

 private:
  Supervisor supervisor_{{.workers = 2, .run = RunId{"job"}, .node = NodeId{"n"}, .coordinator = "host:1"}};
  JobHistory history_{now};
  mutable SteadyTimes times_;
};

inline const Failure worker_killed{Code::peer_lost, Remedy::rejoin, "worker 2 ended by signal 9", Rank{2}};
inline const Failure node_lost{Code::peer_lost, Remedy::rejoin, "node m is lost"};
inline const Failure grown{Code::generation_over, Remedy::rejoin, "the world grows by n"};

inline bool has(const std::string& text, const std::string& line) { return text.find(line) != std::string::npos; }

}  // namespace elrun::test::history
