#include "launcher/chaos/chaos_run.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "launcher/options/options.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration look_interval = 20ms, slow_period = 20ms, slow_slice_min = 1ms;
constexpr Duration count_time = 1s;           ///< For more workers than were told of to be seen, once those are there.
constexpr Duration last_output_timeout = 1s;  ///< Of the job, read after a launcher ended with success.
constexpr Duration others_limit = 15s;        ///< Once a launcher ended with success, for those that were away by then.
constexpr Duration back_after =
    15s;  ///< A worker that lives so long after its node's fault is over works for the job again, also where it says nothing.
constexpr Duration refused_limit = 30s, refused_pause = 500ms;  ///< For a node that the rendezvous refuses before its workers ran.
constexpr std::size_t event_log_max = 64 << 20;

std::uint32_t workers_here(const ChaosOptions& options) { return options.nodes_here() * options.world.workers; }

/// So many lines of a step there can be: all workers say it.
StepVoices all_voices(const ChaosOptions& options) { return {.of_node = options.world.workers, .of_all = workers_here(options)}; }

std::string text_of_file(const std::string& path) {
  std::ifstream file{path, std::ios::binary | std::ios::ate};
  const std::streamoff size = file.is_open() ? std::streamoff{file.tellg()} : 0;
  std::string text(std::min(static_cast<std::size_t>(std::max<std::streamoff>(size, 0)), event_log_max), '\0');
  file.seekg(0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

// --- WorkerHolds ---

WorkerHolds::~WorkerHolds() {
  for (const auto& [fault, hold] : holds_) signal_process(hold.worker, SIGCONT);
}

bool WorkerHolds::stop(std::size_t fault, Fd worker) {
  const bool there = signal_process(worker, SIGSTOP);
  if (there) holds_[fault] = {std::move(worker), 0, false};
  return there;
}

bool WorkerHolds::slow(std::size_t fault, Fd worker, std::uint32_t percent) {
  if (!signal_process(worker, SIGCONT)) return false;
  holds_[fault] = {std::move(worker), percent, true, std::make_unique<boost::asio::steady_timer>(loop_)};
  turn(fault);
  return true;
}

void WorkerHolds::turn(std::size_t fault) {
  const auto found = holds_.find(fault);
  if (found == holds_.end()) return;
  Hold& hold = found->second;
  hold.runs = !hold.runs;
  if (!signal_process(hold.worker, hold.runs ? SIGCONT : SIGSTOP)) return;
  const Duration runs = slow_period * hold.percent / 100;
  hold.timer->expires_after(std::max(slow_slice_min, hold.runs ? runs : slow_period - runs));
  hold.timer->async_wait([this, fault](const boost::system::error_code& error) {
    if (!error) turn(fault);
  });
}

void WorkerHolds::let_go(std::size_t fault) {
  const auto found = holds_.find(fault);
  if (found == holds_.end()) return;
  signal_process(found->second.worker, SIGCONT);
  holds_.erase(found);
}

// --- ChaosRun ---

ChaosRun::ChaosRun(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, Setting setting, Say say,
                   std::function<void()> over)
    : clock_{clock},
      setting_{std::move(setting)},
      say_{std::move(say)},
      over_{std::move(over)},
      timer_{loop},
      job_{loop,
           guard,
           clock,
           setting_.job,
           [this](std::uint32_t node, std::string_view line) { saw(node, line); },
           [this] { wake_in(Duration{0}); }},
      holds_{loop},
      rehearsal_{setting_.plan, setting_.job.options.world, setting_.job.options.own_node},
      steps_{setting_.job.options.step_mark, setting_.step_voices.value_or(all_voices(setting_.job.options))},
      states_{setting_.job.options.world, setting_.job.options.state_mark, setting_.job.options.step_mark, setting_.job.options.role} {
  for (const Fault& fault : setting_.plan)
    records_.push_back({.fault = fault, .of_others = hits_other_node(fault, setting_.job.options.world, own_node())});
}

Result<void> ChaosRun::start(Orphans& orphans) {
  orphans_ = &orphans;
  auto started = job_.start();
  if (!started.ok()) (void)job_.end_all(orphans);
  else wake_in(look_interval);
  return started;
}

std::vector<pid_t> ChaosRun::abort() {
  if (std::exchange(is_finished_, true)) return {};
  timer_.cancel();
  for (std::size_t i = 0; i < records_.size(); ++i) holds_.let_go(i);
  return job_.end_all(*orphans_);
}

void ChaosRun::saw(std::uint32_t node, std::string_view line) {
  // What an agent says of itself is no sign that its workers have a place in the job. Its words may go on for several lines, so of an own node,
  // which no other's success tells that the job is over, a line counts once there were workers.
  const bool is_of_worker = !line.starts_with("[elrun ") && (!own_node() || job_.has_worked(node));
  have_printed_ |= is_of_worker;
  if (const auto away = away_.find(node); !first_success_ && away != away_.end() && away->second && is_of_worker) away_.erase(away);
  // A node that comes back to a job that is over may begin it anew: what it says then is not this run's.
  if (first_success_ && away_.contains(node) && clock_.now() - *first_success_ > last_output_timeout) return;
  steps_.saw(line, node, clock_.now() - job_.began(), states_.saw(line, node));
}

void ChaosRun::wake_in(Duration time) {
  timer_.expires_after(time);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !is_finished_) look();
  });
}

