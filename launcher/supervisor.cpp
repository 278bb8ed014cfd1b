// The life of a node: it joins, runs the workers of one generation, stops them when the generation is over, and joins
// again, until a verdict, a signal or a deadline ends it.
//
//   joining --World--> running --Revoke--> stopping --all ended: Acknowledge, Join--> joining
//                         `--Verdict, signal, coordinator away too long--> stopping --all ended--> finished
//
// A node acknowledges the end of a generation only when nothing can act for it any more: every process of it has ended, or
// stays and has acknowledged the end itself. Those that stay keep their memory, and get another place in the next world.
// What the coordinator must know while it is away (a worker failed, all are done) is not queued: it follows from the
// workers' states, and is said again when the link is back and the generation goes on.
#include "launcher/supervisor.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "rendezvous/round.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration nap_least = 100ms, nap_excuses = 1s;
constexpr Duration look_again_every = 10s;
constexpr Duration broken_line_most = 10s;  // well before workers give up waiting for the word that their generation is over

std::string for_people(Duration d) {
  const double ms = std::chrono::duration<double, std::milli>(d).count();
  return ms < 1000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", ms / 1000);
}

std::string count_of(std::size_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

StoreReply refused_call(const StoreRequest& call, Code code, std::string what) {
  StoreReply reply;
  reply.id = call.id;
  reply.ok = false;
  reply.code = code;
  reply.what = std::move(what);
  return reply;
}

// Doing it twice is the same as doing it once, so a call whose answer was lost may be sent again.
bool may_repeat(StoreOp op) { return (op != StoreOp::add || ELRUN_PLANTED(add_repeated_after_reconnect)) && op != StoreOp::compare_set && op != StoreOp::remove; }

}  // namespace

Supervisor::Supervisor(SupervisorOptions options) : options_{std::move(options)}, hang_{options_.hang_timeout} {}

std::vector<Action> Supervisor::on(const Event& event, Instant now) {
  now_ = now;
  actions_.clear();
  if (phase_ == Phase::finished) return {};
  excuse_own_nap();
  std::visit(
      [this](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, Started>)
          on_started();
        else if constexpr (std::is_same_v<E, LinkUp>)
          on_link_up();
        else if constexpr (std::is_same_v<E, LinkDown>)
          on_link_down(e.why);
        else if constexpr (std::is_same_v<E, CoordinatorSaid>)
          std::visit([this](const auto& m) { this->on_message(m); }, e.message);
        else if constexpr (std::is_same_v<E, WorkerStarted>)
          workers_.at(e.worker.value()).pid = e.pid;
        else if constexpr (std::is_same_v<E, WorkerEnded>)
          on_worker_ended(e);
        else if constexpr (std::is_same_v<E, WorkerWrote>)
          on_worker_wrote(e.worker);
        else if constexpr (std::is_same_v<E, WorkerHungUp>)
          on_hung_up(e.from);
        else if constexpr (std::is_same_v<E, SignalCame>)
          on_signal(e.number);
        else if constexpr (std::is_same_v<E, Tick>)
          on_tick();
        else if constexpr (std::is_same_v<E, WorkerSaid>)
          std::visit(
              [&](const auto& m) {
                if constexpr (requires { on_worker_said(e.from, m); }) on_worker_said(e.from, m);
              },
              e.message);
      },
      event);
  return std::move(actions_);
}

std::optional<Instant> Supervisor::wake_at() const {
  std::optional<Instant> least;
  const auto consider = [&least](const std::optional<Instant>& at) {
    if (at && (!least || *at < *least)) least = at;
  };
  for (const auto& at : {join_by_, look_again_at_, coordinator_by_, kill_at_, acknowledge_by_, broken_line_at_, verdict_by_, end_hung_at_, hang_.due(), leave_at_}) consider(at);
  for (const Worker& w : workers_) consider(w.return_by);
  return phase_ == Phase::finished ? std::nullopt : least;
}

// An agent that was itself stopped (frozen, swapped out) heard nobody: what was said to it meanwhile is behind this event.
void Supervisor::excuse_own_nap() {
  const auto wake = wake_at();
  if (!wake || now_ - *wake < nap_least) return;
  const auto excuse = [until = now_ + nap_excuses](std::optional<Instant>& at) {
    if (at) at = std::max(*at, until);
  };
  for (auto* at : {&join_by_, &coordinator_by_, &acknowledge_by_, &broken_line_at_}) excuse(*at);
  for (Worker& w : workers_) excuse(w.return_by);
  hang_.excuse_until(now_ + nap_excuses);
}

// --- the coordinator ----------------------------------------------------------------------------------------------

