// Supervisor: what happens to workers, and what they say.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration last_words = 1s;         // of a worker that has ended: its connection ends with it, unless a child of its holds that
constexpr Duration broken_line_most = 10s;  // well before workers give up waiting for the word that their generation is over

}  // namespace

std::string Supervisor::name_of(std::size_t worker) const {
  return fmt::format("rank {} (node {}, pid {})", rank_of(worker), options_.node.value(), workers_[worker].pid);
}

void Supervisor::on_worker_ended(const WorkerEnded& e) {
  const std::size_t i = e.worker.value();
  ELRUN_ASSERT(i < workers_.size() && !workers_[i].ending);
  Worker& w = workers_[i];
  if (phase_ == Phase::running && w.in_world() && e.ending.ok() && !job_over_ && w.owes_end()) return ends_early(i, e);
  w.ending = e.ending;
  hangs_.forget(e.worker);
  w.failed_at = now_ - e.ago;
  w.death = e.death;
  if (!w.hung.empty() && !e.ending.ok()) w.death.evidence = fmt::format("it hung ({}), and elrun ended it", w.hung);
  if (!w.in_world()) return on_pending_ended(i);
  if (phase_ == Phase::joining) {  // one that was to stay: the next world gets a fresh one
    act(SignalGroup{e.worker, SIGKILL});
    act(Release{e.worker});
    w.released = true;
    if (w.connection) act(HangUp{*std::exchange(w.connection, std::nullopt)});
    return say(Level::warning, fmt::format("{} ended by {} between generations", name_of(i), describe(e.ending)));
  }
  if (phase_ == Phase::stopping) {
    // What failed beside the worker that ended the generation, or before it: the coordinator puts them in order.
    const bool ended_by_elrun = e.ending.code() == 128 + SIGTERM || e.ending.code() == 128 + SIGKILL;
    if (after_.rejoin && !job_over_ && !e.ending.ok() && (!ended_by_elrun || w.failed_at < stopped_at_)) tell_of_failure(i);
    act(SignalGroup{e.worker, SIGKILL});  // what it started and left behind
    return stop_if_done();
  }
  if (!e.ending.ok() && job_over_) {
    say(Level::warning, fmt::format("{} ended by {} after the job was over; it does not count", name_of(i), describe(e.ending)));
  } else if (!e.ending.ok()) {
    say(Level::error, fmt::format("{} ended by {}{} in generation {}{}", name_of(i), w.cause(),
                                  e.death.error.empty() ? "" : fmt::format(" ({})", e.death.error), world_.generation.number,
                                  w.session.early_as.empty() ? "" : ": " + e.death.evidence));
    own_failure_ = true;
    recovery_.lost(now_);
    tell_of_failure(i);
    join_as_broken();
  }
  const bool all_well = std::all_of(workers_.begin(), workers_.end(),
                                    [this](const Worker& x) { return !x.in_world() || (x.ending && (x.ending->ok() || job_over_)); });
  if (all_well) tell_that_workers_are_done();
  tell_of_starting();
  end_without_coordinator();
}

// A Job's worker says that the job is over before it ends with exit code 0. One that ends without it has left in the middle of
// the job: its program called exit or returned. Its peers wait for it, so this counts as a failure.
void Supervisor::ends_early(std::size_t worker, const WorkerEnded& e) {
  Worker& w = workers_[worker];
  if (w.connection && !w.session.ended_early) {
    w.session.ended_early = e;
    w.session.judge_by = now_ + last_words;
    return;
  }
  WorkerEnded failed = e;
  failed.ending = {.exit_code = 1};
  w.session.early_as = fmt::format("exit code 0 {}, before the end of the job was decided",
                                   step_ > 0 ? fmt::format("after step {}", step_) : "with no step decided in this generation");
  failed.death.evidence =
      "the program left in the middle of the job: a Job's program goes on until next_step() returns nothing; job.stop() ends a job early, on all ranks";
  on_worker_ended(failed);
}

void Supervisor::judge_early_end(std::size_t worker) {
  Worker& w = workers_[worker];
  w.session.judge_by.reset();
  if (!w.session.ended_early || w.ending) return;
  const WorkerEnded seen = *w.session.ended_early;
  on_worker_ended(seen);
}

void Supervisor::tell_that_workers_are_done() {
  const bool none_opened = std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_world() && w.session.opened; });
  act(Send{WorkersDone{world_.generation, none_opened && places_ > 0 && !job_over_}});
}

// A worker that dies before it opens its session cannot say that it is a Job's. The other workers can.
void Supervisor::tell_that_workers_are_job() {
  if (line_.knows_job() || phase_ != Phase::running || !line_.can_report()) return;
  if (std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_world() && w.session.opened && w.is_job; })) return;
  line_.told_job();
  act(Send{WorkersAreJob{world_.generation}});
}

