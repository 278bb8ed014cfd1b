#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "launcher/http/pages.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

template <class Number>
MetricFamily single(std::string name, MetricType type, std::string_view unit, std::string_view help, Number value) {
  return {.name = std::move(name), .type = type, .unit = unit, .help = help, .samples = {{.value = static_cast<double>(value)}}};
}

// A number for each word that a label may have, 0 among them: what has not happened yet is known as well.
template <class Words, class Counts>
std::vector<Sample> by_word(std::string_view label, const Words& words, const Counts& counts) {
  std::vector<Sample> samples;
  for (const auto word : words) {
    const auto found = counts.find(word);
    samples.push_back({{{label, std::string{word_of(word)}}}, found == counts.end() ? 0 : static_cast<double>(found->second)});
  }
  return samples;
}

std::vector<Sample> workers_by_state(const NodeRecord& node) {
  std::map<WorkerRecord::State, std::uint64_t> counts;
  for (const auto& [local, worker] : node.workers) ++counts[worker.state];
  return by_word("state", worker_states, counts);
}

std::vector<Sample> exits(const NodeRecord& node) {
  std::vector<Sample> samples;
  for (const auto& [how, count] : node.worker_exits)
    samples.push_back({{{"code", std::to_string(how.first)}, {"signal", how.second == 0 ? std::string{} : signal_name(how.second)}},
                       static_cast<double>(count)});
  return samples;
}

std::vector<Distribution> recoveries(const NodeRecord& node) {
  std::vector<Distribution> all;
  for (const auto& [cause, histogram] : node.recovery_seconds) all.push_back({{{"cause", std::string{word_of(cause)}}}, histogram});
  return all;
}

std::vector<Sample> by_cause(const TimeByCause& times) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < time_causes; ++i)
    samples.push_back({{{"cause", std::string{word_of(static_cast<TimeCause>(i))}}}, seconds(times[i])});
  return samples;
}

std::vector<Distribution> phases(const NodeRecord& node) {
  constexpr std::string_view prefix = "recovery_";
  std::vector<Distribution> all;
  for (const auto& [cause, histogram] : node.phase_seconds)
    all.push_back({{{"phase", std::string{word_of(cause).substr(prefix.size())}}}, histogram});
  return all;
}

/// Of the ranks that this node has now. A worker on its way to the next world may have another's.
std::vector<Sample> of_last_ranks(const NodeRecord& node, double (*value)(const LastRank&)) {
  std::set<std::uint32_t> ranks;
  for (const auto& [local, worker] : node.workers) ranks.insert(worker.rank);
  std::vector<Sample> samples;
  for (const std::uint32_t rank : ranks) samples.push_back({{{"rank", std::to_string(rank)}}, value(node.ledger.last_ranks().of(rank))});
  return samples;
}

/// Of the generation that runs.
std::vector<Sample> stragglers(const NodeRecord& node) {
  std::vector<Sample> samples;
  if (node.phase != Supervisor::Phase::running) return samples;
  for (const auto& [generation, slow] : node.ledger.stragglers())
    if (generation == node.world.generation.number)
      samples.push_back({{{"rank", std::to_string(slow.rank)}, {"node", printable(slow.node)}, {"device", printable(slow.device)}}, 1});
  return samples;
}

void add_process(std::vector<MetricFamily>& all, const ProcessFacts& p) {
  using enum MetricType;
  all.push_back(single("process_cpu_seconds", counter, "seconds", "Processor time of the agent, its workers not among it", p.cpu_seconds));
  all.push_back(single("process_resident_memory_bytes", gauge, "bytes", "Memory of the agent that is in use", p.resident_bytes));
  all.push_back(single("process_virtual_memory_bytes", gauge, "bytes", "Address space of the agent", p.virtual_bytes));
  all.push_back(single("process_start_time_seconds", gauge, "seconds", "When the agent started, since 1970", p.start_time_seconds));
  all.push_back(single("process_open_fds", gauge, "", "Descriptors that the agent holds", p.descriptors));
  all.push_back(single("process_max_fds", gauge, "", "Descriptors that the agent may hold", p.descriptors_max));
  all.push_back(single("process_threads", gauge, "", "Threads of the agent", p.threads));
}