void ChaosRun::look() {
  const Instant now = clock_.now();
  if (is_over() && is_started_again(now)) return wake_in(look_interval);
  if (is_over()) return finish();
  if (own_node()) (void)job_.has_worked(*own_node());
  if (!first_success_) note_first_success(now);
  if (first_success_ && now - *first_success_ > others_limit && only_those_run_that_were_away()) {
    notes_.push_back(
        fmt::format("the job is done, and {} later nodes that had come back to it still ran: they were killed", for_people(others_limit)));
    return finish();
  }
  const bool waits_for_others = own_node() && !zero_;  // which the rendezvous has a deadline for
  if (setting_.limit && !waits_for_others && now - counts_from() > *setting_.limit) {
    in_time_ = false;
    notes_.push_back(
        fmt::format("the {} run took longer than its limit of {}, and was ended", setting_.job.name, for_people(*setting_.limit)));
    return finish();
  }
  if (!zero_ || now - *zero_ < count_time) note_unexpected_worker();
  if (!zero_) note_missing_nodes();
  if (unexpected_) return finish();
  if (!zero_ && all_workers_run()) {
    zero_ = now;
    say_(fmt::format("{}: {} run", setting_.job.name, count_of(workers_here(setting_.job.options), "worker")));
  }
  if (zero_) do_what_is_due();
  wake_in(look_interval);
}

void ChaosRun::do_what_is_due() {
  const Duration time = clock_.now() - *zero_;
  if (!rehearsal_.may_act(time, steps_.highest())) return;
  // A fault that began changes what there is for the next one.
  for (bool has_begun = true; has_begun;) {
    has_begun = false;
    for (const FaultAction& action : rehearsal_.on(gather(time))) {
      perform(action, clock_.now() - *zero_);
      has_begun |= action.what == FaultAction::What::begin && records_[action.fault].began.has_value();
    }
  }
}

bool ChaosRun::all_workers_run() const {
  const std::uint32_t workers = setting_.job.options.world.workers;
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node) {
    std::vector<bool> there(workers);
    for (const WorkerProcess& worker : job_.workers(node))
      if (worker.local_rank < workers) there[worker.local_rank] = true;
    if (std::ranges::find(there, false) != there.end()) return false;
  }
  return true;
}

// The states of workers that are not counted would be taken for another one's, and no failure would hit them.
void ChaosRun::note_unexpected_worker() {
  const std::uint32_t workers = setting_.job.options.world.workers;
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node)
    for (const WorkerProcess& worker : job_.workers(node))
      if (worker.local_rank >= workers && !unexpected_)
        unexpected_ = fmt::format("node {} has a worker with LOCAL_RANK {}, and --nproc-per-node says {} for each node", node,
                                  worker.local_rank, count_of(workers, "worker"));
}

