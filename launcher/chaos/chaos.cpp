#include "launcher/chaos/chaos.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/tools/compare.hpp"
#include "checkpoint/tools/listing.hpp"
#include "checkpoint/tools/read_root.hpp"
#include "launcher/chaos/chaos_environment.hpp"
#include "launcher/chaos/chaos_run.hpp"
#include "launcher/output/print_out.hpp"
#include "launcher/process/ending_signals.hpp"
#include "launcher/process/machine.hpp"
#include "launcher/process/orphans.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

namespace fs = std::filesystem;

constexpr Duration reference_limit = 24h, limit_least = 2min;
constexpr int limit_factor = 10;

/// Of the file with the plan: of one node, where others may share the directory.
std::string plan_name(std::optional<std::uint32_t> own_node) { return own_node ? fmt::format("plan.{}", *own_node) : "plan"; }

/// Never throws: whoever reads may be gone, and the processes have to be ended all the same.
void say(const std::string& text) { (void)std::fputs(fmt::format("[chaos] {}\n", printable(text)).c_str(), stderr); }

int refuse(int code, const std::string& why) {
  std::fflush(stdout);
  (void)std::fputs(fmt::format("elrun: chaos: {}\n", printable(why, Lines::many)).c_str(), stderr);
  return code;
}

/// Without what would make a process look like a worker, or its agent's options other than they were given; and without the places where the job of this machine reports, for
/// a rehearsal is none: Kubeflow's TrainJob, Kubernetes' termination log, the error file of whoever started this.
/// An agent that meets others finds all that elrun would, the secrets of the rendezvous too, which it keeps from its workers.
Variables job_environment(Variables environment, bool meets_others) {
  std::erase_if(environment, [](const auto& variable) { return variable.first.starts_with("KUBEFLOW_TRAINER_SERVER_"); });
  environment["ELRUN_TERMINATION_LOG"] = "/dev/null";
  if (meets_others) {
    for (const char* name : {"LOCAL_RANK", "ELRUN_LOCAL_RANK", "TORCHELASTIC_ERROR_FILE", "PET_EXIT_CODES"}) environment.erase(name);
    return environment;
  }
  environment = without_secrets(std::move(environment));
  constexpr std::array names{
      "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ELRUN_LOCAL_RANK", "TORCHELASTIC_ERROR_FILE"};
  for (const char* name : names) environment.erase(name);
  std::erase_if(environment, [](const auto& variable) { return variable.first.starts_with("PET_"); });
  return environment;
}

bool write_all(const Fd& file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t got = ::write(file.get(), text.data(), text.size());
    if (got < 0 && errno != EINTR) return false;
    if (got > 0) text.remove_prefix(static_cast<std::size_t>(got));
  }
  return true;
}

/// The first thing in a directory that does not belong into that of a rehearsal that begins now; empty: there is none. Where each node has an `elrun chaos` of its own, and they
/// share the directory, others may have begun: so what is theirs counts only once the disturbed run has begun.
Result<std::string> stranger_in(const fs::path& directory, const ChaosOptions& options) {
  std::error_code error;
  for (fs::directory_iterator at{directory, error}, end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    const auto is_of_other = [&] {
      for (std::uint32_t node = 0; node < options.world.nodes; ++node)
        if (node != options.own_node && name == plan_name(node)) return true;
      return name == "undisturbed";
    };
    if (!options.own_node || !is_of_other()) return name;
  }
  if (error) return from_errno(error.value(), "look into " + directory.string());
  return std::string{};
}

/// The directory of a run. With an own node others may have made that of the undisturbed one, whose log of this node must not be there yet.
/// `owner`: whom files of this process belong to there, which shared storage may map to another user.
Result<void> make_run(const std::string& path, std::optional<std::uint32_t> own_node, uid_t owner) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  if (errno != EEXIST || !own_node) return from_errno(errno, "create " + path);
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return from_errno(errno, "look at " + path);
  if (!S_ISDIR(found.st_mode) || found.st_uid != owner || (found.st_mode & S_IWOTH) != 0)
    return invalid(path +
                   ": is no directory, or is another user's, or anybody may write there; give a --work that only this job's nodes use");
  const std::string log = fmt::format("{}/node{}.log", path, *own_node);
  if (::lstat(log.c_str(), &found) == 0)
    return invalid(log + ": is of an earlier rehearsal; give a --work that does not exist, or is empty");
  return {};
}