void add_agent(std::vector<MetricFamily>& all, const AgentSnapshot& snapshot) {
  using enum MetricType;
  const NodeRecord& node = snapshot.node;
  all.push_back({.name = "elrun_build", .type = info, .help = "Version of elrun", .samples = {{{{"version", snapshot.agent.version}}, 1}}});
  all.push_back(single("elrun_up_seconds", gauge, "seconds", "How long this agent has run", seconds(snapshot.now - node.began)));
}

void add_time(std::vector<MetricFamily>& all, const AgentSnapshot& snapshot) {
  using enum MetricType;
  const NodeRecord& node = snapshot.node;
  all.push_back(
      {.name = "elrun_time_seconds",
       .type = counter,
       .unit = "seconds",
       .help = "Wall time of the job as this agent saw it, by what it went into; what is not over yet counts as what it seems to be",
       .samples = by_cause(snapshot.times)});
  all.push_back(single("elrun_time_wall_seconds", gauge, "seconds",
                       "The sum of elrun_time_seconds: until now, or until the last worker ended", seconds(sum_of(snapshot.times))));
  all.push_back(
      single("elrun_incidents", counter, "", "Ends of generations that this agent saw, growth among them", node.ledger.incident_count()));
  all.push_back({.name = "elrun_recovery_phase_seconds",
                 .type = histogram,
                 .unit = "seconds",
                 .help = "What each phase of an incident took, of those that are over",
                 .distributions = phases(node)});
  all.push_back({.name = "elrun_last_rank_steps",
                 .type = counter,
                 .help = "Steps in which this rank finished last",
                 .samples = of_last_ranks(node, [](const LastRank& last) { return static_cast<double>(last.steps); })});
  all.push_back({.name = "elrun_last_rank_seconds",
                 .type = counter,
                 .unit = "seconds",
                 .help = "Time by which this rank finished after the second-to-last, in those steps",
                 .samples = of_last_ranks(node, [](const LastRank& last) { return seconds(last.behind); })});
  all.push_back({.name = "elrun_straggler",
                 .help = "1 for each rank of the running generation that was named as slow, on whichever node it is",
                 .samples = stragglers(node)});
}

void add_world(std::vector<MetricFamily>& all, const AgentSnapshot& snapshot) {
  using enum MetricType;
  const NodeRecord& node = snapshot.node;
  const bool runs = node.phase == Supervisor::Phase::running;
  all.push_back(
      single("elrun_generation", gauge, "", "Number of the newest generation that this node took part in", node.world.generation.number));
  all.push_back({.name = "elrun_nodes",
                 .help = "Nodes of the running generation, as this node was told",
                 .samples = {{{{"state", "active"}}, runs ? static_cast<double>(node.world.seat.nodes) : 0}}});
  all.push_back(single("elrun_nodes_min", gauge, "", "Fewest nodes of a generation", snapshot.agent.round.nodes_min));
  all.push_back(single("elrun_nodes_max", gauge, "", "Most nodes of a generation", snapshot.agent.round.nodes_max));
  all.push_back(
      single("elrun_world_size", gauge, "", "Workers of the running generation on all nodes", runs ? node.world.seat.world_size : 0));
}

void add_workers(std::vector<MetricFamily>& all, const NodeRecord& node) {
  using enum MetricType;
  all.push_back({.name = "elrun_workers", .help = "Workers of this node", .samples = workers_by_state(node)});
  all.push_back({.name = "elrun_worker_restarts",
                 .type = counter,
                 .help = "Workers of this node that were started again, by what ended the generation before",
                 .samples = by_word("cause", cause_labels, node.worker_restarts)});
  all.push_back({.name = "elrun_worker_exits",
                 .type = counter,
                 .help = "Workers of this node that ended, by exit code and signal",
                 .samples = exits(node)});
  all.push_back(single("elrun_restarts", counter, "", "Generations of the job that ended by a failure, as this node was told",
                       node.world.restarts.generations));
}