void Supervisor::on_started() { join_by_ = now_ + options_.timeouts.join; }

void Supervisor::join() {
  Join join;
  join.options = options_.round;
  join.workers = options_.workers;
  join.last = last_;
  join.resuming = phase_ == Phase::running || phase_ == Phase::stopping;
  if (phase_ == Phase::running) {
    join.seat = world_.seat;
    join.broken = (own_failure_ || peer_lost_) && !job_over_;
  }
  join.restarts = world_.restarts;
  join.heard = heard_;
  act(Send{join});
  // Whoever answers may know nothing of it, and the other members may be gone: they have done their part.
  if (job_over_) act(Send{JobFinished{last_}});
}

// A coordinator that waits for the other nodes of the generation need not wait long.
void Supervisor::join_as_broken() {
  if (phase_ == Phase::running && link_up_ && !served_) join();
}

void Supervisor::on_link_up() {
  if (coordinator_by_) say(Level::info, fmt::format("the coordinator at {} is back", options_.coordinator));
  link_up_ = true;
  coordinator_by_.reset();
  waiting_for_.clear();
  served_ = false;
  // Also while workers are being stopped: whoever decides about the next generation has to wait for that. A node that goes
  // for good does not join again.
  if (phase_ != Phase::stopping || after_.rejoin) join();
}

void Supervisor::on_link_down(const Failure& why) {
  // Where its name is an address already, the failure says so as well.
  waiting_for_ = "the coordinator at " + (why.what.starts_with(options_.coordinator) ? why.what : fmt::format("{}: {}", options_.coordinator, why.what));
  if (last_.number != 0 && !coordinator_by_) coordinator_by_ = now_ + options_.timeouts.coordinator_grace;
  if (last_.number == 0 && !join_by_) join_by_ = now_ + options_.timeouts.join;
  const Instant until = coordinator_by_ ? *coordinator_by_ : join_by_.value_or(now_);
  say(Level::warning, fmt::format("waiting for {}; {}it is tried for another {}", waiting_for_,
                                  phase_ == Phase::running ? "the workers go on; " : "", for_people(until - now_)));
  link_up_ = served_ = false;
  look_again_at_.reset();
  hold_the_broken();
  if (ELRUN_PLANTED(torchrun_d5_store_loss_kills_workers) && phase_ == Phase::running) stop({.rejoin = true}, std::nullopt, why);
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (may_repeat(call->second.op)) {
      ++call;
      continue;
    }
    act(Answer{
        call->first.first,
        refused_call(call->second, Code::unreachable,
                     "the coordinator was lost while this call was under way; whether it was done is not known")});
    call = calls_.erase(call);
  }
  end_without_coordinator();
}

void Supervisor::on_message(const Refused& m) {
  const bool config = m.failure.remedy == Remedy::fix_config || m.failure.code == Code::mismatch ||
                      m.failure.code == Code::invalid_argument;
  stop({.rejoin = false,
        .finish = {config ? exit_code::contradiction : exit_code::internal,
                   "this node was refused: " + message(m.failure), false}},
       std::nullopt, m.failure);
}

void Supervisor::on_message(const Waiting& m) {
  join_by_.reset();  // somebody answers: from here on it judges how long to wait, without end for a spare
  if (m.why != waiting_for_) say(Level::info, m.why);
  waiting_for_ = m.why;
  heard_ = std::max(heard_, m.running.number);
  if (phase_ != Phase::joining || m.running.number != 0) look_again_at_.reset();
  else if (!look_again_at_) look_again_at_ = now_ + look_again_every;
}