/// The work directory: new, or empty so far.
Result<std::string> make_work(const ChaosOptions& options, const Variables& environment) {
  std::error_code error;
  if (options.work.empty()) {
    const auto set = environment.find("TMPDIR");
    std::string path = (set == environment.end() || set->second.empty() ? "/tmp" : set->second) + "/elrun-chaos-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return from_errno(errno, "create " + path);
    return path;
  }
  const fs::path path = fs::absolute(options.work, error);
  if (error) return from_errno(error.value(), "find " + options.work);
  fs::create_directories(path, error);
  if (error) return from_errno(error.value(), "create " + path.string());
  ELRUN_TRY_ASSIGN(const std::string stranger, stranger_in(path, options));
  if (!stranger.empty())
    return invalid(fmt::format("--work {}: has something in it already ({}); name a directory that does not exist, or is empty",
                               path.string(), stranger));
  return path.string();
}

CheckpointsCompared compare_checkpoints(const std::string& undisturbed, const std::string& disturbed, const StorageLimits& limits,
                                        const Clock& clock) {
  using Outcome = CheckpointsCompared::Outcome;
  TimedFiles files{std::make_shared<PosixFiles>(), limits};
  std::vector<Side> sides;
  std::vector<std::uint64_t> steps;
  for (const std::string& root : {undisturbed, disturbed}) {
    const auto found = find_checkpoint(files, clock, {.root = root});
    if (!found.ok()) return {Outcome::impossible, message(found.failure())};
    auto one = inspect(files, *found);
    if (!one.ok()) return {Outcome::impossible, message(one.failure())};
    steps.push_back(found->id.step);
    sides.push_back({found->directory.string(), found->directory, std::move(one->manifest)});
  }
  if (steps[0] != steps[1])
    return {Outcome::different, fmt::format("the last checkpoints are of step {} and of step {}", steps[0], steps[1])};
  const auto all = compare(files, sides[0], sides[1]);
  if (!all.ok()) return {Outcome::impossible, message(all.failure())};
  if (all->equal()) return {Outcome::equal, fmt::format("the checkpoints of step {} are equal, bit by bit", steps[0])};
  return {Outcome::different,
          fmt::format("the checkpoints of step {} differ: `elrun ckpt diff {} {}` says where", steps[0], undisturbed, disturbed)};
}

std::string job_in_words(const ChaosOptions& options) {
  if (options.own_node)
    return fmt::format("node {} of {} of {} under elrun, which meet at {}", *options.own_node, count_of(options.world.nodes, "node"),
                       count_of(options.world.workers, "worker"), options.meeting);
  return fmt::format("{} of {} under {}", count_of(options.world.nodes, "node"), count_of(options.world.workers, "worker"),
                     options.launcher.empty() ? "elrun" : options.launcher.front());
}

/// What is decided before anything starts.
struct Prepared {
  std::vector<Fault> plan{};
  std::vector<std::string> left_out{};
  bool needs_networks = false, needs_disk = false;
};

/// The plan, or the exit code of what is wrong.
std::variant<Prepared, int> prepare(const ChaosOptions& options) {
  Prepared prepared;
  const std::vector<KindProblem> problems = kind_problems(options);
  const auto problem_of = [&](FaultKind kind) {
    const auto found = std::ranges::find(problems, kind, &KindProblem::kind);
    return found == problems.end() ? nullptr : &*found;
  };
  std::set<FaultKind> asked;
  if (!options.plan_file.empty()) {
    PosixFiles files;
    const auto text = files.read_all(options.plan_file, Bytes{plan_bytes_max});
    if (!text.ok()) return refuse(exit_code::no_input, fmt::format("--plan: {}", message(text.failure())));
    ParsedPlan parsed = parse_plan({reinterpret_cast<const char*>(text->data()), text->size()}, options.world);
    for (const std::string& problem : parsed.problems) (void)refuse(0, fmt::format("--plan {}: {}", options.plan_file, problem));
    if (!parsed.problems.empty()) return exit_code::usage;
    if (parsed.faults.empty()) return refuse(exit_code::usage, fmt::format("--plan {}: has no failure in it", options.plan_file));
    prepared.plan = std::move(parsed.faults);
    for (const Fault& fault : prepared.plan) asked.insert(fault.kind);
  } else {
    asked.insert(options.kinds.begin(), options.kinds.end());
  }
  bool is_possible = true;
  for (const FaultKind kind : asked)
    if (const KindProblem* problem = problem_of(kind); problem != nullptr && !problem->is_possible)
      is_possible = refuse(1, fmt::format("{} cannot be rehearsed here: {}", word_of(kind), problem->why)) == 0;
  if (!is_possible) return exit_code::contradiction;
  if (options.plan_file.empty()) {
    std::vector<FaultKind> kinds;
    for (const FaultKind kind : all_fault_kinds) {
      const KindProblem* problem = problem_of(kind);
      if (options.kinds.empty() ? problem == nullptr : asked.contains(kind)) kinds.push_back(kind);
      if (options.kinds.empty() && problem != nullptr) prepared.left_out.push_back(fmt::format("{}: {}", word_of(kind), problem->why));
    }
    prepared.plan = draw_plan({*options.mtbf, options.time, options.seed}, kinds, options.world);
    if (prepared.plan.empty())
      return refuse(exit_code::contradiction,
                    fmt::format("--mtbf {}, --for {} and --seed {} draw no failure: take a longer time, or another seed",
                                time_text(*options.mtbf), time_text(options.time), options.seed));
    if (prepared.plan.size() > faults_max)
      return refuse(exit_code::contradiction, fmt::format("--mtbf {} and --for {} draw more than the {} failures that a plan may have: "
                                                          "take a longer mean time, or a shorter time",
                                                          time_text(*options.mtbf), time_text(options.time), faults_max));
  }
  for (const Fault& fault : prepared.plan) {
    prepared.needs_networks |= fault.kind == FaultKind::cut;
    prepared.needs_disk |= fault.kind == FaultKind::fill;
  }
  return prepared;
}

