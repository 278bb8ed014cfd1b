#include "launcher/http/pages.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/report/ledger_json.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t shown_text_max = 2048;
constexpr std::size_t incidents_shown = 3;  // for people; the JSON has more

// What a terminal would obey is shown as `?`.
std::string shown(std::string text) {
  if (text.size() > shown_text_max) text.resize(shown_text_max), text += "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' || c == '\t' ? ' ' : '?';
  return printable(text);
}

// Fields of an object that anybody may have sent: what is missing or of another kind reads as nothing.
class Reading {
 public:
  explicit Reading(const nlohmann::json& json) : json_{json} {}
  [[nodiscard]] std::string text(const char* key) const {
    const nlohmann::json* value = find(key);
    return value != nullptr && value->is_string() ? shown(value->get<std::string>()) : std::string{};
  }
  [[nodiscard]] std::int64_t number(const char* key) const {
    const nlohmann::json* value = find(key);
    return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : 0;
  }
  [[nodiscard]] double fraction(const char* key) const {
    const nlohmann::json* value = find(key);
    return value != nullptr && value->is_number() ? value->get<double>() : 0;
  }
  [[nodiscard]] bool flag(const char* key) const {
    const nlohmann::json* value = find(key);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }
  [[nodiscard]] Reading object(const char* key) const {
    static const nlohmann::json none;
    const nlohmann::json* value = find(key);
    return Reading{value != nullptr ? *value : none};
  }
  [[nodiscard]] const nlohmann::json& json() const { return json_; }

 private:
  [[nodiscard]] const nlohmann::json* find(const char* key) const {
    const auto found = json_.is_object() ? json_.find(key) : json_.end();
    return found == json_.end() ? nullptr : &*found;
  }
  const nlohmann::json& json_;
};

// Depth is bounded before anything is built: a deep text would use up the stack.
std::optional<nlohmann::json> parsed(std::string_view text) {
  constexpr int depth_max = 8;
  bool too_deep = false;
  nlohmann::json json = nlohmann::json::parse(
      text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) { return depth <= depth_max || (too_deep = true, false); },
      false);
  if (json.is_discarded() || too_deep || !json.is_object()) return std::nullopt;
  return json;
}

// An agent of an earlier version does not say why.
std::string leaving(const Reading& page) {
  if (!page.flag("leaving")) return {};
  const std::string why = page.text("leaving_because");
  return ", asked to leave" + (why.empty() ? "" : " by " + why);
}

std::string ago(double time) {
  return time < 120    ? fmt::format("{:.1f} s", time)
         : time < 7200 ? fmt::format("{:.0f} min", time / 60)
                       : fmt::format("{:.1f} h", time / 3600);
}

nlohmann::json json_of(const Restoration& from) {
  return {
      {"checkpoint", from.checkpoint}, {"step", from.step}, {"why", from.why}, {"steps_again", from.steps_again}, {"notes", from.notes}};
}

nlohmann::json checkpoints_json(const AgentSnapshot& snapshot) {
  const CheckpointRecord& record = snapshot.node.checkpoints;
  nlohmann::json json = nlohmann::json::object();
  if (record.went_on_from) json["went_on_from"] = json_of(*record.went_on_from);
  if (record.safe_at) json["age_seconds"] = seconds(snapshot.now - *record.safe_at);
  if (record.saves_failed > 0) json["saves_failed"] = record.saves_failed;
  if (record.saves_left_out > 0) json["left_out"] = {{"saves", record.saves_left_out}, {"last_step", record.left_out_step}};
  if (const auto& parts = record.parts; parts.written + parts.refused > 0)
    json["parts"] = {{"written", parts.written}, {"refused", parts.refused}, {"bytes", parts.bytes}, {"bytes_per_second", parts.rate}};
  if (record.waiting)
    json["waiting"] = {
        {"directory", record.waiting->directory}, {"why", record.waiting->why}, {"seconds", seconds(snapshot.now - record.waiting_since)}};
  if (record.last_failure) json["last_failure"] = {{"step", record.failed_step}, {"why", message(*record.last_failure)}};
  return json;
}

