#include "launcher/chaos/verdict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/tools/listing.hpp"
#include "launcher/report/ledger.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

using ReportJson = nlohmann::json;

std::optional<double> share(Duration undisturbed, Duration disturbed) {
  if (undisturbed <= Duration{0} || disturbed <= Duration{0}) return std::nullopt;
  return seconds(undisturbed) / seconds(disturbed);
}

std::string how_it_ended(const RunFacts& run) {
  if (run.unfit) return *run.unfit;
  if (!run.in_time) return "it was ended, for it was over its limit";
  if (!run.some_node_succeeded || run.failed.empty()) return fmt::format("exit code {}", run.exit_code);
  constexpr std::size_t nodes_max = 8;
  std::vector<std::string> nodes;
  for (std::size_t i = 0; i < std::min(nodes_max, run.failed.size()); ++i)
    nodes.push_back(fmt::format("node {} ended with exit code {}", run.failed[i].node, run.failed[i].exit_code));
  if (run.failed.size() > nodes_max) nodes.push_back(fmt::format("{} more failed", run.failed.size() - nodes_max));
  return fmt::format("{}, though another node succeeded", fmt::join(nodes, ", "));
}

/// `wall_seconds` and so on of one line; nothing for any other line.
std::optional<ReportedTimes> times_of(std::string_view line) {
  const ReportJson event = ReportJson::parse(line, nullptr, false);
  if (!event.is_object() || event.value("name", ReportJson{}) != "elrun.time") return std::nullopt;
  const auto metadata = event.find("metadata");
  if (metadata == event.end() || !metadata->is_object()) return std::nullopt;
  ReportedTimes said;
  const auto wall = metadata->find("wall_seconds"), causes = metadata->find("by_cause");
  if (wall == metadata->end() || !wall->is_number() || causes == metadata->end() || !causes->is_object()) return std::nullopt;
  said.wall_seconds = *wall;
  for (std::size_t i = 0; i < time_causes; ++i) {
    const std::string name{word_of(static_cast<TimeCause>(i))};
    if (const auto cause = causes->find(name); cause != causes->end() && cause->is_number() && cause->get<double>() > 0)
      said.by_cause.emplace_back(name, *cause);
  }
  if (const auto count = metadata->find("incidents"); count != metadata->end() && count->is_number_unsigned()) said.incidents = *count;
  if (const auto newest = metadata->find("newest_incidents"); newest != metadata->end() && newest->is_array())
    said.newest_incidents = *newest;
  return said;
}

ReportJson json_of(const RunFacts& run) {
  ReportJson json{{"in_time", run.in_time},
                  {"exit_code", run.exit_code},
                  {"wall_seconds", seconds(run.wall)},
                  {"step_lines", run.step_lines},
                  {"states_of_killed", run.states_of_killed},
                  {"steps_again", run.steps_again},
                  {"lines_of_a_step", {{"of_one_node", run.step_voices.of_node}, {"of_all", run.step_voices.of_all}}},
                  {"step_span_seconds", seconds(run.step_span)},
                  {"notes", run.notes}};
  json["state"] = run.states.size() == 1 ? ReportJson(run.states[0].state) : ReportJson(nullptr);
  json["states"] = ReportJson::array();
  for (const ReportedState& said : run.states) json["states"].push_back({{"state", said.state}, {"said_by", said.who}});
  json["failed_nodes"] = ReportJson::array();
  for (const NodeEnd& end : run.failed) json["failed_nodes"].push_back({{"node", end.node}, {"exit_code", end.exit_code}});
  json["step"] = run.step ? ReportJson(*run.step) : ReportJson(nullptr);
  json["step_gap_seconds"] = run.step_gap ? ReportJson(seconds(*run.step_gap)) : ReportJson(nullptr);
  json["time"] = nullptr;
  if (run.times) {
    ReportJson causes = ReportJson::object();
    for (const auto& [cause, time] : run.times->by_cause) causes[cause] = time;
    json["time"] = {{"node", run.times->node},
                    {"wall_seconds", run.times->wall_seconds},
                    {"by_cause", std::move(causes)},
                    {"incidents", run.times->incidents},
                    {"newest_incidents", run.times->newest_incidents}};
  }
  return json;
}