void Supervisor::on_message(const World& m) {
  if (phase_ != Phase::joining) return;     // of a round that this node has left since
  if (m.generation.number <= last_.number)  // its end was acknowledged here: nobody acts for it again
    return say(Level::warning, fmt::format("generation {} was offered after generation {}; it is not taken",
                                           to_string(m.generation), to_string(last_)));
  if (m.seat.base_rank + options_.workers > m.seat.world_size ||
      (m.role.world_size > 0 && m.role.base_rank + options_.workers > m.role.world_size)) {
    Failure why{Code::protocol, Remedy::exit_process,
                "the coordinator sent a world in which this node has no place; versions of elrun that differ?"};
    return stop({.rejoin = false, .finish = {exit_code::internal, why.what, false}}, std::nullopt, why);
  }
  phase_ = Phase::running;
  served_ = true;
  before_ = world_.generation;
  world_ = m;
  last_ = m.generation;
  join_by_.reset();
  waiting_for_.clear();
  look_again_at_.reset();
  own_failure_ = peer_lost_ = false;
  broken_line_at_.reset();
  step_ = 0;  // steps may be done again
  calls_.clear();
  memory_.clear();
  // A job that is over stays over: no worker starts, only the coordinator has to hear it (again).
  const auto staying = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.stays && !w.ending; });
  workers_.resize(job_over_ ? 0 : options_.workers);
  hang_why_.clear();
  hung_were_asked_ = false;
  for (std::uint32_t i = 0; i < workers_.size() && options_.hang_sign == HangSign::output; ++i) hang_.watch(LocalRank{i}, now_);
  std::string text = fmt::format("generation {}: {}, {}", m.generation.number, count_of(m.seat.nodes, "node"),
                                 count_of(world_.seat.world_size, "worker"));
  if (m.seat.nodes > 1 && options_.workers > 0)
    text += options_.workers == 1 ? fmt::format(", rank {} here", rank_of(0))
                                  : fmt::format(", ranks {}-{} here", rank_of(0), rank_of(options_.workers - 1));
  if (staying > 0) text += fmt::format(", {} go on here in the same process", staying);
  if (lost_at_) text += fmt::format(", started {} after the loss", for_people(now_ - *lost_at_));
  if (m.restarts.used > 0)
    text += fmt::format("; {} of {} used", m.restarts.used, count_of(static_cast<std::size_t>(options_.round.max_restarts >= 0 ? options_.round.max_restarts : job_restarts), "restart"));
  lost_ = false;
  say(Level::info, text);
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    const bool lives = workers_[i].pid != 0 && !workers_[i].ending;
    if (lives && workers_[i].stays) {
      welcome(i);
    } else if (!lives) {  // else it was killed just now, and is lost in this generation
      workers_[i] = Worker{};
      act(Spawn{m, LocalRank{i}, node_restarts_});
    }
  }
  if (workers_.empty()) report_to_coordinator();
}

void Supervisor::on_message(const Revoke& m) {
  if (m.generation != last_) return;
  if (phase_ == Phase::joining) return act(Send{Acknowledge{m.generation}});  // no process of it is left
  if (phase_ != Phase::running) return;
  // Of a worker of this node it was told when it died.
  if (!own_failure_ || !m.why.rank || m.why.rank->value() < rank_of(0) || m.why.rank->value() >= rank_of(workers_.size()))
    act(Say{Level::warning, fmt::format("generation {} is over: {}", m.generation.number, m.why.what), true});
  if (m.why.code != Code::generation_over) note_loss();  // that code: the world only grows
  if (own_failure_) ++node_restarts_;
  if (leave_at_) return leave(leaving_by_);
  stop({.rejoin = true}, std::nullopt, m.why);
}

void Supervisor::on_message(const Resumed& m) {
  if (phase_ != Phase::running || m.generation != world_.generation) return;
  served_ = true;
  if (peer_lost_) tell_of_broken_line();  // it means to go on in spite of that
  if (!ELRUN_PLANTED(done_is_not_reported_again)) report_to_coordinator();
  if (m.fresh)  // its store waits for what all nodes remember
    for (StoreRequest& request : memory_.replay(world_.generation, world_.seat.group_rank)) act(Send{StoreCall{0, std::move(request)}});
  for (const auto& [caller, request] : calls_) act(Send{StoreCall{caller.first, request}});
}

void Supervisor::on_message(const Verdict& m) {
  // What this node's workers decided with all others stands, whatever a coordinator thinks that was not there.
  const bool success = m.exit_code == 0 || job_over_;
  if (success) {
    if (last_.number == 0 && options_.workers > 0)
      say(Level::warning, "the job is done; this node was a spare, and no worker of it ever ran. Was it to run a job of its own? Then give each job an --rdzv_id and an endpoint of its own");
    else
      act(Say{Level::info, "the job is done", true});
    // Workers end by themselves, for they decided it, and have much time for work of their own: a program that exports
    // its model after the job is not to be cut short and called a success.
    if (phase_ == Phase::running && running() > 0) {
      phase_ = Phase::stopping;
      job_over_ = true;
      hang_.clear();
      end_hung_at_.reset();
      after_ = {.rejoin = false, .finish = {0, {}, true}};
      kill_at_ = now_ + options_.timeouts.last_work;
      coordinator_by_.reset();
      return;
    }
  }
  const Failure why{Code::generation_over, Remedy::exit_process, m.report.empty() ? "the job is over" : m.report};
  if (ELRUN_PLANTED(torchrun_d14_spare_fails) && phase_ == Phase::joining) return act(Finish{1, "the store is gone", true});
  Finish finish{success ? 0 : m.exit_code, success ? std::string{} : m.report, true};
  if (!success) finish.deaths = m.deaths;
  stop({.rejoin = false, .finish = std::move(finish)}, std::nullopt, why);
}

