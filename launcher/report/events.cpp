#include "launcher/report/events.hpp"

#include <nlohmann/json.hpp>

#include "launcher/report/ledger_json.hpp"

namespace elrun::inline v0::launcher {
namespace {
using Json = nlohmann::ordered_json;
constexpr auto replace = Json::error_handler_t::replace;  // a name need not be UTF-8
}  // namespace

std::string event_line(const EventSource& source, const WorkerEvent& event) {
  // Text within the JSON, and of a worker each value in a list: so it is read elsewhere.
  Json details{{"group_world_size", event.nodes}, {"entry_point", source.entry_point}};
  if (event.worker) {
    details["local_rank"] = {event.worker->local_rank};
    details["role_rank"] = {event.worker->rank};
    details["role_world_size"] = {event.world_size};
    if (event.worker->exit_code) details["exit_code"] = {*event.worker->exit_code};
    details["worker_pid"] = {event.worker->pid};
  }
  Json metadata{{"run_id", source.run.value()},
                {"global_rank", event.worker ? Json(event.worker->rank) : Json()},
                {"group_rank", event.group_rank},
                {"worker_id", event.worker ? Json(std::to_string(event.worker->pid)) : Json()},
                {"role", source.role},
                {"hostname", source.host},
                {"state", event.state},
                {"total_run_time", std::chrono::duration_cast<std::chrono::seconds>(event.run_time).count()},
                {"rdzv_backend", source.rdzv_backend},
                {"raw_error", event.error.empty() ? Json() : Json(event.error)},
                {"metadata", details.dump(-1, ' ', false, replace)},
                {"agent_restarts", event.restarts}};
  if (event.took > Duration{0}) metadata["duration_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(event.took).count();
  const Json line{{"name", "torchelastic.worker.status." + event.state},
                  {"source", event.worker ? "WORKER" : "AGENT"},
                  {"timestamp", event.wall_ns / 1'000'000'000},
                  {"metadata", std::move(metadata)}};
  return line.dump(-1, ' ', false, replace);
}

std::string event_line(const EventSource& source, const Ledger& ledger, std::int64_t wall_ns) {
  nlohmann::json metadata = json_of(ledger, ledger.began());
  metadata["run_id"] = source.run.value();
  metadata["hostname"] = source.host;
  const nlohmann::json line{
      {"name", "elrun.time"}, {"source", "AGENT"}, {"timestamp", wall_ns / 1'000'000'000}, {"metadata", std::move(metadata)}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace elrun::inline v0::launcher