ReportJson json_of(const FaultRecord& record) {
  const auto time = [](const std::optional<Duration>& at) { return at ? ReportJson(seconds(*at)) : ReportJson(nullptr); };
  return {{"fault", plan_line(record.fault)},    {"kind", word_of(record.fault.kind)},  {"began_seconds", time(record.began)},
          {"ended_seconds", time(record.ended)}, {"pause_seconds", time(record.pause)}, {"words", record.words},
          {"of_other_node", record.of_others}};
}

std::string_view word_of(CheckpointsCompared::Outcome outcome) {
  switch (outcome) {
    case CheckpointsCompared::Outcome::not_asked: return "not_asked";
    case CheckpointsCompared::Outcome::equal: return "equal";
    case CheckpointsCompared::Outcome::different: return "different";
    case CheckpointsCompared::Outcome::impossible: return "impossible";
  }
  return "";
}

std::string percent(const std::optional<double>& share) { return share ? fmt::format("{:.1f} %", 100 * *share) : "-"; }

std::vector<std::string> run_row(std::string_view name, const RunFacts& run) {
  return {std::string{name},
          fmt::format("{:.1f} s", seconds(run.wall)),
          run.in_time && !run.unfit ? fmt::to_string(run.exit_code) : "ended",
          run.step ? fmt::to_string(*run.step) : "-",
          fmt::to_string(run.steps_again),
          run.step_gap ? for_people(*run.step_gap) : "-",
          run.states.empty()       ? "-"
          : run.states.size() == 1 ? in_words(run.states)
                                   : count_of(run.states.size(), "state")};
}

std::string times_table(const RunFacts& reference, const RunFacts& disturbed) {
  const auto time_of = [](const std::optional<ReportedTimes>& times, std::string_view cause) {
    if (times)
      for (const auto& [name, time] : times->by_cause)
        if (name == cause) return fmt::format("{:.2f} s", time);
    return std::string{"-"};
  };
  std::vector<std::vector<std::string>> rows{{"where the time went", "undisturbed", "disturbed"}};
  for (std::size_t i = 0; i < time_causes; ++i) {
    const std::string_view cause = word_of(static_cast<TimeCause>(i));
    std::vector<std::string> row{std::string{in_words(static_cast<TimeCause>(i))}, time_of(reference.times, cause),
                                 time_of(disturbed.times, cause)};
    if (row[1] != "-" || row[2] != "-") rows.push_back(std::move(row));
  }
  if (rows.size() == 1) return "";
  const auto wall = [](const RunFacts& run) { return run.times ? fmt::format("{:.2f} s", run.times->wall_seconds) : std::string{"-"}; };
  rows.push_back({"all of it", wall(reference), wall(disturbed)});
  std::string text = "\n" + table_text(rows, 1);
  constexpr double whole = 0.95;  // the rest is the agents' own start and end
  for (const RunFacts* run : {&reference, &disturbed})
    if (run->times && run->times->wall_seconds < whole * seconds(run->wall))
      text += fmt::format(
          "of the {} run's {:.2f} s that is the account of node {}, which has {:.2f} s: no agent lived through all of the run\n",
          run == &reference ? "undisturbed" : "disturbed", seconds(run->wall), run->times->node, run->times->wall_seconds);
  if (!disturbed.times || disturbed.times->incidents == 0) return text;
  const std::vector<Duration> took = recovery_times(*disturbed.times);
  text += count_of(disturbed.times->incidents, "incident");
  if (!took.empty())
    text += fmt::format("; of the newest {}, from the first sign to the next step: median {}, longest {}", took.size(),
                        for_people(took[took.size() / 2]), for_people(took.back()));
  return text + "\n";
}

