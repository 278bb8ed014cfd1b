#pragma once
/// \file Reporter: what an agent tells about its workers besides its log. It gathers what is known of a death, and writes
/// the report, the events, and the files that the agent's own parents look for.

#include <map>
#include <optional>
#include <string>

#include "launcher/options/options.hpp"
#include "launcher/report/event_log.hpp"
#include "launcher/report/events.hpp"
#include "launcher/report/evidence.hpp"
#include "launcher/report/failure_report.hpp"
#include "launcher/report/last_words.hpp"
#include "launcher/supervise/supervisor.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Files of others, which elrun writes into and never makes.
struct ReportFiles {
  Path error_file;       ///< TORCHELASTIC_ERROR_FILE of the agent itself: the process that started it reads there why it failed.
  Path termination_log;  ///< Kubernetes shows its text for a container that ended.
};
[[nodiscard]] ReportFiles report_files(const Variables& environment);

/// Says in one line of JSON, where Kubernetes looks, why nothing was started.
void write_refusal(const Path& termination_log, int exit_code, int returned, const std::string& why, const Clock& clock);

/// How a start ends that is refused, wherever that is found out.
struct StartRefusal {
  const Log& log;
  const Clock& clock;
  Path termination_log;
  ExitCodes codes = ExitCodes::elrun;
  /// Says why in the log and where Kubernetes looks; returns what this process returns.
  [[nodiscard]] int operator()(int exit_code, const std::string& why) const;
};

/// On the agent's loop.
class Reporter {
 public:
  Reporter(const LaunchOptions& options, RunId run, NodeId node, std::string host, ReportFiles files, const Clock& clock, LogStream& lines,
           const Log& log);

  void joining();  ///< The node waits for a generation.
  void began(const World& world, const Supervisor& supervisor);
  /// What the container's cgroup has counted so far: asked before a worker's process is there, for what it causes comes on top.
  [[nodiscard]] CgroupCounts counts() const { return cgroup_.counts(); }
  /// `restarts`: of this node, as the worker is told. `before`: the counts before its process was there. `keeps`: its error file is there when elrun is gone.
  void started(LocalRank worker, Rank rank, std::uint32_t restarts, std::int64_t pid, CgroupCounts before, Path error_file, bool keeps);
  /// There is no process: what its predecessor left says nothing of it.
  void not_started(LocalRank worker, Rank rank);
  /// A worker that could not be executed has the reason, whose exit code is elrun's.
  [[nodiscard]] WorkerEnded ended(LocalRank worker, Ending ending, std::int64_t ended_ns, const std::string& never_ran,
                                  const LastWords& words);
  /// As `complete_living`, with this node's host and program.
  void complete(WorkerDeath& death) const { complete_living(death, source_.host, options_.program.name); }
  /// What the supervisor holds of an end.
  void judged(const JudgedEnd& end) { workers_[end.worker].ending = end.ending; }
  /// The job is over here. `tells_all`: this node's log is where people look, for it coordinates. Where the time went is told by the node that has
  /// rank 0: exactly one, whoever coordinates.
  /// Returns what this process returns.
  int finished(const Finish& finish, bool tells_all, const Ledger& ledger);

 private:
  struct Worker {
    std::uint32_t rank = 0;
    std::int64_t pid = 0;
    std::int64_t started_ns = 0;
    CgroupCounts counts;  ///< Before it started.
    Path error_file;
    bool keeps = false;
    std::optional<Ending> ending;
    bool has_spoken = false;  ///< On standard error, and then it failed.
  };
  [[nodiscard]] bool words_are_above(const WorkerDeath& root) const;
  void tell_times(const Ledger& ledger);
  void event(WorkerEvent event);
  void write_event(const std::string& line);

  const LaunchOptions& options_;
  const NodeId node_;
  const EventSource source_;
  const ReportFiles files_;
  const Clock& clock_;
  LogStream& lines_;
  const Log& log_;
  const CgroupWatch cgroup_;
  std::optional<EventLog> event_log_;
  const Instant born_;
  Instant joining_since_;
  WorkerEvent place_;            // of the newest generation, for its events
  bool has_first_rank_ = false;  // of it
  std::map<LocalRank, Worker> workers_;
};

}  // namespace elrun::inline v0::launcher