/// Both runs, one after the other, and the loop that they live on.
class Chaos {
 public:
  Chaos(const ChaosOptions& options, Prepared prepared, Variables environment, const StorageLimits& limits, const Clock& clock,
        const Guard& guard)
      : options_{options},
        prepared_{std::move(prepared)},
        environment_{std::move(environment)},
        limits_{limits},
        clock_{clock},
        guard_{guard},
        signals_{loop_} {
    report_.left_out = prepared_.left_out;
  }

  int run() {
    std::error_code error;
    elrun_ = fs::read_symlink("/proc/self/exe", error).string();
    if (error) return refuse(exit_code::internal, "the path of this program cannot be found: /proc is not there");
    auto work = make_work(options_, environment_);
    if (!work.ok())
      return refuse(work.failure().code == Code::invalid_argument ? exit_code::contradiction : exit_code::internal,
                    message(work.failure()));
    report_.work = *work;
    report_.own_node = options_.own_node;
    const std::string plan = *work + "/" + plan_name(options_.own_node);
    const Fd plan_file{::open(plan.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)};
    if (!plan_file)
      return errno == EEXIST ? refuse(exit_code::contradiction, plan + ": another `elrun chaos` has just begun there, with the same node")
                             : refuse(exit_code::internal, "cannot create " + plan);
    if (struct stat made{}; ::fstat(plan_file.get(), &made) == 0) owner_ = made.st_uid;
    if (!write_all(plan_file, text_of(prepared_.plan))) return refuse(exit_code::internal, "cannot write " + plan);
    report_.job = job_in_words(options_);
    say(fmt::format("{}; {}; work in {}", report_.job, count_of(prepared_.plan.size(), "failure"), *work));
    if (prepared_.needs_networks) {
      auto networks = NodeNetworks::make(loop_, guard_, environment_, options_.world.nodes);
      if (!networks.ok()) return refuse(exit_code::internal, message(networks.failure()));
      networks_ = *std::move(networks);
    }
    handle_ending_signals(signals_, {SIGINT, SIGTERM, SIGHUP, SIGQUIT});
    signals_.async_wait([this](const boost::system::error_code& ended, int number) {
      if (ended) return;
      if (run_) remain_ = words_of_remaining(run_->abort(), end_limit);
      say(remain_.empty() ? "ended all processes" : remain_);
      ended_by_ = number;
      loop_.stop();
    });
    const int code = both_runs();
    if (ended_by_ == 0) return code;
    say(fmt::format("ended by signal {};{} {} has the logs", ended_by_, remain_.empty() ? " no process is left, and" : "", report_.work));
    return 128 + ended_by_;
  }

 private:
  int both_runs() {
    // From here on, what loses its parent is this process's.
    Orphans orphans{
        loop_, clock_, {}, [this](pid_t pid) { return pid == guard_.pid() || guard_.keeps(pid) || (run_ && run_->is_known(pid)); }};
    const auto reference = one_run(orphans, "undisturbed", {}, reference_limit, {});
    if (!reference.ok())
      return refuse(reference.failure().code == Code::invalid_argument ? exit_code::contradiction : exit_code::internal,
                    message(reference.failure()));
    if (ended_by_ != 0) return 0;
    report_.reference = run_->facts();
    if (!report_.reference.succeeded()) {
      for (const std::string& line : run_->last_lines()) (void)std::fputs(fmt::format("  {}\n", printable(line)).c_str(), stderr);
    } else {
      const Duration limit = options_.limit > Duration{0} ? options_.limit : limit_factor * report_.reference.wall + limit_least;
      const auto disturbed = one_run(orphans, "disturbed", prepared_.plan, limit, report_.reference.step_voices);
      if (!disturbed.ok()) return refuse(exit_code::internal, message(disturbed.failure()));
      if (ended_by_ != 0) return 0;
      report_.disturbed = run_->facts();
      report_.records = run_->records();
      if (!report_.disturbed->succeeded())
        for (const std::string& line : run_->last_lines()) (void)std::fputs(fmt::format("  {}\n", printable(line)).c_str(), stderr);
    }
    run_.reset();
    signals_.cancel();
    signals_.clear();  // no process is left: a signal ends this one at once
    if (!options_.checkpoint_root.empty() && report_.disturbed && (report_.disturbed->succeeded() || report_.disturbed->was_away))
      report_.checkpoints = compare_checkpoints(root_of("undisturbed"), root_of("disturbed"), limits_, clock_);
    report_.verdict = judge(report_.reference, report_.disturbed, report_.records, report_.checkpoints, options_.own_node);
    print_out(options_.as_json ? document(report_json(report_)) : report_text(report_));
    return report_.verdict.exit_code;
  }