void ChaosRun::note_missing_nodes() {
  if (!own_node() || unexpected_) return;
  const std::uint32_t nodes = setting_.job.options.world.nodes;
  for (const WorkerProcess& worker : job_.workers(*own_node()))
    if (worker.nodes && *worker.nodes < nodes && !unexpected_)
      unexpected_ = fmt::format(
          "the {} run began with {} of the {} that the plan is for. All of them have to be started, with the same words for the plan and the "
          "nodes, and early enough for each other (--rdzv_conf last_call_timeout)",
          setting_.job.name, *worker.nodes, count_of(nodes, "node"));
}

// When every launcher has ended by itself; one that was lost does not come back to a job that is over.
bool ChaosRun::is_over() const {
  bool any_ended = false;
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node) {
    if (job_.runs(node)) return false;
    any_ended |= job_.ending(node).has_value();
  }
  return any_ended;
}

bool ChaosRun::is_started_again(Instant now) {
  if (!own_node() || zero_ || now - job_.began() > refused_limit) return false;
  const auto& ending = job_.ending(*own_node());
  if (!ending || ending->code() != exit_code::contradiction) return false;
  if (!std::exchange(told_refusal_, true))
    say_(fmt::format(
        "{}: the rendezvous refuses this node, as that of another run does, or of nodes with another plan: it is asked again for {}",
        setting_.job.name, for_people(refused_limit)));
  if (now - job_.ended_at(*own_node()) >= refused_pause) return job_.start_again(*own_node()).ok();
  return true;
}

bool ChaosRun::never_worked() const {
  if (!own_node() || zero_ || have_printed_) return false;
  const auto& ending = job_.ending(*own_node());
  return ending && ending->ok();
}

bool ChaosRun::is_served_elsewhere() const {
  if (!own_node() || job_.coordinator()) return false;
  return !served_when_lost_ || !job_.workers(*own_node()).empty();  // one that was lost serves again when it is back
}

bool ChaosRun::only_those_run_that_were_away() const {
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node)
    if (job_.runs(node) && !away_.contains(node)) return false;
  return true;
}

void ChaosRun::note_first_success(Instant now) {
  std::erase_if(away_, [&](const auto& one) {
    const auto& [node, back_at] = one;
    return back_at && now - *back_at >= back_after && !job_.workers(node).empty();
  });
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end() && !first_success_; ++node)
    if (const auto& ending = job_.ending(node); ending && ending->ok()) first_success_ = now;
  if (first_success_) rehearsal_.begin_no_more();
}

bool ChaosRun::was_killed(std::uint32_t node, const WorkerProcess& worker) const {
  const auto killed = killed_.find({node, worker.local_rank});
  return killed != killed_.end() && killed->second == worker.pid;
}

RehearsalFacts ChaosRun::gather(Duration time) const {
  RehearsalFacts facts{.time = time, .step = steps_.highest()};
  facts.nodes.resize(job_.nodes_begin());
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node) {
    NodeAtRehearsal& at = facts.nodes.emplace_back();
    at.has_agent = job_.runs(node);
    at.workers.resize(setting_.job.options.world.workers);
    for (const WorkerProcess& worker : job_.workers(node))
      if (worker.local_rank < at.workers.size() && !was_killed(node, worker)) at.workers[worker.local_rank] = true;
  }
  facts.has_coordinator = job_.has_store() ? job_.store_runs() : job_.coordinator().has_value();
  facts.is_served_elsewhere = is_served_elsewhere();
  return facts;
}

void ChaosRun::perform(const FaultAction& action, Duration time) {
  FaultRecord& record = records_[action.fault];
  const std::string what = plan_line(record.fault);
  switch (action.what) {
    case FaultAction::What::begin: {
      const auto hit = begin(action.fault);
      if (!hit.ok() && hit.failure().code == Code::not_found) {  // it has ended just now
        rehearsal_.waits_again(action.fault);
        break;
      }
      if (hit.ok()) record.began = time;
      record.words = hit.ok() ? *hit : hit.failure().what;
      say_(fmt::format("{:8.2f} s  {}: {}", seconds(time), what, record.words));
      break;
    }
    case FaultAction::What::end:
      end(action.fault);
      record.ended = time;
      if (record.began) say_(fmt::format("{:8.2f} s  {}: over", seconds(time), what));
      break;
    case FaultAction::What::leave_out:
      record.words = fmt::format("left out: what it hits was not there for {}", for_people(fault_patience));
      say_(fmt::format("{:8.2f} s  {}: {}", seconds(time), what, record.words));
      break;
    case FaultAction::What::leave_to_others:
      record.of_others = record.came = true;
      say_(fmt::format("{:8.2f} s  {}: another node serves the rendezvous, and loses it", seconds(time), what));
      break;
  }
}

