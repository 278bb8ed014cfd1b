#include "launcher/commands/plan.hpp"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/report/endings.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Json = nlohmann::ordered_json;

constexpr LocalRank first_worker{0};

// A number and how it came about; null for what is not decided by options.
Json sourced(Json what, const std::string& from) { return {{"value", std::move(what)}, {"from", from.empty() ? "default" : from}}; }

std::string host_and_port(const Endpoint& e) {
  return e.host.find(':') != std::string::npos ? fmt::format("[{}]:{}", e.host, e.port) : fmt::format("{}:{}", e.host, e.port);
}

Json meeting(const LaunchOptions& o) {
  if (!o.endpoint && o.etcd.empty()) {
    Json alone{{"served_by", "this process, for this node alone"}};
    if (o.master_port) alone["master_port_of_workers"] = *o.master_port;
    return alone;
  }
  Json json{{"backend", o.backend}};
  if (!o.etcd.empty()) {
    json["served_by"] = o.host_rule == HostRule::never ? "another node, elected through etcd" : "whichever node is elected through etcd";
    for (const Endpoint& server : o.etcd) json["etcd"].push_back(host_and_port(server));
    json["from"] = o.sources.endpoint;
  } else {
    json["served_by"] = o.host_rule == HostRule::always  ? "this node"
                        : o.host_rule == HostRule::never ? "another node"
                                                         : "the node to which the endpoint leads";
    json["endpoint"] = host_and_port(*o.endpoint);
    json["from"] = o.sources.endpoint;
  }
  if (o.master_port) json["master_port_of_workers"] = *o.master_port;
  json["address_of_this_node"] = o.local_address.empty() ? Json("found out") : Json(o.local_address);
  json["tls"] = o.access.has_tls();
  json["token"] = o.access.has_token();
  return json;
}

const char* name_of(Program::Kind kind) {
  switch (kind) {
    case Program::Kind::script: return "Python script";
    case Program::Kind::module: return "Python module";
    case Program::Kind::executable: return "executable";
    case Program::Kind::run_path: return "Python file, by runpy";
  }
  return "";
}

const char* name_of(NumaBinding how) {
  switch (how) {
    case NumaBinding::none: return "none";
    case NumaBinding::node: return "node";
    case NumaBinding::socket: return "socket";
    case NumaBinding::exclusive: return "exclusive";
    case NumaBinding::core_complex: return "core-complex";
  }
  return "";
}

Json program_plan(const LaunchOptions& o, const std::variant<Command, NoCommand>& command) {
  Json json{{"kind", name_of(o.program.kind)}};
  if (const auto* none = std::get_if<NoCommand>(&command)) {
    json["cannot_start"] = none->why;
    json["exit_code"] = none->exit_code;
    return json;
  }
  json["path"] = std::get<Command>(command).path;
  if (!std::get<Command>(command).warning.empty()) json["warning"] = std::get<Command>(command).warning;
  json["arguments_of_local_rank_0"] = worker_arguments(std::get<Command>(command), o.program, first_worker);
  return json;
}

