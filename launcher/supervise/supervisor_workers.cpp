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

constexpr Duration last_words = 1s;          // of a worker that has ended: its connection ends with it, unless a child of its holds that
constexpr std::size_t peer_words_max = 300;  // of why a peer cannot be reached
constexpr Duration broken_line_most = 10s;   // well before workers give up waiting for the word that their generation is over

}  // namespace

std::size_t Supervisor::running() const {
  return static_cast<std::size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && !w.ending; }));
}

std::string Supervisor::name_of(std::size_t worker) const {
  return fmt::format("rank {} (node {}, pid {})", rank_of(worker), options_.node.value(), workers_[worker].pid);
}

std::optional<std::size_t> Supervisor::worker_at(ConnectionId connection) const {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].connection == connection) return i;
  return std::nullopt;
}

void Supervisor::on_worker_ended(const WorkerEnded& e) {
  const std::size_t i = e.worker.value();
  ELRUN_ASSERT(i < workers_.size() && !workers_[i].ending);
  Worker& w = workers_[i];
  if (phase_ == Phase::running && in_world(w) && e.ending.ok() && !job_over_ && owes_end(w)) return ends_early(i, e);
  w.ending = e.ending;
  hang_.forget(e.worker);
  hang_unopened_.forget(e.worker);
  w.failed_at = now_ - e.ago;
  w.death = e.death;
  hang_at_start_.forget(e.worker);
  if (!w.hung.empty() && !e.ending.ok()) w.death.evidence = fmt::format("it hung ({}), and elrun ended it", w.hung);
  if (!in_world(w)) return on_coming_ended(i);
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
    say(Level::error, fmt::format("{} ended by {}{} in generation {}{}", name_of(i), cause_of(w),
                                  e.death.error.empty() ? "" : fmt::format(" ({})", e.death.error), world_.generation.number,
                                  w.session.early_as.empty() ? "" : ": " + e.death.evidence));
    own_failure_ = true;
    note_loss();
    tell_of_failure(i);
    join_as_broken();
  }
  const bool all_well = std::all_of(workers_.begin(), workers_.end(),
                                    [this](const Worker& x) { return !in_world(x) || (x.ending && (x.ending->ok() || job_over_)); });
  if (all_well) tell_that_workers_are_done();
  tell_of_starting();
  end_without_coordinator();
}

// A Job's worker that ends well has said before that the job is over. One that has not ended in the middle of it, by a call of
// exit or a return from its program: its peers wait for it, and nothing says that the job has succeeded.
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
  const bool none_opened = std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && w.session.opened; });
  act(Send{WorkersDone{world_.generation, none_opened && places_ > 0 && !job_over_}});
}

// A worker that dies before it has opened its session cannot say what it is. The others can.
void Supervisor::tell_that_workers_are_job() {
  if (told_job_ || phase_ != Phase::running || !link_up_ || !served_) return;
  if (std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && w.session.opened && w.is_job; })) return;
  told_job_ = true;
  act(Send{WorkersAreJob{world_.generation}});
}

// A worker that was killed because it hung died of that.
int Supervisor::code_of(const Worker& w) { return w.hung.empty() ? w.ending->code() : exit_code::hang; }
std::string Supervisor::cause_of(const Worker& w) {
  if (!w.session.early_as.empty()) return w.session.early_as;
  return w.hung.empty() ? describe(*w.ending) : fmt::format("a hang ({}), then {}", w.hung, describe(*w.ending));
}

// In full for the first of this node; of thousands that fail together, the others need not be told at such length.
void Supervisor::tell_of_failure(std::size_t worker) {
  const Worker& w = workers_[worker];
  const bool first = std::none_of(workers_.begin(), workers_.end(),
                                  [&](const Worker& x) { return &x != &w && x.ending && !x.ending->ok() && x.failed_at <= w.failed_at; });
  // An error that elrun's signal cut short: the exit code would have been the interpreter's for an exception.
  const bool cut_short = phase_ == Phase::stopping && w.ending->signal != 0 && w.failed_at < stopped_at_;
  WorkerFailed failed{world_.generation,
                      static_cast<std::uint32_t>(worker),
                      cut_short ? 1 : code_of(w),
                      cause_of(w),
                      w.is_job,
                      std::clamp<Duration>(now_ - w.failed_at, Duration{0}, 24h),
                      {},
                      rank_of(worker)};
  if (!in_world(w)) failed.what += " before it was in a world";
  if (!w.death.error.empty()) failed.what += (cut_short ? " of elrun, after " : ": ") + w.death.error;
  failed.before_session = !w.session.opened;
  failed.death = first ? bounded(w.death) : bounded(w.death, death_beside_max, death_beside_max);
  act(Send{std::move(failed)});
}