/// Where the step in the middle was slower or faster in the disturbed run: a few failures do not move it.
std::string steps_differ_line(const RunFacts& reference, const RunFacts& disturbed) {
  if (!reference.step_gap || !disturbed.step_gap || *reference.step_gap <= Duration{0}) return "";
  constexpr double alike = 0.05;
  const double more = seconds(*disturbed.step_gap) / seconds(*reference.step_gap) - 1;
  if (std::abs(more) < alike) return "";
  return fmt::format(
      "\nthe median step took {}, {:.0f} % {} than undisturbed. Unless failures lasted for half of the run, the machine was busier in one of the two runs: "
      "then ignore the speed figure",
      for_people(*disturbed.step_gap), 100 * std::abs(more), more > 0 ? "longer" : "shorter");
}

std::string faults_table(std::span<const FaultRecord> records) {
  std::vector<std::vector<std::string>> rows{{"fault", "planned", "made", "median pause", "longest pause"}};
  for (const FaultKind kind : all_fault_kinds) {
    std::size_t planned = 0, made = 0;
    std::vector<Duration> pauses;
    for (const FaultRecord& record : records) {
      if (record.fault.kind != kind || record.of_others) continue;
      ++planned;
      if (record.began) ++made;
      if (record.pause) pauses.push_back(*record.pause);
    }
    if (planned == 0) continue;
    std::ranges::sort(pauses);
    rows.push_back({std::string{word_of(kind)}, fmt::to_string(planned), fmt::to_string(made),
                    pauses.empty() ? "-" : for_people(pauses[pauses.size() / 2]), pauses.empty() ? "-" : for_people(pauses.back())});
  }
  std::string text = rows.size() > 1 ? "\n" + table_text(rows, 1) : "";
  const auto others = static_cast<std::size_t>(std::ranges::count_if(records, &FaultRecord::of_others));
  if (others > 0) text += fmt::format("\nand {} of other nodes: their reports have them\n", count_of(others, "failure"));
  return text;
}

}  // namespace

void StepTimeline::saw(std::string_view line, std::uint32_t node, Duration at, bool is_final_state) {
  const auto step = number_after(line, mark_);
  if (!step) return;
  if (is_final_state && highest_ == step) return;
  const std::uint32_t by_node = note(by_node_[node], *step), by_all = note(by_all_, *step);
  if (newest_ && *step <= *newest_) {
    if (by_node <= voices_.of_node && by_all <= voices_.of_all) {  // another rank's
      heard_ = {std::max(heard_.of_node, by_node), std::max(heard_.of_all, by_all)};
      return;
    }
    by_node_ = {{node, {{*step, 1}}}}, by_all_ = {{*step, 1}};
  }
  count(*step, at);
}

std::uint32_t StepTimeline::note(Times& said, std::uint64_t step) {
  if (said.size() == steps_kept && step < said.begin()->first) return std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t times = ++said[step];
  if (said.size() > steps_kept) said.erase(said.begin());
  return times;
}

void StepTimeline::count(std::uint64_t step, Duration at) {
  if (highest_ && step <= *highest_) ++again_;
  highest_ = std::max(highest_.value_or(0), step), newest_ = step;
  if (at_.size() < lines_max) at_.push_back(at_.empty() ? at : std::max(at, at_.back()));
}

std::optional<Duration> StepTimeline::pause(Duration from, Duration until) const {
  std::optional<Duration> longest;
  auto next = std::ranges::upper_bound(at_, from);  // the first line after the beginning
  if (next == at_.begin() && next != at_.end()) ++next;
  for (; next != at_.end() && *(next - 1) < until; ++next)
    longest = std::max(longest.value_or(Duration{0}), std::min(*next, until) - std::max(*(next - 1), from));
  return longest;
}

std::optional<Duration> StepTimeline::median_gap() const {
  if (at_.size() < 2) return std::nullopt;
  std::vector<Duration> gaps;
  for (std::size_t i = 1; i < at_.size(); ++i) gaps.push_back(at_[i] - at_[i - 1]);
  std::ranges::nth_element(gaps, gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2));
  return gaps[gaps.size() / 2];
}