void Supervisor::on_message(const StoreResult& m) {
  auto call = calls_.extract({m.worker, m.reply.id});
  if (call.empty()) return;
  memory_.note(std::move(call.mapped()), m.reply);
  act(Answer{m.worker, m.reply});
}

// A job that is over and whose workers are gone needs no coordinator to say so. But one that comes back should hear it, or
// it would wait for nodes that have ended, and call the job a failure.
void Supervisor::end_without_coordinator() {
  if (!job_over_ || link_up_ || phase_ != Phase::running || running() > 0 || verdict_by_) return;
  verdict_by_ = now_ + options_.timeouts.recovery;
  say(Level::info, fmt::format("the job is done; its coordinator is away, and is told if it comes back within {}", for_people(options_.timeouts.recovery)));
}

// What the coordinator must know of this node's workers, derived from their states.
void Supervisor::report_to_coordinator() {
  if (phase_ != Phase::running) return;
  if (job_over_) act(Send{JobFinished{world_.generation}});
  bool done = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.ending)
      done = false;
    else if (!w.ending->ok() && !job_over_) {
      done = false;
      tell_of_failure(i);
    }
  }
  if (done) act(Send{WorkersDone{world_.generation}});
}

// --- workers ------------------------------------------------------------------------------------------------------

std::size_t Supervisor::running() const {
  return static_cast<std::size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.ending; }));
}

std::uint32_t Supervisor::rank_of(std::size_t worker) const {
  return world_.seat.base_rank + static_cast<std::uint32_t>(worker);
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
  w.ending = e.ending;
  hang_.forget(e.worker);
  w.failed_at = now_ - e.ago;
  w.death = e.death;
  if (!hang_why_.empty() && !e.ending.ok()) w.death.evidence = fmt::format("it hung ({}), and elrun ended it", hang_why_);
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
    say(Level::warning,
        fmt::format("{} ended by {} after the job was over; it does not count", name_of(i), describe(e.ending)));
  } else if (!e.ending.ok()) {
    say(Level::error,
        fmt::format("{} ended by {}{} in generation {}", name_of(i), cause_of(e.ending),
                    e.death.error.empty() ? "" : fmt::format(" ({})", e.death.error), world_.generation.number));
    own_failure_ = true;
    note_loss();
    tell_of_failure(i);
    join_as_broken();
  }
  const bool all_well = std::all_of(workers_.begin(), workers_.end(),
                                    [this](const Worker& x) { return x.ending && (x.ending->ok() || job_over_); });
  if (all_well) act(Send{WorkersDone{world_.generation}});
  end_without_coordinator();
}

// A worker that was killed because it hung died of that.
int Supervisor::code_of(const Ending& ending) const { return hang_why_.empty() ? ending.code() : exit_code::hang; }
std::string Supervisor::cause_of(const Ending& ending) const {
  return hang_why_.empty() ? describe(ending) : fmt::format("a hang ({}), then {}", hang_why_, describe(ending));
}

// In full for the first of this node; of thousands that fail together, the others need not be told at such length.
void Supervisor::tell_of_failure(std::size_t worker) {
  const Worker& w = workers_[worker];
  const bool first = std::none_of(workers_.begin(), workers_.end(), [&](const Worker& x) {
    return &x != &w && x.ending && !x.ending->ok() && x.failed_at <= w.failed_at;
  });
  // An error that elrun's signal cut short: the exit code would have been the interpreter's for an exception.
  const bool cut_short = phase_ == Phase::stopping && w.ending->signal != 0 && w.failed_at < stopped_at_;
  WorkerFailed failed{world_.generation, static_cast<std::uint32_t>(worker), cut_short ? 1 : code_of(*w.ending),
                      cause_of(*w.ending), w.is_job, std::clamp<Duration>(now_ - w.failed_at, Duration{0}, 24h), {}};
  if (!w.death.error.empty()) failed.what += (cut_short ? " of elrun, after " : ": ") + w.death.error;
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
  if (phase_ != Phase::running)
    return refuse(from, {Code::generation_over, Remedy::exit_process, "this node's generation is over"});
  const std::uint32_t base = rank_of(0);
  const std::size_t i = hello.rank - base;  // below base it wraps and is out of range
  if (hello.rank < base || i >= workers_.size() || hello.world != world_.seat.world_size)
    return refuse(
        from,
        {Code::refused, Remedy::fix_config,
         fmt::format(
             "rank {} of {} is no worker of node {} (ranks {}-{} of {}); does the program change RANK or WORLD_SIZE?",
             hello.rank, hello.world, options_.node.value(), base, base + workers_.size() - 1, world_.seat.world_size)});
  Worker& w = workers_[i];
  if (w.ending || w.connection)
    return refuse(
        from, {Code::already_exists, Remedy::fix_config,
               fmt::format("rank {} is connected already or has ended: only one process per rank may open a session",
                           hello.rank)});
  w.connection = from;
  w.is_job = hello.is_job;
  w.can_stay = hello.stays;
  hang_.watch(LocalRank{static_cast<std::uint32_t>(i)}, now_);
  welcome(i);
}