void add_rendezvous(std::vector<MetricFamily>& all, const AgentSnapshot& snapshot) {
  using enum MetricType;
  const NodeRecord& node = snapshot.node;
  all.push_back({.name = "elrun_rendezvous",
                 .type = counter,
                 .help = "How this node's waits for a world ended",
                 .samples = by_word("result", meetings, node.meetings)});
  all.push_back({.name = "elrun_rendezvous_duration_seconds",
                 .type = histogram,
                 .unit = "seconds",
                 .help = "From joining to a world",
                 .distributions = {{{}, node.meeting_seconds}}});
  all.push_back({.name = "elrun_recovery_duration_seconds",
                 .type = histogram,
                 .unit = "seconds",
                 .help = "From the first sign of a loss to the start of the next generation's workers",
                 .distributions = recoveries(node)});
  all.push_back(single("elrun_is_coordinator", gauge, "", "Whether the coordinator is in this process", snapshot.coordinates ? 1 : 0));
  all.push_back(
      single("elrun_coordinator_connected", gauge, "", "Whether this node is connected to its coordinator", node.connected ? 1 : 0));
  all.push_back(
      single("elrun_coordinator_changes", counter, "", "Coordinators that took the place of an earlier one", node.coordinator_changes));
}

void add_steps(std::vector<MetricFamily>& all, const NodeRecord& node) {
  using enum MetricType;
  all.push_back(single("elrun_steps", counter, "", "Steps that were decided, those done again after a restart among them", node.steps));
  all.push_back({.name = "elrun_step_duration_seconds",
                 .type = histogram,
                 .unit = "seconds",
                 .help = "Between two decided steps of one generation",
                 .distributions = {{{}, node.step_seconds}}});
  if (node.steps > 0)
    all.push_back(single("elrun_last_step_timestamp_seconds", gauge, "seconds", "When the newest step was decided, since 1970",
                         static_cast<double>(node.last_step_wall_ns) / 1e9));
}

void add_checkpoints(std::vector<MetricFamily>& all, const AgentSnapshot& snapshot) {
  using enum MetricType;
  const NodeRecord& node = snapshot.node;
  all.push_back(single("elrun_saves_failed", counter, "", "Checkpoints that could not be saved, as this node's workers said",
                       node.checkpoints.saves_failed));
  all.push_back(single("elrun_saves_left_out", counter, "",
                       "Checkpoints that were not saved because the one before was still being written, as this node's workers said",
                       node.checkpoints.saves_left_out));
  const CheckpointRecord::Parts& parts = node.checkpoints.parts;
  all.push_back(
      {.name = "elrun_checkpoint_parts",
       .type = counter,
       .help =
           "Parts of checkpoints that elrun ckptd of this node was to write: yes, they are on the storage; no, they could not be written",
       .samples = {{{{"vote", "yes"}}, static_cast<double>(parts.written)}, {{{"vote", "no"}}, static_cast<double>(parts.refused)}}});
  all.push_back(
      single("elrun_checkpoint_part_bytes", counter, "bytes", "State in the parts that elrun ckptd of this node has written", parts.bytes));
  if (node.checkpoints.last_failure)
    all.push_back({.name = "elrun_last_save_failure",
                   .type = info,
                   .help = "Why the newest save failed, while none has succeeded since",
                   .samples = {{{{"code", to_string(node.checkpoints.last_failure->code)}}, 1}}});
  if (node.checkpoints.safe_at)
    all.push_back(single("elrun_checkpoint_age_seconds", gauge, "seconds",
                         "Seconds since the newest checkpoint was saved or loaded (else since the start)",
                         seconds(snapshot.now - *node.checkpoints.safe_at)));
}

}  // namespace

std::vector<MetricFamily> metrics(const AgentSnapshot& snapshot) {
  std::vector<MetricFamily> all;
  add_agent(all, snapshot);
  add_time(all, snapshot);
  add_world(all, snapshot);
  add_workers(all, snapshot.node);
  add_rendezvous(all, snapshot);
  add_steps(all, snapshot.node);
  add_checkpoints(all, snapshot);
  add_process(all, snapshot.process);
  return all;
}

}  // namespace elrun::inline v0::launcher