std::optional<ReportedTimes> reported_times(std::span<const std::string> event_logs) {
  std::optional<ReportedTimes> longest;
  for (std::uint32_t node = 0; node < event_logs.size(); ++node)
    for (std::string_view text = event_logs[node]; !text.empty();) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.find("elrun.time") == std::string_view::npos) continue;
      auto said = times_of(line);
      if (!said || (longest && said->wall_seconds <= longest->wall_seconds)) continue;
      longest = std::move(said), longest->node = node;
    }
  return longest;
}

std::vector<Duration> recovery_times(const ReportedTimes& said) {
  constexpr double seconds_max = 1e6;
  std::vector<Duration> times;
  for (const ReportJson& incident : said.newest_incidents) {
    const auto at = incident.is_object() ? incident.find("at_seconds") : incident.end();
    if (at == incident.end() || !at->is_object()) continue;
    const auto seen = at->find("seen"), step = at->find("first_step");
    if (seen == at->end() || step == at->end() || !seen->is_number() || !step->is_number()) continue;
    const double took = step->get<double>() - seen->get<double>();
    if (took >= 0 && took < seconds_max) times.push_back(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(took)));
  }
  std::ranges::sort(times);
  return times;
}

std::string words_of_remaining(std::span<const int> processes, Duration limit) {
  if (processes.empty()) return "";
  constexpr std::size_t shown_max = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(shown_max, processes.size()); ++i) names.push_back(fmt::format("process {}", processes[i]));
  if (processes.size() > shown_max) names.push_back(fmt::format("{} more", processes.size() - shown_max));
  return fmt::format("{} {} not ended within {} of SIGKILL: the kernel holds them, in a call of a storage that does not answer for example",
                     fmt::join(names, " and "), processes.size() == 1 ? "has" : "have", for_people(limit));
}

std::vector<NodeEnd> nodes_that_failed(std::span<const NodeEnd> ends) {
  std::optional<Duration> first_success;
  for (const NodeEnd& end : ends)
    if (end.exit_code == 0) first_success = std::min(first_success.value_or(end.at), end.at);
  std::vector<NodeEnd> failed;
  for (const NodeEnd& end : ends)
    if (end.exit_code != 0 && !(end.was_away && first_success && end.at >= *first_success)) failed.push_back(end);
  std::ranges::stable_sort(failed, {}, &NodeEnd::at);
  return failed;
}

namespace {

/// By this node, or by another one, as far as that is known: that the node which serves the rendezvous has lost it nobody here has seen.
bool was_made(const FaultRecord& record) {
  return record.began || (record.of_others && record.came && record.fault.kind != FaultKind::coordinator);
}

std::string why_nothing_was_rehearsed(const RunFacts& disturbed, std::span<const FaultRecord> records) {
  if (std::ranges::any_of(records, [](const FaultRecord& record) { return record.of_others && record.came; }))
    return "nothing is known to have been rehearsed: this node left the loss of the coordinator to the one that served the rendezvous then, whose "
           "report has it; let the plan have failures of other kinds, too";
  const bool waited_for_step = std::ranges::any_of(records, [](const FaultRecord& record) { return record.fault.step.has_value(); });
  if (waited_for_step && disturbed.step_lines == 0)
    return "nothing was rehearsed: the program's output has no line with a step, so no failure that waits for one was made; --step-from TEXT "
           "names what stands before the number";
  return "nothing was rehearsed: the job ended before the first failure; take a longer job, or let failures come earlier (--mtbf, or the plan)";
}

}  // namespace