void Supervisor::note_loss() {
  if (!lost_) lost_at_ = now_;
  lost_ = true;
}

void Supervisor::refuse(ConnectionId connection, Failure why) {
  act(Answer{connection, Refusal{std::move(why)}});
  act(HangUp{connection});
}

void Supervisor::on_worker_said(ConnectionId from, const Hello& hello) {
  const auto i = worker_that_is(hello);
  if (phase_ != Phase::running && !(i && is_coming(workers_[*i])))
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
  if (is_coming(w)) {
    if (w.coming.dismissed || !hello.stays)
      return refuse(from, {Code::generation_over, Remedy::exit_process, "the generation of this worker is over"});
    w.coming.says_ready = hello.says_ready;
    hang_at_start_.sign(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
    return tell_it_is_early(*i);
  }
  hang_.watch(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
  hang_unopened_.forget(LocalRank{static_cast<std::uint32_t>(*i)});
  tell_that_workers_are_job();
  welcome(*i);
  tell_of_starting();
}

// Ranks move from one generation to the next: what its environment said at its start is what it says now, and so may
// another one's have said. A wrapper has another process number than its program.
std::optional<std::size_t> Supervisor::worker_that_is(const Hello& hello) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.began_as || w.began_as->rank.value() != hello.rank || w.began_as->world.value() != hello.world) continue;
    if (w.pid != 0 && static_cast<std::uint64_t>(w.pid) == hello.pid) return i;
    if (!found || (!w.ending && !w.connection)) found = i;
  }
  return found;
}

// A worker that stays has a time to come back from its program, which its peers wait for.
void Supervisor::welcome(std::size_t worker) {
  Worker& w = workers_[worker];
  w.session.joined = w.session.joined || w.stays || w.coming.is_ready;
  if (w.stays || w.coming.says_ready) w.return_by = now_ + std::max(options_.timeouts.returning, w.returns_within);
  w.stays = w.quit = w.ready_to_leave = w.cannot_go_on = w.held = false;
  w.coming = {};
  act(Answer{*w.connection,
             Welcome{place_of(worker, {world_.generation, Rank{rank_of(worker)}, WorldSize{world_.seat.world_size}}), remembered_}});
}