/// Who the others waited for longest.
std::string last_rank_line(const Reading& ranks) {
  if (!ranks.json().is_array() || ranks.json().empty()) return {};
  const Reading first{ranks.json().front()};
  return fmt::format("  slowest rank: {} finished last in {}, {:.1f} s behind the second-to-last\n", first.number("rank"),
                     count_of(static_cast<std::size_t>(std::max<std::int64_t>(first.number("steps"), 0)), "step"),
                     first.fraction("behind_seconds"));
}

std::string straggler_lines(const Reading& stragglers) {
  std::string text;
  if (!stragglers.json().is_array()) return text;
  for (const nlohmann::json& entry : stragglers.json()) {
    const Reading named{entry};
    text +=
        fmt::format("  straggler: rank {} (node {}, {}) was slow up to step {} of generation {}: {:.1f} times the median, {:.1f} s lost\n",
                    named.number("rank"), named.text("node"), named.text("device"), named.number("step"), named.number("generation"),
                    named.fraction("times"), named.fraction("lost_seconds"));
  }
  return text;
}

/// What ended a generation, and a line with the points of the incident.
std::string incident_lines(const Reading& incident) {
  std::string text = fmt::format("    generation {} ended: {}\n", incident.number("generation"), incident.text("why"));
  const Reading at = incident.object("at_seconds");
  std::string points;
  for (std::size_t i = 0; i < Incident::points; ++i) {
    const std::string name{word_of(static_cast<Incident::Point>(i))};
    if (at.json().is_object() && at.json().contains(name))
      points += fmt::format("{}{} {:.3f} s", points.empty() ? "      " : ", ", name, at.fraction(name.c_str()));
  }
  return points.empty() ? text : text + points + "\n";
}

std::string time_lines(const Reading& time) {
  if (!time.json().is_object()) return {};
  const double wall = time.fraction("wall_seconds");
  const Reading causes = time.object("by_cause");
  std::string text = fmt::format("  time: {:.1f} s", wall);
  const char* between = ": ";
  for (std::size_t i = 0; i < time_causes; ++i) {
    const auto cause = static_cast<TimeCause>(i);
    const double spent = causes.fraction(std::string{word_of(cause)}.c_str());
    if (!(spent > 0 && wall > 0)) continue;
    text += fmt::format("{}{} {:.2f} s ({:.1f} %)", between, in_words(cause), spent, 100 * spent / wall);
    between = ", ";
  }
  text += "\n";
  text += last_rank_line(time.object("last_ranks"));
  text += straggler_lines(time.object("stragglers"));
  const auto count = time.number("incidents");
  if (count <= 0) return text;
  text += fmt::format("  {}{}\n", count_of(static_cast<std::size_t>(count), "incident"),
                      count > static_cast<std::int64_t>(incidents_shown) ? ", the newest:" : ":");
  const Reading newest = time.object("newest_incidents");
  if (!newest.json().is_array()) return text;
  const std::size_t known = newest.json().size();
  for (std::size_t i = known - std::min(known, incidents_shown); i < known; ++i) text += incident_lines(Reading{newest.json()[i]});
  return text;
}

std::string went_on_from(const Reading& from) {
  const std::string checkpoint = from.text("checkpoint"), why = from.text("why");
  std::string text = checkpoint.empty() ? fmt::format("  went on at: step 0 ({})", why)
                                        : fmt::format("  went on at: step {}, from {} ({})", from.number("step"), checkpoint, why);
  if (const auto again = from.number("steps_again"); again > 0) text += fmt::format("; {} done again", count_of(again, "step"));
  text += "\n";
  if (const auto notes = from.json().find("notes"); notes != from.json().end() && notes->is_array())
    for (const nlohmann::json& note : *notes)
      if (note.is_string()) text += fmt::format("    {}\n", shown(note.get<std::string>()));
  return text;
}

