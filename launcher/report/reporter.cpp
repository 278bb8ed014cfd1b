#include "launcher/report/reporter.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/output/log_place.hpp"
#include "launcher/report/error_record.hpp"
#include "launcher/report/failure_report.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t last_ranks_told = 3;
constexpr std::size_t incidents_told = 8;   // the newest; the event log has more
constexpr Duration report_file_limit = 1s;  // it may be on a server that is away, and the loop has workers to end

bool written_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// False: its place does not answer.
bool write_termination_log(const Path& path, const FailedJob& job) {
  const auto write = [path, text = failure_json(job, termination_message_max - 1) + "\n"] {
    const Fd file{
        ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NONBLOCK)};  // Kubernetes makes it; where it is missing, nothing reads it
    return file && written_whole(file.get(), text);
  };
  return LogPlace{report_file_limit}.ask<bool>(write).has_value();
}

Result<void> write_error_file(const Path& path, std::string_view record) {
  const Fd file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644)};
  if (file && written_whole(file.get(), record)) return {};
  return from_errno(errno, fmt::format("write TORCHELASTIC_ERROR_FILE ({})", path.native()));
}

}  // namespace

ReportFiles report_files(const Variables& environment) {
  const auto variable = [&](const char* name, const char* otherwise) {
    const auto found = environment.find(name);
    return Path{found == environment.end() || found->second.empty() ? otherwise : found->second};
  };
  return {variable("TORCHELASTIC_ERROR_FILE", ""), variable("ELRUN_TERMINATION_LOG", "/dev/termination-log")};
}

void write_refusal(const Path& termination_log, int exit_code, int returned, const std::string& why, const Clock& clock) {
  FailedJob job;
  job.exit_code = exit_code;
  job.returned = returned;
  job.cause = why;
  job.wall_ns = clock.wall_ns();
  (void)write_termination_log(termination_log, job);
}

int StartRefusal::operator()(int exit_code, const std::string& why) const {
  log.error(why);
  const int returned = returned_exit_code(codes, exit_code);
  write_refusal(termination_log, exit_code, returned, why, clock);
  return returned;
}

Reporter::Reporter(const LaunchOptions& options, RunId run, NodeId node, std::string host, ReportFiles files, const Clock& clock,
                   LogStream& lines, const Log& log)
    : options_{options},
      node_{std::move(node)},
      source_{std::move(run), std::move(host), options.role, options.program.name, options.etcd.empty() ? "c10d" : "etcd"},
      files_{std::move(files)},
      clock_{clock},
      lines_{lines},
      log_{log},
      born_{clock.now()},
      joining_since_{born_} {
  if (!options_.event_log.empty()) event_log_.emplace(options_.event_log, log_);
}

void Reporter::write_event(const std::string& line) {
  if (options_.event_log_handler == EventLogHandler::console) lines_.pass(line + "\n");
  if (event_log_) event_log_->append(line);
}

void Reporter::event(WorkerEvent event) {
  if (options_.event_log_handler != EventLogHandler::console && !event_log_) return;
  event.group_rank = place_.group_rank;
  event.nodes = place_.nodes;
  event.world_size = place_.world_size;
  event.restarts = place_.restarts;
  event.wall_ns = clock_.wall_ns();
  event.run_time = clock_.now() - born_;
  write_event(event_line(source_, event));
}

void Reporter::joining() { joining_since_ = clock_.now(); }

void Reporter::began(const World& world, const Supervisor& supervisor) {
  place_.group_rank = world.seat.group_rank;
  has_first_rank_ = world.seat.group_rank == 0;
  place_.nodes = world.seat.nodes;
  place_.world_size = world.seat.world_size;
  place_.restarts = supervisor.node_restarts();
  for (auto& [local, worker] : workers_)
    if (const auto rank = supervisor.rank(local)) worker.rank = rank->value();
  event({.state = "RENDEZVOUS", .took = clock_.now() - joining_since_});
  event({.state = "ASSIGN_WORKER_RANKS"});
}

void Reporter::started(LocalRank local, Rank rank, std::uint32_t restarts, std::int64_t pid, CgroupCounts before, Path error_file,
                       bool keeps) {
  place_.restarts = restarts;  // a successor may start before the generation begins in which it has a place
  const Worker worker{rank.value(), pid, clock_.wall_ns(), before, std::move(error_file), keeps, {}, false};
  workers_.insert_or_assign(local, worker);
  event({.state = "START", .worker = WorkerEvent::Worker{worker.rank, local.value(), pid, {}}});
}

void Reporter::not_started(LocalRank local, Rank rank) {
  workers_.insert_or_assign(local, Worker{.rank = rank.value(), .started_ns = clock_.wall_ns()});
}

