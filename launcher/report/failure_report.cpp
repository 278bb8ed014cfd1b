#include "launcher/report/failure_report.hpp"

#include <algorithm>
#include <csignal>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/report/endings.hpp"
#include "lib/base/wall_time.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t box_width_max = 60;
constexpr const char* unknown = "<N/A>";

std::string local_time(std::int64_t wall_ns) {
  const std::time_t seconds = wall_time(wall_ns).seconds;
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d_%H:%M:%S}", local);
}

// Without control characters, that a log reader may take for its own; lines stay lines, indented as what follows a label.
std::string indented(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, text.find_last_not_of("\r\n") + 1)) {
    if (c == '\n') out += "\n  ";
    else out += static_cast<unsigned char>(c) < ' ' && c != '\t' ? ' ' : c;
  }
  return out;
}

Ending ending_of(const WorkerDeath& death) { return {death.exit_code, death.signal}; }

std::string explanation(const WorkerDeath& death) {
  if (!death.traceback.empty()) return death.traceback;
  if (!death.error.empty()) return death.error;
  if (death.signal != 0) return fmt::format("Signal {} ({}) received by PID {}", death.signal, signal_name(death.signal), death.pid);
  return "none was recorded; a main function with torch.distributed.elastic's @record leaves one";
}

std::string block_of(const FailedJob& job, std::size_t index) {
  const WorkerDeath &death = job.deaths[index], &root = job.deaths.front();
  std::string text = fmt::format("[{}]:\n", index);
  const auto line = [&](std::string_view label, const std::string& value) { text += fmt::format("  {:<10}: {}\n", label, value); };
  line("time", death.wall_ns == 0 ? unknown : local_time(death.wall_ns));  // of one that lives its node saw no end
  line("host", death.host.empty() ? unknown : indented(death.host));
  line("rank", fmt::format("{} (local_rank: {})", death.rank, death.local_rank));
  if (death.lived()) line("exitcode", fmt::format("{} (pid: {})", unknown, death.pid));
  else
    line("exitcode", fmt::format("{} (pid: {}) {}", death.signal != 0 ? -death.signal : death.exit_code, death.pid,
                                 death.signal != 0 ? fmt::format("({})", signal_name(death.signal)) : ""));
  line("error_file", death.error_file.empty() ? unknown : indented(death.error_file));
  line("traceback", indented(explanation(death)));
  if (const std::string meaning = meaning_of(ending_of(death).code()); !death.evidence.empty() || !meaning.empty())
    line("meaning", indented(death.evidence.empty() ? meaning : death.evidence));
  line("node", fmt::format("{} (generation: {})", indented(death.node.value()), death.generation.number));
  // Workers that fail alike, as all do that have a wrong command line, say it once.
  if (death.last_lines.empty()) return text;
  if (index > 0 && death.last_lines == root.last_lines) line("last lines", "those of the root cause");
  else line("last lines", index == 0 && job.words_are_above ? "as above" : indented("\n" + death.last_lines));
  return text;
}

Json json_of(const FailedJob& job, std::size_t text_max) {
  const auto end_of = [&](const std::string& text) { return text.substr(text.size() - std::min(text.size(), text_max)); };
  const auto begin_of = [&](const std::string& text) { return text.substr(0, text_max); };
  Json json{{"event", "elrun.job.failed"},
            {"time", utc_time(job.wall_ns)},
            {"run_id", begin_of(job.run.value())},
            {"exit_code", job.returned},
            {"exit_code_of", is_of_program(job) ? "program" : "elrun"},
            {"cause", begin_of(job.cause)}};
  const std::string meaning =
      !job.deaths.empty() && !job.deaths.front().evidence.empty() ? job.deaths.front().evidence : meaning_of(job.exit_code);
  if (!meaning.empty()) json["meaning"] = begin_of(meaning);
  if (!job.went_on_from.empty()) json["went_on_from"] = begin_of(job.went_on_from);
  if (job.deaths.empty()) {
    json["node"] = begin_of(job.node.value());
    return json;
  }
  const WorkerDeath& root = job.deaths.front();
  json["node"] = begin_of(root.node.value());
  json["host"] = begin_of(root.host);
  json["generation"] = root.generation.number;
  json["rank"] = root.rank;
  json["local_rank"] = root.local_rank;
  json["pid"] = root.pid;
  if (root.signal != 0) json["signal"] = signal_name(root.signal);
  else if (!root.lived()) json["worker_exit_code"] = root.exit_code;
  if (root.wall_ns != 0) json["failed_at"] = utc_time(root.wall_ns);
  if (!root.error.empty()) json["error"] = begin_of(root.error);
  if (!root.traceback.empty()) json["traceback"] = end_of(root.traceback);
  if (!root.last_lines.empty()) json["last_lines"] = end_of(root.last_lines);
  if (job.deaths.size() > 1) json["others"] = job.deaths.size() - 1;
  return json;
}

}  // namespace

int returned_exit_code(ExitCodes codes, int exit_code) { return codes == ExitCodes::torchrun && exit_code != 0 ? 1 : exit_code; }

// Of a hang, of what could not be executed, or of a process that had not ended, the code is elrun's; 1 stands for an exception that elrun's signal cut short.
bool is_of_program(const FailedJob& job) {
  if (job.deaths.empty() || job.deaths.front().never_ran || job.deaths.front().lived()) return false;
  return job.exit_code == ending_of(job.deaths.front()).code() || job.exit_code == 1;
}

void complete_living(WorkerDeath& death, const std::string& host, const std::string& program) {
  if (death.lived()) death.host = host, death.program = program;
}

std::string utc_time(std::int64_t wall_ns) {
  const WallTime wall = wall_time(wall_ns);
  const std::time_t seconds = wall.seconds;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", utc, wall.nanoseconds / 1'000'000);
}

std::string failure_box(const FailedJob& job) {
  if (job.deaths.empty()) return {};
  const std::string title = fmt::format("{} FAILED", indented(job.deaths.front().program));
  const std::string root = block_of(job, 0);
  std::string others;
  for (std::size_t i = 1; i < job.deaths.size(); ++i) others += block_of(job, i);
  if (others.empty()) others = "  <NO_OTHER_FAILURES>\n";
  std::size_t width = 0;
  for (const std::string& text : {title, root, others})
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      width = std::max(width, end - begin);
      begin = end + 1;
    }
  width = std::min(width, box_width_max);
  const std::string border(width, '='), rule(width, '-');
  return fmt::format("{}\n{}\n{}\nFailures:\n{}{}\nRoot Cause (first observed failure):\n{}{}\n", border, title, rule, others, rule, root,
                     border);
}

std::string box_report(const FailedJob& job) {
  std::string text = short_report(job);
  if (const std::string box = failure_box(job); !box.empty()) text += fmt::format("\n{}", std::string_view{box}.substr(0, box.size() - 1));
  return text;
}

std::string short_report(const FailedJob& job) {
  std::string text = final_report(job.exit_code, job.cause, job.deaths.empty() ? std::string{} : job.deaths.front().evidence, job.returned);
  if (!job.went_on_from.empty()) text += fmt::format("\n  went on at: {}", indented(job.went_on_from));
  return text;
}

std::string failure_json(const FailedJob& job, std::size_t most) {
  for (std::size_t text_max = std::max<std::size_t>(most, 64);; text_max /= 2) {
    std::string line = json_of(job, text_max).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (line.size() <= most || text_max <= 16) return line;
  }
}

}  // namespace elrun::inline v0::launcher