std::string checkpoint_lines(const Reading& checkpoints) {
  std::string text;
  if (const Reading from = checkpoints.object("went_on_from"); from.json().is_object()) text += went_on_from(from);
  if (checkpoints.json().is_object() && checkpoints.json().contains("age_seconds"))
    text += fmt::format("  checkpoints: {} since the newest one was saved or loaded (else since the start)",
                        ago(checkpoints.fraction("age_seconds")));
  if (const auto failed = checkpoints.number("saves_failed"); failed > 0)
    text += fmt::format("{}{} failed", text.empty() || text.back() == '\n' ? "  checkpoints: " : "; ", count_of(failed, "save"));
  if (!text.empty() && text.back() != '\n') text += "\n";
  if (const Reading left = checkpoints.object("left_out"); left.json().is_object())
    text += fmt::format("  {} left out, for the one before was still being written; the newest of step {}\n",
                        count_of(left.number("saves"), "save"), left.number("last_step"));
  if (const Reading parts = checkpoints.object("parts"); parts.json().is_object())
    text += fmt::format("  elrun ckptd: {} written with {:.2f} GB, the newest at {:.0f} MB/s; {} could not be written\n",
                        count_of(parts.number("written"), "part"), parts.fraction("bytes") / 1e9, parts.fraction("bytes_per_second") / 1e6,
                        parts.number("refused"));
  if (const Reading waits = checkpoints.object("waiting"); waits.json().is_object())
    text += fmt::format(
        "  waits for the storage of checkpoints, {}, for {}: {}\n", waits.text("directory"), ago(waits.fraction("seconds")),
        waits.text("why").empty() ? "no trouble is known here; workers look at them, or wait for workers that do" : waits.text("why"));
  if (const Reading last = checkpoints.object("last_failure"); last.json().is_object())
    text += fmt::format("  the newest save failed, of step {}: {}\n", last.number("step"), last.text("why"));
  return text;
}

}  // namespace