Result<std::string> ChaosRun::begin(std::size_t fault) {
  const Fault& f = records_[fault].fault;
  switch (f.kind) {
    case FaultKind::kill:
    case FaultKind::stop:
    case FaultKind::slow: return hit_worker(fault);
    case FaultKind::coordinator: return hit_coordinator(fault);
    case FaultKind::kill_agent: lose(fault, f.target); return fmt::format("node {} is lost", f.target);
    case FaultKind::cut:
      ELRUN_TRY(setting_.job.networks->cut(f.target));
      away_[f.target] = std::nullopt;
      return fmt::format("node {} has no network", f.target);
    case FaultKind::fill: ELRUN_TRY(setting_.disk->fill()); return std::string{"the disk is full"};
  }
  return invalid("no such kind");
}

void ChaosRun::lose(std::size_t fault, std::uint32_t node) {
  served_when_lost_ = job_.coordinator() == node;
  job_.lose(node);
  states_.lost(node);
  lost_node_[fault] = node;
  away_[node] = std::nullopt;
}

Result<std::string> ChaosRun::hit_worker(std::size_t fault) {
  const Fault& f = records_[fault].fault;
  const std::uint32_t workers = setting_.job.options.world.workers;
  for (const WorkerProcess& worker : job_.workers(f.target / workers)) {
    if (worker.local_rank != f.target % workers || was_killed(f.target / workers, worker)) continue;
    Fd process = hold_worker(worker);
    const bool there = f.kind == FaultKind::kill   ? signal_process(process, SIGKILL)
                       : f.kind == FaultKind::stop ? holds_.stop(fault, std::move(process))
                                                   : holds_.slow(fault, std::move(process), f.percent);
    if (there && f.kind == FaultKind::kill) {
      states_.lost(f.target / workers, worker.local_rank);
      killed_[{f.target / workers, worker.local_rank}] = worker.pid;
    }
    if (there) return fmt::format("process {}, worker {} of node {}", worker.pid, worker.local_rank, f.target / workers);
  }
  return Failure{Code::not_found, Remedy::retry, "the worker has ended just now"};
}

Result<std::string> ChaosRun::hit_coordinator(std::size_t fault) {
  if (job_.has_store()) {
    job_.lose_store();
    return std::string{"`elrun store` is lost"};
  }
  const auto node = job_.coordinator();
  if (!node) return Failure{Code::not_found, Remedy::retry, "nobody serves the rendezvous just now"};
  lose(fault, *node);
  return fmt::format("node {}, which serves the rendezvous, is lost", *node);
}

void ChaosRun::end(std::size_t fault) {
  const Fault& f = records_[fault].fault;
  Result<void> done;
  holds_.let_go(fault);
  if (f.kind == FaultKind::cut) {
    done = setting_.job.networks->mend(f.target);
    away_[f.target] = clock_.now();
  }
  if (f.kind == FaultKind::fill) setting_.disk->make_room();
  // Those that still work need the store; a node that was lost does not come back to a job that is over.
  if (!is_finished_ && f.kind == FaultKind::coordinator && job_.has_store()) done = job_.bring_back_store();
  if (const auto node = lost_node_.find(fault); node != lost_node_.end() && !first_success_ && !is_finished_) {
    done = job_.bring_back(node->second);
    away_[node->second] = clock_.now();
  }
  if (!done.ok()) notes_.push_back(fmt::format("{}: {}", plan_line(f), message(done.failure())));
}