// A worker that stays has a time to come back from its program, which its peers wait for.
void Supervisor::welcome(std::size_t worker) {
  Worker& w = workers_[worker];
  if (w.stays) w.return_by = now_ + std::max(options_.timeouts.returning, w.returns_within);
  w.stays = w.quit = w.ready_to_leave = w.cannot_go_on = w.held = false;
  Place place;
  place.membership = {world_.generation, Rank{rank_of(worker)}, WorldSize{world_.seat.world_size}};
  place.local_rank = LocalRank{static_cast<std::uint32_t>(worker)};
  place.local_world = options_.workers;
  place.run = options_.run;
  place.node = options_.node;
  place.address = world_.address;
  place.key = world_.key;
  place.restart_count = world_.restarts.generations;
  place.elastic = true;
  act(Answer{*w.connection, Welcome{std::move(place)}});
}

void Supervisor::on_worker_said(ConnectionId from, const Returned& m) {
  const auto i = worker_at(from);
  if (!i || phase_ != Phase::running || m.generation != world_.generation) return;
  workers_[*i].return_by.reset();
  hang_.watch(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const StepDecided& m) {
  if (phase_ != Phase::running || !worker_at(from) || m.generation != world_.generation) return;
  if (lost_at_ && !lost_) {
    say(Level::info, fmt::format("recovered: step {} decided {} after the loss", m.step, for_people(now_ - *lost_at_)));
    lost_at_.reset();
  }
  for (std::uint32_t i = 0; i < workers_.size(); ++i) hang_.sign(LocalRank{i}, now_);  // all members decide a step together
  if (m.step <= step_) return;  // another worker of this node said so already
  step_ = m.step;
  act(Send{Progress{m.generation, m.step}});
}

// A program that uses libelrun without its Job has no steps: it lives as long as its session says so.
void Supervisor::on_worker_said(ConnectionId from, const Alive&) {
  if (const auto i = worker_at(from); i && !workers_[*i].is_job) hang_.sign(LocalRank{static_cast<std::uint32_t>(*i)}, now_);
}

void Supervisor::on_worker_wrote(LocalRank worker) {
  if (worker.value() < workers_.size() && !workers_[worker.value()].is_job) hang_.sign(worker, now_);
}

void Supervisor::on_worker_said(ConnectionId from, const JobOver& m) {
  // Also when that generation is over: all its members decided it before.
  if (!worker_at(from) || (m.generation != world_.generation && m.generation != before_)) return;
  if (!job_over_) act(Send{JobFinished{world_.generation}});
  job_over_ = true;
  for (Worker& w : workers_) w.return_by.reset();
  if (phase_ == Phase::joining) {  // there is no next generation for those who stayed
    phase_ = Phase::stopping;
    stopped_at_ = now_;
    after_ = {};
  }
  if (phase_ == Phase::stopping) kill_staying(true);
  hang_.clear();  // what it does now is work of its own
  end_hung_at_.reset();
  hang_why_.clear();
  act(Answer{from, JobOver{m.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const GenerationOver& m) {
  const auto i = worker_at(from);
  if (!i || m.generation != world_.generation) return;
  if (phase_ == Phase::running && m.why.code == Code::peer_lost) {
    workers_[*i].cannot_go_on = true;
    hold_the_broken();
    if (std::exchange(peer_lost_, true)) return;
    peer_lost_why_ = m.why.what;
    // A worker that died or a node that fell silent is known by then, and is the better reason.
    broken_line_at_ = now_ + std::min(options_.timeouts.heartbeat_limit + options_.timeouts.reconnect_grace, broken_line_most);
    join_as_broken();
    return;
  }
  if (phase_ != Phase::stopping || m.why.code != Code::generation_over || !workers_[*i].stays) return;
  workers_[*i].quit = true;
  workers_[*i].returns_within = std::clamp<Duration>(m.returns_within, Duration{0}, 24h);
  stop_if_done();
}

void Supervisor::on_worker_said(ConnectionId from, const StoreRequest& m) {
  if (!worker_at(from)) return refuse(from, {Code::protocol, Remedy::exit_process, "a store call before Hello"});
  if (phase_ != Phase::running && !(phase_ == Phase::stopping && job_over_))
    return act(Answer{from, refused_call(m, Code::generation_over, "the generation is over")});
  if (m.generation != world_.generation)
    return act(Answer{from, refused_call(m, Code::generation_over,
                                         fmt::format("the call is for generation {}, this is {}", m.generation.number,
                                                     world_.generation.number))});
  const auto first = calls_.lower_bound({from, 0}), last = calls_.upper_bound({from, ~std::uint64_t{0}});
  if (static_cast<std::size_t>(std::distance(first, last)) >= store_calls_per_worker_max)
    return act(Answer{from, refused_call(m, Code::exhausted,
                                         fmt::format("{} store calls of this worker are under way already",
                                                     store_calls_per_worker_max))});
  if (!calls_.try_emplace({from, m.id}, m).second)
    return act(Answer{from, refused_call(m, Code::protocol,
                                         fmt::format("a store call with the number {} is under way already", m.id))});
  if (served_) act(Send{StoreCall{from, m}});
}

void Supervisor::on_hung_up(ConnectionId from) {
  calls_.erase(calls_.lower_bound({from, 0}), calls_.upper_bound({from, ~std::uint64_t{0}}));
  if (const auto i = worker_at(from)) {
    Worker& w = workers_[*i];
    w.connection.reset();
    act(Send{StoreCallerGone{from}});
    if (!w.stays || w.ending) return;
    w.stays = false;  // nobody can tell it its place
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(*i)}, SIGKILL});
  }
}

// --- ends ---------------------------------------------------------------------------------------------------------

// Ends what runs: a Job's worker at once, for its state is revoked and its checkpoints survive a kill; others are
// asked. Workers that can stay are told, and have to acknowledge it.
void Supervisor::stop(AfterStop after, std::optional<int> signal, const Failure& why) {
  if (phase_ == Phase::stopping && !after_.rejoin) return;  // the first reason to finish stays
  after_ = std::move(after);
  if (!after_.rejoin) coordinator_by_.reset(), join_by_.reset();
  if (phase_ == Phase::stopping) return after_.rejoin ? void() : kill_staying(true);  // on its way already
  phase_ = Phase::stopping;
  const bool some_stay = after_.rejoin && !signal && !job_over_ && hang_why_.empty();
  hang_.clear();
  end_hung_at_.reset();
  stopped_at_ = now_;
  leave_at_.reset();
  look_again_at_.reset();
  broken_line_at_.reset();
  kill_at_ = gone_by_.value_or(now_ + options_.timeouts.stop_grace);
  if (ELRUN_PLANTED(acknowledges_before_the_end) && after_.rejoin) act(Send{Acknowledge{last_}});
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{static_cast<std::uint32_t>(i)};
    Worker& w = workers_[i];
    if (w.released) continue;
    w.return_by.reset();
    w.stays = some_stay && w.can_stay && w.connection && !w.ending;
    w.quit = false;
    if (w.connection && !signal) act(Answer{*w.connection, GenerationOver{world_.generation, why}});
    if (w.stays)
      acknowledge_by_ = now_ + options_.timeouts.revocation;
    else if (w.ending)
      act(SignalGroup{worker, SIGKILL});
    else
      act(SignalGroup{worker, signal ? *signal : w.is_job ? SIGKILL : SIGTERM});
  }
  stop_if_done();
}