// What any two generations agree on does not depend on the generation.
Json environment_of_first_worker(const LaunchOptions& o, const Variables& own) {
  Variables kept;  // what elrun leaves as it is, or chooses from
  for (const char* name : {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES"})
    if (const auto found = own.find(name); found != own.end()) kept.insert(*found);
  const auto in_world = [&](std::uint32_t number) {
    World world;
    world.generation.number = number;
    world.seat = {.group_rank = number, .base_rank = number, .nodes = number, .world_size = number};
    world.restarts.generations = number;
    world.address = world.master_address = fmt::format("address {}", number);
    world.master_port = static_cast<std::uint16_t>(number);
    const std::string name = fmt::format("name {}", number);
    return worker_environment(kept, {.options = o,
                                     .world = world,
                                     .run = o.run.value().empty() ? RunId{name} : o.run,
                                     .node = NodeId{name},
                                     .local_rank = first_worker,
                                     .node_restarts = number,
                                     .socket = name,
                                     .place = first_worker.value(),
                                     .error_file = name});
  };
  const Variables one = in_world(1), other = in_world(2);
  Json json = Json::object();
  for (const auto& [name, value] : one)
    if (const auto found = other.find(name); found != other.end() && found->second == value) json[name] = value;
  return json;
}

Json streams(const StreamsByRank& by_rank) {
  const auto digit = [](Streams s) { return (s.out ? 1 : 0) + (s.err ? 2 : 0); };
  constexpr const char* names[] = {"nothing", "stdout", "stderr", "both"};
  if (by_rank.ranks.empty()) return names[digit(by_rank.others)];
  Json json{{"others", names[digit(by_rank.others)]}};
  for (const auto& [rank, which] : by_rank.ranks) json[std::to_string(rank)] = names[digit(which)];
  return json;
}

Json logs(const LaunchOptions& o) {
  Json json{{"redirects", streams(o.redirects)},
            {"tee", streams(o.tee)},
            {"directory", o.log_dir.empty() ? Json() : Json(o.log_dir)},
            {"prefix", o.log_line_prefix_template.empty() ? "[${role_name}${local_rank}]:" : o.log_line_prefix_template},
            {"shown_local_ranks", o.local_ranks_filter ? Json(*o.local_ranks_filter) : Json("all")}};
  if (!o.duplicate_stdout_filters.empty()) json["duplicate_stdout_filters"] = o.duplicate_stdout_filters;
  if (!o.duplicate_stderr_filters.empty()) json["duplicate_stderr_filters"] = o.duplicate_stderr_filters;
  json["format"] = o.log_format == LogFormat::json ? "json" : "text";
  if (!o.event_log.empty()) json["event_log"] = o.event_log;
  json["events_on_stderr"] = o.event_log_handler == EventLogHandler::console;
  return json;
}

Json failure_plan(const LaunchOptions& o) {
  std::vector<std::string> signals;
  for (const int number : o.signals_to_handle) signals.push_back(signal_name(number));
  Json json{{"restarts", o.round.max_restarts >= 0 ? Json(o.round.max_restarts) : Json("0; 3 without progress for a Job of libelrun")},
            {"signals_passed_on", signals},
            {"exit_codes", o.exit_codes == ExitCodes::torchrun ? "torchrun" : "elrun"}};
  if (o.hang_timeout > Duration{0})
    json["hang"] = {{"seconds", seconds(o.hang_timeout)}, {"sign", o.hang_sign == HangSign::output ? "output" : "progress"}};
  if (o.preempt_notice) json["preempt_notice"] = to_string(*o.preempt_notice);
  const Timeouts& t = o.timeouts;
  json["seconds"] = {{"join", seconds(t.join)},
                     {"last_call", seconds(t.last_call)},
                     {"heartbeat", seconds(t.heartbeat)},
                     {"node_is_lost", seconds(t.heartbeat_limit)},
                     {"coordinator_grace", seconds(t.coordinator_grace)},
                     {"between_signal_and_kill", seconds(t.stop_grace)}};
  return json;
}

}  // namespace

std::string plan_text(const LaunchOptions& o, const Variables& environment, const std::variant<Command, NoCommand>& command) {
  Json workers = sourced(o.workers, o.sources.workers);
  if (o.virtual_local_rank) workers["virtual_local_rank"] = true;
  if (o.numa_binding != NumaBinding::none) workers["cpus_near_gpu_by"] = name_of(o.numa_binding);
  const Json plan{
      {"nodes", {{"min", o.round.nodes_min}, {"max", o.round.nodes_max}, {"from", o.sources.nodes}}},
      {"workers", workers},
      {"meeting", meeting(o)},
      {"run_id", sourced(o.run.value().empty() ? Json() : Json(o.run.value()),
                         o.run.value().empty() ? "a random one for each start" : o.sources.run)},
      {"node_rank", sourced(o.node_rank >= 0 ? Json(o.node_rank) : Json(), o.node_rank >= 0 ? o.sources.node_rank : "none is needed")},
      {"program", program_plan(o, command)},
      {"environment_of_local_rank_0", environment_of_first_worker(o, environment)},
      {"logs", logs(o)},
      {"failures", failure_plan(o)},
      {"notes", o.notes}};
  // What is no UTF-8 on the command line is replaced rather than refused: this is for reading.
  return plan.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace elrun::inline v0::launcher