Verdict judge(const RunFacts& reference, const std::optional<RunFacts>& other, std::span<const FaultRecord> records,
              const CheckpointsCompared& checkpoints, std::optional<std::uint32_t> own_node) {
  using Outcome = CheckpointsCompared::Outcome;
  Verdict verdict;
  const auto says = [&](int code, std::string words) {
    verdict.exit_code = code, verdict.words = std::move(words);
    return verdict;
  };
  for (const RunFacts* run : {&reference, other ? &*other : nullptr})
    if (run != nullptr && run->unfit) return says(chaos_code::unknown, fmt::format("nothing can be said: {}", *run->unfit));
  if (!reference.succeeded() || !other)
    return says(chaos_code::unknown, fmt::format("the undisturbed run failed ({}): its logs say why; there is nothing to compare with",
                                                 how_it_ended(reference)));
  const RunFacts& disturbed = *other;
  verdict.wall_share = share(reference.wall, disturbed.wall);
  // Of an own node: where another node printed the last steps, its lines are of a part of the run.
  if (!own_node || reference.step == disturbed.step) verdict.step_share = share(reference.step_span, disturbed.step_span);
  if (!disturbed.succeeded() && own_node && disturbed.was_away) {
    const std::string how = fmt::format(
        "a failure of the plan had taken this node away, and it came back to a job that may have been over ({})", how_it_ended(disturbed));
    if (checkpoints.outcome == Outcome::equal) return says(chaos_code::equal, fmt::format("{}; {}", checkpoints.words, how));
    return says(chaos_code::unknown, fmt::format("nothing can be said here: {}. The other nodes have the verdict", how));
  }
  if (!disturbed.succeeded())
    return says(chaos_code::did_not_finish, fmt::format("the disturbed job did not finish: {}", how_it_ended(disturbed)));
  const bool has_states = !reference.states.empty() && !disturbed.states.empty();
  const bool can_compare = has_states && reference.states.size() == 1;
  const bool states_differ = can_compare && (disturbed.states.size() > 1 || reference.states[0].state != disturbed.states[0].state);
  if (states_differ && disturbed.states_of_killed && checkpoints.outcome != Outcome::different)
    return says(
        chaos_code::unknown,
        fmt::format("nothing can be said of the final state: undisturbed it was {}, and in the disturbed run only workers that were killed "
                    "after that said one: {}. It may be the state of an earlier step: let the line have the step, too",
                    in_words(reference.states), in_words(disturbed.states)));
  if (states_differ || checkpoints.outcome == Outcome::different) {
    std::string words = "the final states differ";
    if (states_differ) words += fmt::format(": undisturbed {}, disturbed {}", in_words(reference.states), in_words(disturbed.states));
    if (checkpoints.outcome == Outcome::different) words += "; " + checkpoints.words;
    return says(chaos_code::different, std::move(words));
  }
  if (reference.states.size() > 1)
    return says(
        chaos_code::unknown,
        fmt::format(
            "the undisturbed run has no single final state: {}. Let all ranks say the same one, or one rank only; where some of these are of earlier "
            "steps, let their lines have the step, too, or --state-from name a text that stands before the final one only",
            in_words(reference.states)));
  if (checkpoints.outcome == Outcome::impossible)
    return says(chaos_code::unknown, "the final checkpoints cannot be compared: " + checkpoints.words);
  if (own_node && reference.states.empty() != disturbed.states.empty() && checkpoints.outcome != Outcome::equal)
    return says(
        chaos_code::unknown,
        fmt::format("this node's workers said a final state in the {} run only; in the other one a worker of another node may have said "
                    "it. Let all ranks say it, or let checkpoints be compared (--checkpoint-root)",
                    reference.states.empty() ? "disturbed" : "undisturbed"));
  if (!own_node && reference.states.empty() != disturbed.states.empty())
    return says(chaos_code::unknown, fmt::format("the {} run said no final state, and the other one did, so they cannot be compared",
                                                 reference.states.empty() ? "undisturbed" : "disturbed"));
  const bool others_say = own_node.value_or(0) != 0;  // node 0 has rank 0 at the beginning: where it says nothing, perhaps nobody does
  if (!has_states && checkpoints.outcome == Outcome::not_asked && !others_say)
    return says(
        chaos_code::unknown,
        "the job finished, and there is no state to compare: --state-from TEXT names what stands before it in the program's output, --checkpoint-root where the checkpoints are");
  if (std::ranges::none_of(records, was_made)) return says(chaos_code::unknown, why_nothing_was_rehearsed(disturbed, records));
  if (!has_states && checkpoints.outcome == Outcome::not_asked)
    return says(
        chaos_code::equal,
        "this node ended with success in both runs. Its workers said no final state: the node whose workers say one has the verdict");
  std::string words = "the final states are equal";
  if (has_states) words += ": " + in_words(reference.states);
  if (checkpoints.outcome == Outcome::equal) words += "; " + checkpoints.words;
  return says(chaos_code::equal, std::move(words));
}