void ChaosRun::finish() {
  is_finished_ = true;
  over_at_ = clock_.now();
  note_steps_not_said();
  if (!zero_ && !setting_.plan.empty())
    notes_.push_back(fmt::format(
        "{} run: never were all {} seen to run at one time, so no failure could be made: a worker is a process that has RANK and "
        "LOCAL_RANK in its environment, as /proc shows it",
        setting_.job.name, count_of(workers_here(setting_.job.options), "worker")));
  if (const auto& ending = own_node() ? job_.ending(*own_node()) : std::optional<Ending>{};
      told_refusal_ && ending && ending->code() == exit_code::contradiction)
    notes_.push_back(
        "the rendezvous refused this node to the end, and its log says why. Where that is the run's id, another run is at that place, or the other "
        "nodes have another plan: what says the plan (--plan, or --mtbf, --for, --seed and --kinds), the nodes and --nproc_per_node has to be the "
        "same on all of them");
  timer_.cancel();
  for (const FaultAction& action : rehearsal_.finish()) end(action.fault);
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node)
    if (const auto& ending = job_.ending(node); ending && !ending->ok())
      notes_.push_back(fmt::format("{} run: node {} ended with {}", setting_.job.name, node, describe(*ending)));
  if (const std::string words = words_of_remaining(job_.end_all(*orphans_), end_limit); !words.empty())
    notes_.push_back(fmt::format("{} run: {}", setting_.job.name, words));
  over_();
}

void ChaosRun::note_steps_not_said() {
  if (!own_node() || !zero_) return;
  std::size_t count = 0;
  std::string first;
  for (const FaultRecord& record : records_)
    if (record.fault.step && !record.of_others && !record.began && record.words.empty() && !(steps_.highest() >= record.fault.step))
      if (count++ == 0) first = plan_line(record.fault);
  if (count > 0)
    notes_.push_back(
        fmt::format("{} waited for a step that no worker of this node printed, the first is `{}`", count_of(count, "failure"), first));
}

std::vector<NodeEnd> ChaosRun::ends() const {
  std::vector<NodeEnd> ends;
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node)
    if (const auto& ending = job_.ending(node))
      ends.push_back({node, ending->code(), job_.ended_at(node) - job_.began(), away_.contains(node)});
  return ends;
}

RunFacts ChaosRun::facts() const {
  RunFacts facts{.in_time = in_time_,
                 .unfit = unexpected_,
                 .states = states_.states(),
                 .states_of_killed = states_.are_of_killed(),
                 .step = steps_.highest(),
                 .step_lines = steps_.lines(),
                 .steps_again = steps_.again(),
                 .step_voices = steps_.voices_heard(),
                 .step_span = steps_.span(),
                 .step_gap = steps_.median_gap(),
                 .notes = notes_};
  const std::vector<NodeEnd> all = ends();
  facts.failed = nodes_that_failed(all);
  if (!facts.failed.empty()) facts.exit_code = facts.failed.front().exit_code;
  Duration last{0};
  for (const NodeEnd& end : all) last = std::max(last, end.at), facts.some_node_succeeded |= end.exit_code == 0;
  const Duration waited = counts_from() - job_.began();
  facts.wall = (!in_time_ || unexpected_ ? over_at_ - job_.began() : first_success_ ? *first_success_ - job_.began() : last) - waited;
  facts.was_away = own_node() && away_.contains(*own_node());
  if (never_worked())
    facts.unfit = fmt::format("no worker of this node ran in the {} run: it came when the job was over, or there was no place for it",
                              setting_.job.name);
  std::vector<std::string> events;
  for (std::uint32_t node = job_.nodes_begin(); node < job_.nodes_end(); ++node)
    events.push_back(text_of_file(fmt::format("{}/events.{}", setting_.job.directory, node)));
  facts.times = reported_times(events);
  return facts;
}

std::vector<FaultRecord> ChaosRun::records() const {
  std::vector<FaultRecord> records = records_;
  if (!zero_) return records;
  const Duration zero = *zero_ - job_.began();
  for (FaultRecord& record : records) {
    const Fault& fault = record.fault;
    if (record.of_others) record.came |= fault.step ? steps_.highest() >= fault.step : fault.at <= over_at_ - *zero_;
    if (!record.began) continue;
    Duration next = Duration::max();
    for (const FaultRecord& other : records)
      if (other.began && *other.began > *record.began) next = std::min(next, *other.began + zero);
    record.pause = steps_.pause(*record.began + zero, next);
  }
  return records;
}

std::vector<std::string> ChaosRun::last_lines() const {
  const std::vector<NodeEnd> failed = nodes_that_failed(ends());
  return job_.last_lines(failed.empty() ? job_.nodes_begin() : failed.front().node);
}

}  // namespace elrun::inline v0::launcher