void Supervisor::stop_if_done() {
  if (std::all_of(workers_.begin(), workers_.end(), [this](const Worker& w) { return is_stopped(w); })) all_stopped();
}

// --- hangs ---

// All workers of the node are looked at: which of them holds up the others, none of them can tell.
void Supervisor::on_hang() {
  std::string names;
  for (const LocalRank worker : hang_.silent(now_)) names += (names.empty() ? "" : ", ") + name_of(worker.value());
  hang_.clear();
  hang_why_ = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
  say(Level::error, fmt::format("{} of {} in generation {}: this is a hang. What all workers of this node are doing follows; they are killed in {}", hang_why_,
                                names, world_.generation.number, for_people(options_.timeouts.stacks)));
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].ending) act(TakeStacks{LocalRank{i}});
  end_hung_at_ = now_ + options_.timeouts.stacks;
}

// SIGABRT first: Python's faulthandler answers it with the stacks of all threads, others with a core dump where that is on.
void Supervisor::end_hung() {
  end_hung_at_.reset();
  if (std::exchange(hung_were_asked_, true)) return kill_running();
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].ending) act(SignalGroup{LocalRank{i}, SIGABRT});
  end_hung_at_ = now_ + options_.timeouts.revocation;
}

void Supervisor::kill_running() {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].ending && !workers_[i].stays) act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
}