WorkerEnded Reporter::ended(LocalRank local, Ending ending, std::int64_t ended_ns, const std::string& never_ran, const LastWords& words) {
  WorkerEnded seen{local, ending};
  Worker& worker = workers_[local];
  worker.ending = ending;
  WorkerDeath& death = seen.death;
  death.host = source_.host;
  death.pid = worker.pid;
  death.wall_ns = ended_ns;
  death.program = options_.program.name;
  death.last_lines = fmt::format("{}", fmt::join(words.lines, "\n"));
  if (ending.ok()) return seen;  // the supervisor may hold that it ended too early
  worker.has_spoken = !words.lines.empty();
  death.exit_code = ending.exit_code;
  death.signal = ending.signal;
  death.never_ran = !never_ran.empty();
  const bool writes_log_files = worker.keeps && words.place_answers && options_.redirects.of(local) != Streams{};
  death.evidence = death.never_ran
                       ? never_ran
                       : evidence_of(ending, cgroup_.since(worker.counts, writes_log_files ? worker.error_file.parent_path() : Path{}));
  const auto add = [&](std::string_view what) { death.evidence += fmt::format("{}{}", death.evidence.empty() ? "" : "; ", what); };
  if (!words.place_answers) add("the place of its logs does not answer, so what it left there is not known");
  if (!worker.error_file.empty() && words.has_record) {
    const auto record = words.record ? read_error_record(*words.record) : std::nullopt;
    if (record) {
      death.error = record->error;
      death.traceback = record->traceback;
      death.wall_ns = failed_at(*record, {worker.started_ns, words.record_ns, ended_ns});
    } else {
      add("its error file is no error record that elrun can read");
    }
    if (worker.keeps) death.error_file = worker.error_file.string();
  }
  seen.ago = Duration{std::max<std::int64_t>(clock_.wall_ns() - death.wall_ns, 0)};
  return seen;
}

// A few lines that this node's console has just shown, and no other worker's behind them.
bool Reporter::words_are_above(const WorkerDeath& root) const {
  constexpr auto lines_max = 3;
  if (root.node != node_ || std::count(root.last_lines.begin(), root.last_lines.end(), '\n') >= lines_max) return false;
  return std::all_of(workers_.begin(), workers_.end(), [&](const auto& each) {
    const auto& [local, worker] = each;
    if (worker.pid != root.pid) return !worker.has_spoken;
    const bool is_filtered = options_.local_ranks_filter && !options_.local_ranks_filter->contains(local.value());
    return !is_filtered && (options_.tee.of(local).err || !options_.redirects.of(local).err);
  });
}

void Reporter::tell_times(const Ledger& ledger) {
  if (ledger.knows_steps())
    write_event(event_line(source_, ledger, clock_.wall_ns()));  // of other programs the events are torchrun's alone
  if (!has_first_rank_) return;
  const std::uint64_t first = ledger.first_generation();
  log_.info(fmt::format("time: {}{}", in_words(ledger.totals()),
                        first > 1 ? fmt::format(" (this agent's account, which begins with generation {})", first) : ""));
  if (const std::string last = in_words(ledger.last_ranks(), last_ranks_told); !last.empty()) log_.info("slowest ranks: " + last);
  for (const NamedRank& straggler : ledger.stragglers()) log_.info("straggler: " + in_words(straggler));
  const auto& incidents = ledger.incidents();
  for (std::size_t i = incidents.size() - std::min(incidents.size(), incidents_told); i < incidents.size(); ++i)
    log_.info("incident: " + in_words(incidents[i], ledger.began()));
}

int Reporter::finished(const Finish& finish, bool tells_all, const Ledger& ledger) {
  FailedJob job{source_.run,          node_,         finish.exit_code, returned_exit_code(options_.exit_codes, finish.exit_code),
                finish.first_failure, finish.deaths, clock_.wall_ns(), finish.went_on_from};
  job.words_are_above = !job.deaths.empty() && words_are_above(job.deaths.front());
  for (const auto& [local, worker] : workers_) {
    const bool failed = worker.ending && !worker.ending->ok();
    const bool ended_by_elrun = worker.ending && (worker.ending->signal == SIGTERM || worker.ending->signal == SIGKILL);
    const bool died =
        failed && (!ended_by_elrun || (!job.deaths.empty() && job.deaths.front().pid == worker.pid && job.deaths.front().node == node_));
    WorkerEvent::Worker who{worker.rank, local.value(), worker.pid, {}};
    if (died || (failed && finish.exit_code == 0))
      who.exit_code = worker.ending->signal != 0 ? -worker.ending->signal : worker.ending->exit_code;
    event({.state = finish.exit_code == 0 ? "SUCCEEDED" : died ? "FAILED" : "TERMINATED", .worker = who});
  }
  event({.state = finish.exit_code == 0 ? "SUCCEEDED" : "FAILED", .error = finish.first_failure});
  tell_times(ledger);
  if (!finish.after_signal.empty()) log_.info(fmt::format("{}; exit code {}", finish.after_signal, job.returned));
  if (finish.exit_code == 0) return 0;

  const bool failed_here = !job.deaths.empty() && job.deaths.front().node == node_;
  if (!finish.first_failure.empty()) log_.error(tells_all || failed_here ? box_report(job) : short_report(job));
  write_event(failure_json(job, 16 * termination_message_max));
  if (!write_termination_log(files_.termination_log, job))
    log_.warning(fmt::format("ELRUN_TERMINATION_LOG ({}) has not answered within {}: the root cause is missing there",
                             files_.termination_log.native(), for_people(report_file_limit)));
  if (!files_.error_file.empty()) {
    WorkerDeath root;
    if (job.deaths.empty()) {
      root.exit_code = finish.exit_code;
      root.wall_ns = job.wall_ns;
      root.error = finish.first_failure.empty() ? fmt::format("elrun ended with {}: {}", finish.exit_code, meaning_of(finish.exit_code))
                                                : finish.first_failure;
    } else {
      root = job.deaths.front();
    }
    const auto written = LogPlace{report_file_limit}.ask<Result<void>>(
        [path = files_.error_file, record = error_record_of(root) + "\n"] { return write_error_file(path, record); });
    if (!written)
      log_.warning(fmt::format("TORCHELASTIC_ERROR_FILE ({}) has not answered within {}: the root cause is missing there",
                               files_.error_file.native(), for_people(report_file_limit)));
    else if (!written->ok()) log_.warning(message(written->failure()));
  }
  return job.returned;
}

}  // namespace elrun::inline v0::launcher