void Supervisor::on_worker_said(ConnectionId from, const CheckpointSaved& m) {
  if (worker_at(from)) remembered_.checkpoint = m.acknowledgement;  // also when that generation is over: the checkpoint is there
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
  const auto i = worker_at(from);
  if (!i || phase_ != Phase::running || m.generation != world_.generation) return;
  workers_[*i].return_by.reset();
  hang_.watch(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const StepDecided& m) {
  const auto worker = worker_at(from);
  if (phase_ != Phase::running || !worker || m.generation != world_.generation) return;
  workers_[*worker].session.decided = true;
  if (lost_at_ && !lost_) {
    say(Level::info, fmt::format("recovered: step {} decided {} after the loss", m.step, for_people(now_ - *lost_at_)));
    lost_at_.reset();
  }
  for (std::uint32_t i = 0; i < workers_.size(); ++i) hang_.sign(LocalRank{i}, now_);  // all members decide a step together
  for (Worker& w : workers_) w.session.joined = w.session.joined || in_world(w);
  tell_of_starting();
  if (m.step <= step_) return;  // another worker of this node said so already
  step_ = m.step;
  remembered_.decided = std::max(remembered_.decided, m.step);
  act(Send{Progress{m.generation, m.step}});
}

// A program that uses libelrun without its Job has no steps: it lives as long as its session says so.
void Supervisor::on_worker_said(ConnectionId from, const Alive&) {
  if (const auto i = worker_at(from); i && !workers_[*i].is_job) hang_.sign(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_wrote(LocalRank worker) {
  if (worker.value() >= workers_.size()) return;
  if (!workers_[worker.value()].is_job) hang_.sign(worker, now_);
  hang_at_start_.sign(worker, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const JobOver& m) {
  // Also when that generation is over: all its members decided it before.
  if (!worker_at(from) || (m.generation != world_.generation && m.generation != before_)) return;
  if (!job_over_) act(Send{JobFinished{world_.generation}});
  job_over_ = true;
  for (Worker& w : workers_) w.return_by.reset();
  dismiss_coming();
  if (phase_ == Phase::joining) {  // there is no next generation for those who stayed
    phase_ = Phase::stopping;
    stopped_at_ = now_;
    after_ = {};
  }
  if (phase_ == Phase::stopping) kill_staying(true);
  hang_.clear();  // what it does now is work of its own
  hang_unopened_.clear();
  end_hung_at_.reset();
  for (Worker& w : workers_)
    if (!w.ending) w.hung.clear();
  act(Answer{from, JobOver{m.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const GenerationOver& m) {
  const auto i = worker_at(from);
  if (i && is_coming(workers_[*i])) {
    if (!workers_[*i].coming.says_ready && m.generation == workers_[*i].began_as->generation) is_ready(*i);
    return;
  }
  if (!i || m.generation != world_.generation) return;
  if (phase_ == Phase::running && m.why.code == Code::peer_lost) {
    workers_[*i].cannot_go_on = true;
    hold_the_broken();
    const auto known = [&](const PeerUnreachable& u) { return u.rank == rank_of(*i); };
    if (m.unreachable && !ELRUN_PLANTED(unreachable_is_not_told) && m.why.peer &&
        std::none_of(unreachable_.begin(), unreachable_.end(), known)) {
      unreachable_.push_back({m.generation, rank_of(*i), m.why.peer->value(), workers_[*i].is_job, m.why.what.substr(0, peer_words_max)});
      if (link_up_ && served_) act(Send{unreachable_.back()});
    }
    // A worker that died or a node that fell silent is known by then, and is the better reason.
    if (!broken_line_at_)
      broken_line_at_ = now_ + std::min(options_.timeouts.heartbeat_limit + options_.timeouts.reconnect_grace, broken_line_most);
    if (std::exchange(peer_lost_, true)) return;
    peer_lost_why_ = m.why.what;
    join_as_broken();
    return;
  }
  if (phase_ != Phase::stopping || m.why.code != Code::generation_over || !workers_[*i].stays) return;
  workers_[*i].quit = true;
  workers_[*i].returns_within = std::clamp<Duration>(m.returns_within, Duration{0}, 24h);
  stop_if_done();
}

StoreReply Supervisor::refused_call(const StoreRequest& call, Code code, std::string what) {
  StoreReply reply;
  reply.id = call.id;
  reply.ok = false;
  reply.code = code;
  reply.what = std::move(what);
  return reply;
}

void Supervisor::on_worker_said(ConnectionId from, const StoreRequest& m) {
  if (!worker_at(from)) return refuse(from, {Code::protocol, Remedy::exit_process, "a store call before Hello"});
  if (phase_ != Phase::running && !(phase_ == Phase::stopping && job_over_))
    return act(Answer{from, refused_call(m, Code::generation_over, "the generation is over")});
  if (m.generation != world_.generation)
    return act(Answer{
        from, refused_call(m, Code::generation_over,
                           fmt::format("the call is for generation {}, this is {}", m.generation.number, world_.generation.number))});
  const auto first = calls_.lower_bound({from, 0}), last = calls_.upper_bound({from, ~std::uint64_t{0}});
  if (static_cast<std::size_t>(std::distance(first, last)) >= store_calls_per_worker_max)
    return act(Answer{from, refused_call(m, Code::exhausted,
                                         fmt::format("{} store calls of this worker are under way already", store_calls_per_worker_max))});
  if (!calls_.try_emplace({from, m.id}, m).second)
    return act(Answer{from, refused_call(m, Code::protocol, fmt::format("a store call with the number {} is under way already", m.id))});
  if (served_) act(Send{StoreCall{from, m}});
  if (m.op == StoreOp::all_gather && phase_ == Phase::running) has_joined(workers_[*worker_at(from)]);
}

void Supervisor::on_hung_up(ConnectionId from) {
  calls_.erase(calls_.lower_bound({from, 0}), calls_.upper_bound({from, ~std::uint64_t{0}}));
  if (const auto i = worker_at(from)) {
    Worker& w = workers_[*i];
    w.connection.reset();
    act(Send{StoreCallerGone{from}});
    if (w.session.ended_early) return judge_early_end(*i);
    if ((!w.stays && !w.coming.is_ready) || w.ending) return;
    w.stays = false;  // nobody can tell it its place
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(*i)}, SIGKILL});
  }
}

}  // namespace elrun::inline v0::launcher