// Those that were to stay, and shall not: they did not acknowledge it in time, or there is nothing to stay for.
void Supervisor::kill_staying(bool acknowledged_too) {
  acknowledge_by_.reset();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.stays || w.ending || (w.quit && !acknowledged_too)) continue;
    w.stays = false;
    if (!acknowledged_too) say(Level::error, fmt::format("{} did not acknowledge within {} that its generation is over: killed", name_of(i), for_people(options_.timeouts.revocation)));
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
  }
}

// Nobody can end the generation while the coordinator is away, for as long as its grace. A worker that lost a peer in it
// waits for that a short time only: told now that it is over, it keeps its state and waits for the next one instead.
void Supervisor::hold_the_broken() {
  if (phase_ != Phase::running || (link_up_ && served_)) return;
  for (Worker& w : workers_) {
    if (!w.cannot_go_on || !w.can_stay || !w.connection || w.ending || std::exchange(w.held, true)) continue;
    act(Answer{*w.connection, GenerationOver{world_.generation, {Code::peer_lost, Remedy::rejoin, "a peer was lost while the coordinator is away"}}});
  }
}

// Two workers live and cannot talk to each other any more: only a new generation connects them again.
void Supervisor::tell_of_broken_line() {
  broken_line_at_.reset();
  const auto worker = std::find_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.cannot_go_on && !w.ending; });
  if (phase_ != Phase::running || job_over_ || !link_up_ || !served_ || worker == workers_.end()) return;  // else it is held
  const auto local = static_cast<std::uint32_t>(worker - workers_.begin());
  say(Level::error, fmt::format("{} lost a peer that is not known to have died: {}", name_of(local), peer_lost_why_));
  act(Send{WorkerFailed{world_.generation, local, 1, fmt::format("the loss of a peer that is not known to have died ({:.500})", peer_lost_why_), true, {}, {}}});
}

// Its peers cannot connect to it: a process of its own is the next rung.
void Supervisor::kill_the_late() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.return_by || now_ < *w.return_by) continue;
    w.return_by.reset();
    say(Level::error, fmt::format("{} did not come back from its program in {} after generation {} began (a slot that takes long? a deadlock?): it is killed and started again",
                                  name_of(i), for_people(std::max(options_.timeouts.returning, w.returns_within)), world_.generation.number));
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
  }
}

void Supervisor::all_stopped() {
  kill_at_.reset();
  acknowledge_by_.reset();
  if (after_.signal != 0) after_.finish.after_signal = fmt::format("{}: {}", signal_name(after_.signal), fate_of_workers());
  EndOrphans orphans;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{static_cast<std::uint32_t>(i)};
    Worker& w = workers_[i];
    if (!w.ending) {
      orphans.stay.push_back(worker);
      continue;
    }
    if (w.connection) act(HangUp{*std::exchange(w.connection, std::nullopt)});
    if (!std::exchange(w.released, true)) act(Release{worker});
  }
  // Only the good end of a job leaves what put itself into a session of its own.
  if (after_.rejoin || after_.finish.exit_code != 0) act(orphans);
  if (orphans.stay.empty()) workers_.clear();
  calls_.clear();
  if (!after_.rejoin) {
    phase_ = Phase::finished;
    return act(after_.finish);
  }
  phase_ = Phase::joining;
  if (!link_up_) return;
  join();  // which says as well that no process of the old generation is left
}

std::string Supervisor::fate_of_workers() const {
  const std::string begin = job_over_ ? "the job was done" : "this node has left";
  if (workers_.empty()) return begin + "; no worker of it was running";
  const auto killed = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ending->signal == SIGKILL; });
  std::string text = begin + "; ";
  if (const std::size_t ended = workers_.size() - static_cast<std::size_t>(killed); ended > 0) text += fmt::format("{} ended{}", count_of(ended, "worker"), killed > 0 ? ", " : "");
  if (killed > 0) text += fmt::format("{} killed", count_of(static_cast<std::size_t>(killed), "worker"));
  return text;
}

void Supervisor::on_signal(int number) {
  ++signals_;
  if (signals_ > 1 && phase_ == Phase::stopping) {
    say(Level::warning, fmt::format("{} again: the workers are killed", signal_name(number)));
    return kill_running();
  }
  if (signals_ == 1 && can_prepare_to_leave()) return prepare_to_leave(number);
  const bool again = leave_at_.has_value();
  leave(number);
  if (again) kill_running();
}