std::string report_text(const ChaosReport& report) {
  const Verdict& verdict = report.verdict;
  std::string text = fmt::format("\n{}; logs and the plan are in {}\n\n", report.job, printable(report.work));
  std::vector<std::vector<std::string>> rows{{"run", "time", "exit code", "last step", "steps again", "per step", "state"},
                                             run_row("undisturbed", report.reference)};
  if (report.disturbed) rows.push_back(run_row("disturbed", *report.disturbed));
  text += table_text(rows, 1);
  if (report.disturbed) text += times_table(report.reference, *report.disturbed) + faults_table(report.records);
  std::vector<std::string> notes = report.reference.notes;
  if (report.disturbed) notes.insert(notes.end(), report.disturbed->notes.begin(), report.disturbed->notes.end());
  for (const std::string& note : notes) text += fmt::format("\nnote: {}", printable(note));
  if (!notes.empty()) text += "\n";
  if (verdict.wall_share)
    text += fmt::format("\nspeed beside the undisturbed run: {} of its steps' speed, {} by the time of the whole runs",
                        percent(verdict.step_share), percent(verdict.wall_share));
  if (report.disturbed) text += steps_differ_line(report.reference, *report.disturbed);
  return text + "\n" + verdict.words + "\n";
}

nlohmann::json plan_json(const std::string& job, std::span<const Fault> plan, std::span<const std::string> left_out) {
  ReportJson faults = ReportJson::array();
  for (const Fault& fault : plan) {
    const FaultTarget target = target_of(fault.kind);
    faults.push_back({{"fault", plan_line(fault)},
                      {"kind", word_of(fault.kind)},
                      {"at_seconds", fault.step ? ReportJson(nullptr) : ReportJson(seconds(fault.at))},
                      {"at_step", fault.step ? ReportJson(*fault.step) : ReportJson(nullptr)},
                      {"rank", target == FaultTarget::rank ? ReportJson(fault.target) : ReportJson(nullptr)},
                      {"node", target == FaultTarget::node ? ReportJson(fault.target) : ReportJson(nullptr)},
                      {"lasts_seconds", fault.kind == FaultKind::kill ? ReportJson(nullptr) : ReportJson(seconds(fault.lasts))},
                      {"percent", fault.kind == FaultKind::slow ? ReportJson(fault.percent) : ReportJson(nullptr)}});
  }
  return {{"job", job}, {"left_out", left_out}, {"faults", std::move(faults)}};
}

nlohmann::json report_json(const ChaosReport& report) {
  ReportJson faults = ReportJson::array();
  for (const FaultRecord& record : report.records) faults.push_back(json_of(record));
  const auto number = [](const std::optional<double>& value) { return value ? ReportJson(*value) : ReportJson(nullptr); };
  return {{"exit_code", report.verdict.exit_code},
          {"verdict", report.verdict.words},
          {"share_of_speed", number(report.verdict.step_share)},
          {"share_of_wall_time", number(report.verdict.wall_share)},
          {"job", report.job},
          {"own_node", report.own_node ? ReportJson(*report.own_node) : ReportJson(nullptr)},
          {"work", report.work},
          {"left_out", report.left_out},
          {"undisturbed", json_of(report.reference)},
          {"disturbed", report.disturbed ? json_of(*report.disturbed) : ReportJson(nullptr)},
          {"checkpoints", {{"outcome", word_of(report.checkpoints.outcome)}, {"words", report.checkpoints.words}}},
          {"faults", std::move(faults)}};
}

}  // namespace elrun::inline v0::launcher
