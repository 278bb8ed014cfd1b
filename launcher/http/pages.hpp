#pragma once
/// \file Pages: what the admin endpoints show, made from a node's job history. Values in, text out.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>

#include "launcher/http/exposition.hpp"
#include "launcher/http/http.hpp"
#include "launcher/http/job_history.hpp"

namespace elrun::inline v0::launcher {

/// What does not change while the agent lives.
struct AgentIdentity {
  std::string version;
  RunId run;
  NodeId node;
  std::int64_t pid = 0;
  std::string program;      ///< What its workers run, without arguments.
  std::string coordinator;  ///< For people: "node0:29400", or "this process".
  RoundOptions round;
};

/// What the system says about the agent's own process.
struct ProcessFacts {
  double cpu_seconds = 0, start_time_seconds = 0;
  std::uint64_t resident_bytes = 0, virtual_bytes = 0, descriptors = 0, descriptors_max = 0, threads = 0;
};

/// One look at an agent.
struct AgentSnapshot {
  const AgentIdentity& agent;
  const NodeRecord& node;
  bool coordinates = false;  ///< The coordinator is in this process.
  ProcessFacts process;
  Instant now{};
  std::int64_t wall_ns = 0;
  TimeByCause times{};  ///< For metrics: of the ledger up to `now`, as counters (SteadyTimes).
};

[[nodiscard]] std::vector<MetricFamily> metrics(const AgentSnapshot& snapshot);

/// For programs and people: a JSON object.
[[nodiscard]] std::string status_page(const AgentSnapshot& snapshot);
/// Such an object, from a process that is not trusted, in a few lines for people.
[[nodiscard]] Result<std::string> status_for_people(std::string_view json);
/// One document of several such objects, and of the agents that gave none: {"agents": [...], "problems": [...]}. What is no
/// such object is left out.
[[nodiscard]] std::string status_document(std::span<const std::string> agents, std::span<const std::string> problems);
/// The agent's and its workers' process numbers, from such an object.
[[nodiscard]] std::vector<std::int64_t> processes_in(std::string_view json);

/// Who answered, and whether it is on its way out already.
struct AgentAnswer {
  std::int64_t pid = 0;
  std::string run, node, phase;
  bool leaving = false;
};
/// Of such an object; nothing when it is none.
[[nodiscard]] std::optional<AgentAnswer> agent_answer(std::string_view json);

/// The page that a request asks for. That there is an answer shows that the loop turns, and that the agent listens for
/// workers: requests are answered on the agent's one thread, and not before it has its place to meet the others.
[[nodiscard]] HttpReply page_for(const HttpRequest& request, const AgentSnapshot& snapshot);

}  // namespace elrun::inline v0::launcher