  [[nodiscard]] std::string directory_of(const std::string& name) const { return report_.work + "/" + name; }
  [[nodiscard]] std::string root_of(const std::string& name) const {
    return filled_in(options_.checkpoint_root, {.run = directory_of(name), .disk = options_.disk_in(directory_of(name))});
  }

  Result<void> one_run(Orphans& orphans, const std::string& name, std::vector<Fault> plan, Duration limit,
                       std::optional<StepVoices> step_voices) {
    run_.reset();
    const std::string directory = directory_of(name);
    std::error_code error;
    ELRUN_TRY(make_run(directory, options_.own_node, owner_));
    SmallDisk* disk = nullptr;
    if (prepared_.needs_disk) {
      auto mounted = SmallDisk::mount(options_.disk_in(directory), options_.disk_bytes);
      if (!mounted.ok()) return std::move(mounted).failure();
      disk = disks_.emplace_back(std::make_unique<SmallDisk>(*std::move(mounted))).get();
    } else if (options_.mentions("{disk}")) {
      fs::create_directory(options_.disk_in(directory), error);
      if (error) return from_errno(error.value(), "create " + options_.disk_in(directory));
    }
    say(fmt::format("{}: begins", name));
    run_ = std::make_unique<ChaosRun>(
        loop_, guard_, clock_,
        ChaosRun::Setting{{options_, name, directory, elrun_, environment_, networks_.get()}, std::move(plan), limit, disk, step_voices},
        say, [this] { loop_.stop(); });
    ELRUN_TRY(run_->start(orphans));
    loop_.restart();
    loop_.run();
    loop_.restart();
    loop_.poll();  // what the run still has on the loop finds it there, and over
    if (ended_by_ == 0) say(fmt::format("{}: over after {}", name, for_people(run_->facts().wall)));
    return {};
  }

  const ChaosOptions& options_;
  Prepared prepared_;
  Variables environment_;
  const StorageLimits& limits_;
  const Clock& clock_;
  const Guard& guard_;
  boost::asio::io_context loop_;
  boost::asio::signal_set signals_;
  std::unique_ptr<NodeNetworks> networks_;
  std::vector<std::unique_ptr<SmallDisk>> disks_;  // until all is compared
  std::unique_ptr<ChaosRun> run_;
  std::string elrun_;
  ChaosReport report_;
  int ended_by_ = 0;
  uid_t owner_ = 0;     // of the plan's file
  std::string remain_;  // processes that have not ended, in words
};

}  // namespace

int run_chaos(const ChaosOptions& options, const Variables& environment, const StorageLimits& limits, const Clock& clock) {
  auto prepared = prepare(options);
  if (const int* code = std::get_if<int>(&prepared)) return *code;
  auto& ready = std::get<Prepared>(prepared);
  for (const std::string& kind : ready.left_out) say("left out: " + kind);
  if (options.dry_run) {
    print_out(options.as_json ? document(plan_json(job_in_words(options), ready.plan, ready.left_out)) : text_of(ready.plan));
    return 0;
  }
  if (ready.needs_disk)
    if (const auto own = leave_mounts_to_others(); !own.ok()) return refuse(exit_code::internal, message(own.failure()));
  const auto guard = Guard::start(environment);  // before any thread
  if (!guard.ok()) return refuse(exit_code::internal, message(guard.failure()));
  ChaosOptions planned = options;
  if (planned.own_node) planned.run_id = id_of_plan(planned.run_id, ready.plan, planned.world);
  int code = Chaos{planned, std::move(ready), job_environment(environment, options.own_node.has_value()), limits, clock, *guard}.run();
  std::error_code ignored;
  fs::remove_all(guard->directory(), ignored);
  return code;
}

}  // namespace elrun::inline v0::launcher