// Workers of a Job have state that others need, and can save it at the next step's end; others only know the signal.
bool Supervisor::can_prepare_to_leave() const {
  return phase_ == Phase::running && !job_over_ && running() > 0 && hang_why_.empty() &&
         std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ending || (w.connection && w.is_job); });
}

void Supervisor::prepare_to_leave(int signal) {
  leaving_by_ = signal;
  leave_at_ = now_ + options_.timeouts.drain;
  gone_by_ = now_ + options_.timeouts.stop_grace;
  say(Level::warning, fmt::format("{}: this node leaves as soon as the job has saved a checkpoint, in {} at the latest", signal_name(signal), for_people(options_.timeouts.drain)));
  for (const Worker& w : workers_)
    if (!w.ending) act(Answer{*w.connection, PrepareToLeave{world_.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const PrepareToLeave& m) {
  const auto i = worker_at(from);
  if (!i || !leave_at_ || m.generation != world_.generation) return;
  workers_[*i].ready_to_leave = true;
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ending || w.ready_to_leave; })) leave(leaving_by_);
}

void Supervisor::leave(int number) {
  leave_at_.reset();  // workers that are ending by themselves already are not stopped once more
  say(Level::warning,
      fmt::format("{}: {}", signal_name(number),
                  running() > 0 ? fmt::format("forwarded to {}; SIGKILL after {}", count_of(running(), "worker"),
                                              for_people(options_.timeouts.stop_grace))
                                : "this node leaves"));
  act(Send{Leave{fmt::format("{} came", signal_name(number))}});
  const AfterStop after{.rejoin = false, .finish = {job_over_ ? 0 : 128 + number, {}, false}, .signal = number};
  const bool stopping = phase_ == Phase::stopping;
  if (stopping && kill_at_) kill_at_ = std::min(*kill_at_, gone_by_.value_or(now_ + options_.timeouts.stop_grace));
  stop(after, number, {});
  if (stopping)  // they were asked by another signal, or are about to end by themselves
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (!workers_[i].ending) act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, number});
}

void Supervisor::on_tick() {
  if (kill_at_ && now_ >= *kill_at_) {
    kill_at_.reset();
    say(Level::warning, fmt::format("{} did not end in time: killed", count_of(running(), "worker")));
    if (!ELRUN_PLANTED(kill_deadline_forgotten)) kill_running();
  }
  if (acknowledge_by_ && now_ >= *acknowledge_by_) kill_staying(false);
  kill_the_late();
  // It may have been replaced while it was frozen, and thawed with the streams of some nodes: the others are elsewhere.
  if (look_again_at_ && now_ >= *look_again_at_) {
    look_again_at_ = now_ + look_again_every;
    act(LookAgain{});
  }
  if (broken_line_at_ && now_ >= *broken_line_at_) tell_of_broken_line();
  if (leave_at_ && now_ >= *leave_at_) {
    say(Level::warning, "the job did not save a checkpoint in time: this node leaves without one");
    leave(leaving_by_);
  }
  if (const auto due = hang_.due(); due && now_ >= *due) on_hang();
  if (end_hung_at_ && now_ >= *end_hung_at_) end_hung();
  if (verdict_by_ && now_ >= *verdict_by_) {
    verdict_by_.reset();
    say(Level::info, "the job is done; its coordinator did not come back");
    stop({.rejoin = false, .finish = {0, {}, false}}, std::nullopt, {});
  }
  if (coordinator_by_ && now_ >= *coordinator_by_) {
    coordinator_by_.reset();
    const Failure why{
        Code::unreachable, Remedy::exit_process,
        fmt::format("no coordinator for {} ({})", for_people(options_.timeouts.coordinator_grace), waiting_for_)};
    stop({.rejoin = false,
          .finish = {job_over_ ? 0 : exit_code::coordinator_lost, job_over_ ? std::string{} : why.what, false}},
         std::nullopt, why);
  }
  if (join_by_ && now_ >= *join_by_) {
    join_by_.reset();
    if (phase_ != Phase::joining) return;
    const Failure why{
        Code::deadline_passed, Remedy::exit_process,
        fmt::format("the nodes did not meet within {}: node {} waited for {}", for_people(options_.timeouts.join),
                    options_.node.value(), waiting_for_.empty() ? "the coordinator" : waiting_for_)};
    act(Send{Leave{"the join deadline passed"}});
    stop({.rejoin = false, .finish = {exit_code::join_deadline, why.what, false}}, std::nullopt, why);
  }
}

}  // namespace elrun::inline v0::launcher