// The first failure of a node is reported in full. When thousands of workers fail together, the reports of the others are cut.
void Supervisor::tell_of_failure(std::size_t worker) {
  const Worker& w = workers_[worker];
  const bool first = failed_first(workers_, w);
  // The worker failed, and elrun's signal ended it before it could exit: its exit code counts as 1, Python's for an exception.
  const bool cut_short = phase_ == Phase::stopping && w.ending->signal != 0 && w.failed_at < stopped_at_;
  WorkerFailed failed{world_.generation,
                      static_cast<std::uint32_t>(worker),
                      cut_short ? 1 : w.exit_code(),
                      w.cause(),
                      w.is_job,
                      std::clamp<Duration>(now_ - w.failed_at, Duration{0}, 24h),
                      {},
                      rank_of(worker)};
  if (!w.in_world()) failed.what += " before it was in a world";
  if (!w.death.error.empty()) failed.what += (cut_short ? " of elrun, after " : ": ") + w.death.error;
  failed.before_session = !w.session.opened;
  failed.death = first ? bounded(w.death) : bounded(w.death, death_beside_max, death_beside_max);
  act(Send{std::move(failed)});
}

void Supervisor::refuse(ConnectionId connection, Failure why) {
  act(Answer{connection, Refusal{std::move(why)}});
  act(HangUp{connection});
}