std::string status_page(const AgentSnapshot& snapshot) {
  const NodeRecord& node = snapshot.node;
  const AgentIdentity& agent = snapshot.agent;
  const Seat& seat = node.world.seat;
  nlohmann::json workers = nlohmann::json::array();
  for (const auto& [local, worker] : node.workers) {
    workers.push_back(
        {{"local_rank", local}, {"rank", worker.rank}, {"pid", worker.pid}, {"state", word_of(worker.state)}, {"is_job", worker.is_job}});
  }
  nlohmann::json page{
      {"version", agent.version},
      {"run", agent.run.value()},
      {"node", agent.node.value()},
      {"pid", agent.pid},
      {"program", agent.program},
      {"phase", word_of(node.phase)},
      {"leaving", node.leaving},
      {"up_seconds", seconds(snapshot.now - node.began)},
      {"nodes_min", agent.round.nodes_min},
      {"nodes_max", agent.round.nodes_max},
      {"coordinator", {{"at", agent.coordinator}, {"is_here", snapshot.coordinates}, {"is_connected", node.connected}}},
      {"restarts", {{"job", node.world.restarts.generations}, {"of_budget", node.world.restarts.used}, {"node", node.node_restarts}}},
      {"workers", std::move(workers)}};
  if (node.world.generation.number != 0)
    page["generation"] = {{"number", node.world.generation.number},
                          {"id", to_string(node.world.generation)},
                          {"nodes", seat.nodes},
                          {"world_size", seat.world_size},
                          {"group_rank", seat.group_rank}};
  if (node.leaving) page["leaving_because"] = node.leaving_because;
  if (!node.waiting_for.empty()) page["waiting_for"] = node.waiting_for;
  if (!node.last_failure.empty()) page["last_failure"] = node.last_failure;
  if (node.steps > 0) {
    page["steps"] = {{"decided", node.steps},
                     {"last", node.last_step.decided.value()},
                     {"last_at", static_cast<double>(node.last_step_wall_ns) / 1e9},
                     {"last_age_seconds", seconds(snapshot.now - node.last_decided_at)}};
    if (node.last_step.steps > 0) page["steps"]["of"] = node.last_step.steps;
    if (const auto loss = node.last_step.loss; loss && std::isfinite(*loss)) page["steps"]["loss"] = *loss;
  }
  page["time"] = json_of(node.ledger, snapshot.now);
  if (const nlohmann::json checkpoints = checkpoints_json(snapshot); !checkpoints.empty()) page["checkpoints"] = checkpoints;
  return page.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<std::string> status_for_people(std::string_view json) {
  const auto whole = parsed(json);
  if (!whole) return Failure{Code::protocol, Remedy::fix_config, "what came is no status of elrun"};
  const Reading page{*whole};
  std::string text =
      fmt::format("run {} on node {} (agent {}, elrun {}): {}{}, up for {}\n", page.text("run"), page.text("node"), page.number("pid"),
                  page.text("version"), page.text("phase"), leaving(page), ago(page.fraction("up_seconds")));
  if (const std::string program = page.text("program"); !program.empty()) text += fmt::format("  program: {}\n", program);
  if (const Reading generation = page.object("generation"); generation.json().is_object())
    text += fmt::format("  generation {}: {} of {} to {} nodes, {} workers; this is node {}\n", generation.number("number"),
                        generation.number("nodes"), page.number("nodes_min"), page.number("nodes_max"), generation.number("world_size"),
                        generation.number("group_rank"));
  else text += "  no generation yet\n";
  const Reading coordinator = page.object("coordinator");
  text += fmt::format("  coordinator: {}{}, {}\n", coordinator.text("at"), coordinator.flag("is_here") ? " (here)" : "",
                      coordinator.flag("is_connected") ? "connected" : "NOT connected");
  if (const std::string waits = page.text("waiting_for"); !waits.empty()) text += fmt::format("  waiting for: {}\n", waits);
  const Reading restarts = page.object("restarts");
  text += fmt::format("  restarts: {} in the job ({} of the budget), {} by this node's workers\n", restarts.number("job"),
                      restarts.number("of_budget"), restarts.number("node"));
  if (const Reading steps = page.object("steps"); steps.json().is_object())
    text += fmt::format("  steps: {} decided, the last is {}{}{}, {} ago\n", steps.number("decided"), steps.number("last"),
                        steps.json().contains("of") ? fmt::format(" of {}", steps.number("of")) : "",
                        steps.json().contains("loss") ? fmt::format(" with loss {:.6g}", steps.fraction("loss")) : "",
                        ago(steps.fraction("last_age_seconds")));
  text += checkpoint_lines(page.object("checkpoints"));
  text += time_lines(page.object("time"));
  if (const std::string failure = page.text("last_failure"); !failure.empty()) text += fmt::format("  last failure: {}\n", failure);
  const Reading workers = page.object("workers");
  if (!workers.json().is_array() || workers.json().empty()) return text + "  no workers here\n";
  text += fmt::format("  {:>6} {:>6} {:>8}  {}\n", "RANK", "LOCAL", "PID", "STATE");
  for (const nlohmann::json& entry : workers.json()) {
    const Reading worker{entry};
    text += fmt::format("  {:>6} {:>6} {:>8}  {}\n", worker.number("rank"), worker.number("local_rank"), worker.number("pid"),
                        worker.text("state"));
  }
  return text;
}

std::string status_document(std::span<const std::string> agents, std::span<const std::string> problems) {
  nlohmann::json document{{"agents", nlohmann::json::array()}};
  for (const std::string& agent : agents)
    if (auto whole = parsed(agent)) document["agents"].push_back(*std::move(whole));
  if (!problems.empty()) document["problems"] = problems;
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<std::int64_t> processes_in(std::string_view json) {
  const auto whole = parsed(json);
  if (!whole) return {};
  const Reading page{*whole};
  std::vector<std::int64_t> all{page.number("pid")};
  if (const Reading workers = page.object("workers"); workers.json().is_array())
    for (const nlohmann::json& entry : workers.json()) all.push_back(Reading{entry}.number("pid"));
  return all;
}

std::optional<AgentAnswer> agent_answer(std::string_view json) {
  const auto whole = parsed(json);
  if (!whole) return std::nullopt;
  const Reading page{*whole};
  if (page.number("pid") < 1) return std::nullopt;
  return AgentAnswer{page.number("pid"), page.text("run"), page.text("node"), page.text("phase"), page.flag("leaving")};
}

HttpReply page_for(const HttpRequest& request, const AgentSnapshot& snapshot) {
  if (request.path == "/livez" || request.path == "/healthz") return {.body = "ok\n"};
  if (request.path == "/readyz") return {.body = fmt::format("ok: node {} listens\n", snapshot.agent.node.value())};
  if (request.path == "/statusz") return {.type = "application/json", .body = status_page(snapshot)};
  if (request.path == "/metrics") {
    const Exposition format = exposition_for(request.accept);
    return {.type = std::string{content_type(format)}, .body = expose(metrics(snapshot), format)};
  }
  return {.status = 404, .body = "here are /livez, /readyz, /healthz, /statusz and /metrics\n"};
}

}  // namespace elrun::inline v0::launcher