void Supervisor::on_worker_said(ConnectionId from, const Hello& hello) {
  const auto i = worker_that_says(workers_, hello);
  if (phase_ != Phase::running && !(i && workers_[*i].is_pending()))
    return refuse(from, {Code::generation_over, Remedy::exit_process, "this node's generation is over"});
  if (!i)
    return refuse(from,
                  {Code::refused, Remedy::fix_config,
                   fmt::format("rank {} of {} is no worker of node {} (ranks {}-{} of {}); does the program change RANK or WORLD_SIZE?",
                               hello.rank, hello.world, options_.node.value(), world_.seat.base_rank, world_.seat.base_rank + places_ - 1,
                               world_.seat.world_size)});
  Worker& w = workers_[*i];
  if (w.ending || w.connection)
    return refuse(from,
                  {Code::already_exists, Remedy::fix_config,
                   fmt::format("rank {} is connected already or has ended: only one process per rank may open a session", hello.rank)});
  w.connection = from;
  w.session.opened = true;
  w.is_job = hello.is_job;
  job_known_ = job_known_ || hello.is_job;
  w.session.says_end = hello.says_end;
  w.can_stay = hello.stays;
  if (w.is_pending()) {
    if (w.pending.dismissed || !hello.stays)
      return refuse(from, {Code::generation_over, Remedy::exit_process, "the generation of this worker is over"});
    w.pending.says_ready = hello.says_ready;
    hangs_.pending.sign(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
    return tell_it_is_early(*i);
  }
  hangs_.in_world.watch(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
  hangs_.unopened.forget(LocalRank{static_cast<std::uint32_t>(*i)});
  tell_that_workers_are_job();
  welcome(*i);
  tell_of_starting();
}

// A worker that stays has a time to come back from its program, which its peers wait for.
void Supervisor::welcome(std::size_t worker) {
  Worker& w = workers_[worker];
  w.enter_world(now_, options_.timeouts.returning);
  act(Answer{*w.connection,
             Welcome{place_of(worker, {world_.generation, Rank{rank_of(worker)}, WorldSize{world_.seat.world_size}}), remembered_}});
}

void Supervisor::on_worker_said(ConnectionId from, const CheckpointSaved& m) {
  if (worker_with(workers_, from))
    remembered_.checkpoint = m.acknowledgement;  // also when that generation is over: the checkpoint is there
}

Place Supervisor::place_of(std::size_t worker, const Membership& membership) const {
  Place place;
  place.membership = membership;
  place.local_rank = LocalRank{static_cast<std::uint32_t>(worker)};
  place.local_world = options_.workers;
  place.run = options_.run;
  place.node = options_.node;
  place.address = world_.address;
  place.key = world_.key;
  place.restart_count = world_.restarts.generations;
  place.elastic = true;
  return place;
}

void Supervisor::on_worker_said(ConnectionId from, const Returned& m) {
  const auto i = worker_with(workers_, from);
  if (!i || phase_ != Phase::running || m.generation != world_.generation) return;
  workers_[*i].return_by.reset();
  hangs_.in_world.watch(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const StepDecided& m) {
  const auto worker = worker_with(workers_, from);
  if (phase_ != Phase::running || !worker || m.generation != world_.generation) return;
  workers_[*worker].session.decided = true;
  if (const auto took = recovery_.recovered(now_))
    say(Level::info, fmt::format("recovered: step {} decided {} after the loss", m.step, for_people(*took)));
  for (std::uint32_t i = 0; i < workers_.size(); ++i) hangs_.in_world.sign(LocalRank{i}, now_);  // all members decide a step together
  for (Worker& w : workers_) w.session.joined = w.session.joined || w.in_world();
  tell_of_starting();
  if (m.step <= step_) return;  // another worker of this node said so already
  step_ = m.step;
  remembered_.decided = std::max(remembered_.decided, m.step);
  act(Send{Progress{m.generation, m.step}});
}

// A program that uses libelrun without its Job has no steps: it lives as long as its session says so.
void Supervisor::on_worker_said(ConnectionId from, const Alive&) {
  if (const auto i = worker_with(workers_, from); i && !workers_[*i].is_job)
    hangs_.in_world.sign(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_wrote(LocalRank worker) {
  if (worker.value() >= workers_.size()) return;
  if (!workers_[worker.value()].is_job) hangs_.in_world.sign(worker, now_);
  hangs_.pending.sign(worker, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const JobOver& m) {
  // Also when that generation is over: all its members decided it before.
  if (!worker_with(workers_, from) || (m.generation != world_.generation && m.generation != before_)) return;
  if (!job_over_) act(Send{JobFinished{world_.generation}});
  job_over_ = true;
  for (Worker& w : workers_) w.return_by.reset();
  dismiss_pending();
  if (phase_ == Phase::joining) {  // there is no next generation for those who stayed
    phase_ = Phase::stopping;
    stopped_at_ = now_;
    after_ = {};
  }
  if (phase_ == Phase::stopping) kill_staying(true);
  hangs_.in_world.clear();  // what it does now is work of its own
  hangs_.unopened.clear();
  deadlines_.clear(Wait::end_hung);
  for (Worker& w : workers_)
    if (!w.ending) w.hung.clear();
  act(Answer{from, JobOver{m.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const GenerationOver& m) {
  const auto i = worker_with(workers_, from);
  if (i && workers_[*i].is_pending()) {
    if (!workers_[*i].pending.says_ready && m.generation == workers_[*i].began_as->generation) is_ready(*i);
    return;
  }
  if (!i || m.generation != world_.generation) return;
  if (phase_ == Phase::running && m.why.code == Code::peer_lost) {
    workers_[*i].cannot_go_on = true;
    hold_the_broken();
    if (m.unreachable && !ELRUN_PLANTED(unreachable_is_not_told) && m.why.peer &&
        lost_peers_.add_unreachable({m.generation, rank_of(*i), m.why.peer->value(), workers_[*i].is_job, m.why.what}) &&
        line_.can_report())
      act(Send{lost_peers_.unreachable().back()});
    // A worker that died or a node that fell silent is known by then, and is the better reason.
    if (!deadlines_.is_set(Wait::broken_line))
      deadlines_.set(Wait::broken_line,
                     now_ + std::min(options_.timeouts.heartbeat_limit + options_.timeouts.reconnect_grace, broken_line_most));
    if (lost_peers_.add(m.why.what)) join_as_broken();
    return;
  }
  if (phase_ != Phase::stopping || m.why.code != Code::generation_over || !workers_[*i].stays) return;
  workers_[*i].quit = true;
  workers_[*i].returns_within = std::clamp<Duration>(m.returns_within, Duration{0}, 24h);
  stop_if_done();
}

void Supervisor::on_worker_said(ConnectionId from, const StoreRequest& m) {
  if (!worker_with(workers_, from)) return refuse(from, {Code::protocol, Remedy::exit_process, "a store call before Hello"});
  if (phase_ != Phase::running && !(phase_ == Phase::stopping && job_over_))
    return act(Answer{from, failed_call(m, Code::generation_over, "the generation is over")});
  if (m.generation != world_.generation)
    return act(
        Answer{from, failed_call(m, Code::generation_over,
                                 fmt::format("the call is for generation {}, this is {}", m.generation.number, world_.generation.number))});
  if (auto refused = calls_.add(from, m)) return act(Answer{from, *std::move(refused)});
  if (line_.is_serving()) act(Send{StoreCall{from, m}});
  if (m.op == StoreOp::all_gather && phase_ == Phase::running) has_joined(workers_[*worker_with(workers_, from)]);
}

void Supervisor::on_hung_up(ConnectionId from) {
  calls_.forget(from);
  if (const auto i = worker_with(workers_, from)) {
    Worker& w = workers_[*i];
    w.connection.reset();
    act(Send{StoreCallerGone{from}});
    if (w.session.ended_early) return judge_early_end(*i);
    if ((!w.stays && !w.pending.is_ready) || w.ending) return;
    w.stays = false;  // nobody can tell it its place
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(*i)}, SIGKILL});
  }
}

}  // namespace elrun::inline v0::launcher
