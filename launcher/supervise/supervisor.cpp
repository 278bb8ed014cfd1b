// The life of a node: it joins, runs the workers of one generation, stops them when the generation is over, and joins
// again, until a verdict, a signal or a deadline ends it.
//
//   joining --World--> running --Revoke--> stopping --all ended: Acknowledge, Join--> joining
//                         `--Verdict, signal, coordinator away too long--> stopping --all ended--> finished
//
// A node acknowledges the end of a generation only when nothing can act for it any more: every process of it has ended, or
// stays and has acknowledged the end itself. Those that stay keep their memory, and get another place in the next world.
// Reports to a coordinator that is away (a worker failed, all are done) are not queued. They follow from the workers'
// states, and are sent when the line is back and the generation goes on.
#include "launcher/supervise/supervisor.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration look_again_every = 10s;

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_{std::move(options)}, places_{options_.workers}, hangs_{options_.hang_timeout} {}

std::vector<Action> Supervisor::on(const Event& event, Instant now) {
  const Instant last_event = std::exchange(now_, now);
  actions_.clear();
  if (phase_ == Phase::finished) return {};
  excuse_own_stall(last_event);
  std::visit(
      [this](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, Started>) on_started();
        else if constexpr (std::is_same_v<E, LinkUp>) on_link_up();
        else if constexpr (std::is_same_v<E, LinkDown>) on_link_down(e.why);
        else if constexpr (std::is_same_v<E, CoordinatorSaid>) std::visit([this](const auto& m) { this->on_message(m); }, e.message);
        else if constexpr (std::is_same_v<E, WorkerStarted>) workers_.at(e.worker.value()).pid = e.pid;
        else if constexpr (std::is_same_v<E, WorkerEnded>) on_worker_ended(e);
        else if constexpr (std::is_same_v<E, WorkerWrote>) on_worker_wrote(e.worker);
        else if constexpr (std::is_same_v<E, WorkerHungUp>) on_hung_up(e.from);
        else if constexpr (std::is_same_v<E, SignalCame>) on_signal(e.number);
        else if constexpr (std::is_same_v<E, Tick>) on_tick();
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

void Supervisor::act(Action action) { actions_.push_back(std::move(action)); }

std::optional<Instant> Supervisor::wake_at() const { return next_deadline(false); }

// The table of waits, and what only single workers have a deadline for.
std::optional<Instant> Supervisor::next_deadline(bool awaited_only) const {
  if (phase_ == Phase::finished) return std::nullopt;
  std::optional<Instant> least = deadlines_.next(awaited_only);
  const auto consider = [&least](const std::optional<Instant>& at) {
    if (at && (!least || *at < *least)) least = at;
  };
  for (const auto& at : {hangs_.in_world.due(), hangs_.pending.due(), hangs_unopened_at()}) consider(at);
  for (const Worker& w : workers_) consider(w.return_by), consider(w.pending.kill_at), consider(w.session.judge_by);
  return least;
}

// What was said to this agent while it was stopped is behind this event, and workers that slept with it need the time that was left.
void Supervisor::excuse_own_stall(Instant last_event) {
  const auto stalled = stall_.stalled(next_deadline(true), last_event, now_);
  if (!stalled) return;
  const Instant not_before = now_ + StallCompensation::grace;
  deadlines_.excuse(*stalled, not_before);
  for (Worker& w : workers_)
    if (w.return_by) w.return_by = std::max(*w.return_by + *stalled, not_before);
  hangs_.excuse(*stalled, now_, not_before);
}

// --- the coordinator ----------------------------------------------------------------------------------------------

void Supervisor::on_started() { deadlines_.set(Wait::join, now_ + options_.timeouts.join); }

void Supervisor::join() {
  Join join;
  join.options = options_.round;
  join.workers = places_;
  join.last = last_;
  join.resuming = phase_ == Phase::running || phase_ == Phase::stopping;
  if (phase_ == Phase::running || (!join.resuming && last_.number > 0)) {
    join.seat = world_.seat;
    // After the end of the job this is left out: JobFinished follows, and the coordinator must read that before it decides
    // which nodes are missing.
    if (!job_over_) join.coordinated_by = world_.coordinated_by;
    join.coordinator_fell_silent = join.coordinated_by && line_.fell_silent();
  }
  if (phase_ == Phase::running) {
    const bool failed = std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_world() && w.failed(); });
    join.broken = (failed || lost_peers_.any()) && !job_over_;
  }
  join.restarts = world_.restarts;
  join.heard = line_.heard();
  act(Send{join});
  // This coordinator may be a new one that does not know it, and the other members may have ended.
  if (job_over_) act(Send{JobFinished{last_}});
}

// A new coordinator waits for the other nodes of this generation. It waits less long once it knows that the generation cannot go on.
void Supervisor::join_as_broken() {
  if (phase_ == Phase::running && line_.is_up() && !line_.is_serving()) join();
}

void Supervisor::on_link_up() {
  if (deadlines_.is_set(Wait::coordinator)) say(Level::info, fmt::format("the coordinator at {} is back", options_.coordinator));
  line_.up();
  deadlines_.clear(Wait::coordinator);
  // Also while workers are being stopped: whoever decides about the next generation has to wait for that. A node that goes
  // for good does not join again.
  if (phase_ != Phase::stopping || after_.rejoin) join();
}

void Supervisor::on_link_down(const Failure& why) {
  line_.down(why, options_.coordinator);
  if (last_.number != 0 && !deadlines_.is_set(Wait::coordinator))
    deadlines_.set(Wait::coordinator, now_ + options_.timeouts.coordinator_grace);
  if (last_.number == 0 && !deadlines_.is_set(Wait::join)) deadlines_.set(Wait::join, now_ + options_.timeouts.join);
  const Instant until = deadlines_.at(Wait::coordinator).value_or(deadlines_.at(Wait::join).value_or(now_));
  say(Level::warning, fmt::format("waiting for {}; {}elrun retries for another {}", line_.waiting_for(),
                                  phase_ == Phase::running ? "the workers go on; " : "", for_people(until - now_)));
  deadlines_.clear(Wait::look_again);
  hold_the_broken();
  if (ELRUN_PLANTED(torchrun_d5_store_loss_kills_workers) && phase_ == Phase::running) stop({.rejoin = true}, std::nullopt, why);
  for (auto& [caller, reply] : calls_.coordinator_lost()) act(Answer{caller, std::move(reply)});
  end_without_coordinator();
}

void Supervisor::on_message(const Refused& m) {
  const bool config =
      m.failure.remedy == Remedy::fix_config || m.failure.code == Code::mismatch || m.failure.code == Code::invalid_argument;
  stop({.rejoin = false,
        .finish = {config ? exit_code::contradiction : exit_code::internal, "this node was refused: " + message(m.failure), false}},
       std::nullopt, m.failure);
}

void Supervisor::on_message(const Waiting& m) {
  deadlines_.clear(Wait::join);  // a coordinator answers: it decides how long to wait from here on, and a spare waits without limit
  // Of the generation that runs here the coordinator's log has it, too.
  if (line_.waits_for(m.why)) act(Say{Level::info, m.why, phase_ == Phase::running && m.running == world_.generation});
  if (m.for_this_node && phase_ == Phase::running && m.running == world_.generation) job_known_ = true;
  line_.hear(m.running.number);
  if (phase_ != Phase::joining || m.running.number != 0) deadlines_.clear(Wait::look_again);
  else if (!deadlines_.is_set(Wait::look_again)) deadlines_.set(Wait::look_again, now_ + look_again_every);
}

void Supervisor::on_message(const World& m) {
  if (phase_ != Phase::joining) return;     // of a round that this node has left since
  if (m.generation.number <= last_.number)  // its end was acknowledged here: nobody acts for it again
    return say(Level::warning,
               fmt::format("generation {} was offered after generation {}; it is not taken", to_string(m.generation), to_string(last_)));
  if (m.seat.base_rank + places_ > m.seat.world_size || (m.role.world_size > 0 && m.role.base_rank + places_ > m.role.world_size)) {
    Failure why{Code::protocol, Remedy::exit_process,
                "the coordinator sent a world in which this node has no place; versions of elrun that differ?"};
    return stop({.rejoin = false, .finish = {exit_code::internal, why.what, false}}, std::nullopt, why);
  }
  phase_ = Phase::running;
  line_.serves(true);
  before_ = world_.generation;
  const World before = std::exchange(world_, m);
  last_ = m.generation;
  deadlines_.clear(Wait::join);
  deadlines_.clear(Wait::look_again);
  own_failure_ = false;
  lost_peers_.clear();
  deadlines_.clear(Wait::broken_line);
  step_ = 0;  // steps may be done again
  calls_.begin_generation();
  // A job that is over stays over: no worker starts, only the coordinator has to hear it (again).
  const auto staying = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.stays && !w.ending; });
  const auto ready = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_pending() && w.pending.is_ready; });
  workers_.resize(job_over_ ? 0 : options_.workers);
  hangs_.were_asked = false;
  std::string text =
      fmt::format("generation {}: {}, {}", m.generation.number, count_of(m.seat.nodes, "node"), count_of(world_.seat.world_size, "worker"));
  if (m.seat.nodes > 1 && options_.workers > 0)
    text += places_ == 1 ? fmt::format(", rank {} here", m.seat.base_rank)
                         : fmt::format(", ranks {}-{} here", m.seat.base_rank, m.seat.base_rank + places_ - 1);
  if (staying > 0) text += fmt::format(", {} go on here in the same process", staying);
  if (ready > 0)
    text += fmt::format(", {} that {} started meanwhile {}", ready, ready == 1 ? "was" : "were", ready == 1 ? "joins" : "join");
  if (const auto recovering = recovery_.so_far(now_)) text += fmt::format(", started {} after the loss", for_people(*recovering));
  if (m.restarts.used > 0)
    text += fmt::format(
        "; {} of {} used", m.restarts.used,
        count_of(static_cast<std::size_t>(options_.round.max_restarts >= 0 ? options_.round.max_restarts : job_restarts), "restart"));
  if (places_ < workers_.size())
    text += fmt::format("; {} being started here, and joins when it is ready",
                        workers_.size() - places_ == 1 ? "1 worker is" : fmt::format("{} workers are", workers_.size() - places_));
  recovery_.begin_generation();
  say(Level::info, text);
  tell_that_workers_are_job();  // those that stay
  give_places(before);
  watch_starting();
  for (std::uint32_t i = 0; i < workers_.size() && options_.hang_sign == HangSign::output; ++i)
    if (workers_[i].in_world()) hangs_.in_world.watch(LocalRank{i}, now_);
  if (workers_.empty()) report_to_coordinator();
  offer_more();
}

void Supervisor::on_message(const Revoke& m) {
  if (m.generation != last_) return;
  if (phase_ == Phase::joining) return act(Send{Acknowledge{m.generation}});  // no process of it is left
  if (phase_ != Phase::running) return;
  // Of a worker of this node it was told when it died.
  const auto is_here = [&](Rank rank) { return rank.value() >= world_.seat.base_rank && rank.value() < world_.seat.base_rank + places_; };
  if (!own_failure_ || !m.why.rank || !is_here(*m.why.rank))
    act(Say{Level::warning, fmt::format("generation {} is over: {}", m.generation.number, m.why.what), true});
  // A world that grows, and a generation that is stale, are no loss: the time to the next world is no recovery.
  if (const EndCause cause = end_cause_of(m); cause != EndCause::growth && cause != EndCause::stale) recovery_.lost(now_);
  if (own_failure_) ++node_restarts_;
  if (deadlines_.is_set(Wait::leave)) return leave(departure_.signal());
  stop({.rejoin = true}, std::nullopt, m.why);
}

void Supervisor::on_message(const Resumed& m) {
  if (phase_ != Phase::running || m.generation != world_.generation) return;
  line_.serves(false);
  world_.coordinated_by = m.coordinated_by;
  tell_of_the_unreachable();
  if (lost_peers_.any()) tell_of_broken_line();  // it means to go on in spite of that
  if (!ELRUN_PLANTED(done_is_not_reported_again)) report_to_coordinator();
  for (StoreCall& call : calls_.to_send_again(m.fresh, world_))
    act(Send{std::move(call)});  // a fresh store waits for what all nodes remember
}

void Supervisor::on_message(const Verdict& m) {
  // The workers' own decision that the job is over stands. A coordinator that is new may not have heard of it.
  const bool success = m.exit_code == 0 || job_over_;
  if (success) {
    if (last_.number == 0 && options_.workers > 0)
      say(Level::warning,
          "the job is done; this node was a spare, and no worker of it ever ran. Was it to run a job of its own? Then give each job an --rdzv_id and an endpoint of its own");
    else act(Say{Level::info, "the job is done", true});
    // The workers decided the end, and now end by themselves. They get an hour for work of their own, such as exporting
    // the model. Workers of an older generation had no part in the decision: they wait for a next one, and are stopped.
    const bool left_behind = !job_over_ && m.generation.number > last_.number;
    if (phase_ == Phase::running && running(workers_) > 0 && !left_behind) {
      phase_ = Phase::stopping;
      job_over_ = true;
      hangs_.end_generation();
      deadlines_.clear(Wait::end_hung);
      after_ = {.rejoin = false, .finish = {0, {}, true}};
      dismiss_pending();
      deadlines_.set(Wait::kill, now_ + options_.timeouts.last_work);
      deadlines_.clear(Wait::coordinator);
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
  const auto op = calls_.answered(m);
  if (!op) return;
  if (const auto worker = worker_with(workers_, m.worker); worker && op == StoreOp::all_gather && step_ == 0)
    hangs_.in_world.sign(LocalRank{static_cast<std::uint32_t>(*worker)}, now_);  // it waited for the others until now
  act(Answer{m.worker, m.reply});
}

// When the job is over and the workers have ended, this node can end without a verdict. It stays for a while: a coordinator
// that comes back and does not hear of the end would wait for nodes that have ended, and then fail the job.
void Supervisor::end_without_coordinator() {
  if (!job_over_ || line_.is_up() || phase_ != Phase::running || running(workers_) > 0 || deadlines_.is_set(Wait::verdict)) return;
  deadlines_.set(Wait::verdict, now_ + options_.timeouts.recovery);
  say(Level::info, fmt::format("the job is done; its coordinator is away, and is told if it comes back within {}",
                               for_people(options_.timeouts.recovery)));
}

// What the coordinator must know of this node's workers, derived from their states.
void Supervisor::report_to_coordinator() {
  if (phase_ != Phase::running) return;
  if (job_over_) act(Send{JobFinished{world_.generation}});
  bool done = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.ending) done = done && !w.in_world();
    else if (!w.ending->ok() && !job_over_ && !w.pending.dismissed) {
      done = false;
      tell_of_failure(i);
    }
  }
  line_.forget_reports();
  tell_that_workers_are_job();
  tell_of_starting();
  if (done) tell_that_workers_are_done();
  offer_more();
}

// --- time ----------------------------------------------------------------------------------------------------------

// Each wait that is over, in this order: what an earlier one ends, a later one finds ended.
void Supervisor::on_tick() {
  const auto is_over = [this](Wait wait) { return deadlines_.take(wait, now_); };
  const auto is_due = [this](const std::optional<Instant>& at) { return at && now_ >= *at; };
  if (is_over(Wait::kill)) on_kill_due();
  if (is_over(Wait::acknowledge)) kill_staying(false);
  kill_the_late();
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (is_due(workers_[i].session.judge_by)) judge_early_end(i);
  if (is_over(Wait::look_again)) look_again();
  if (is_over(Wait::broken_line)) tell_of_broken_line();
  if (is_over(Wait::leave)) leave_unsaved();
  if (is_over(Wait::tell_starting)) tell_of_starting();
  if (is_due(hangs_.in_world.due()) || is_due(hangs_unopened_at())) on_hang();
  if (is_over(Wait::end_hung)) end_hung();
  if (is_due(hangs_.pending.due())) on_hang_at_start();
  kill_hung_at_start();
  if (is_over(Wait::verdict)) on_verdict_not_heard();
  if (is_over(Wait::coordinator)) on_coordinator_lost();
  if (is_over(Wait::join)) on_join_deadline();
}

void Supervisor::on_kill_due() {
  say(Level::warning, fmt::format("{} did not end in time: killed", count_of(running(workers_), "worker")));
  if (!ELRUN_PLANTED(kill_deadline_forgotten)) kill_running();
}

// The coordinator may have been replaced while it was frozen. It then thaws with the streams of some nodes, and the others are elsewhere.
void Supervisor::look_again() {
  deadlines_.set(Wait::look_again, now_ + look_again_every);
  act(LookAgain{});
}

void Supervisor::on_verdict_not_heard() {
  say(Level::info, "the job is done; its coordinator did not come back");
  stop({.rejoin = false, .finish = {0, {}, false}}, std::nullopt, {});
}

void Supervisor::on_coordinator_lost() {
  const Failure why{Code::unreachable, Remedy::exit_process,
                    fmt::format("no coordinator for {} ({})", for_people(options_.timeouts.coordinator_grace), line_.waiting_for())};
  stop({.rejoin = false, .finish = {job_over_ ? 0 : exit_code::coordinator_lost, job_over_ ? std::string{} : why.what, false}},
       std::nullopt, why);
}

void Supervisor::on_join_deadline() {
  if (phase_ != Phase::joining) return;
  const Failure why{Code::deadline_passed, Remedy::exit_process,
                    fmt::format("the nodes did not meet within {}: node {} waited for {}", for_people(options_.timeouts.join),
                                options_.node.value(), line_.waiting_for().empty() ? "the coordinator" : line_.waiting_for())};
  act(Send{Leave{"the join deadline passed"}});
  stop({.rejoin = false, .finish = {exit_code::join_deadline, why.what, false}}, std::nullopt, why);
}

}  // namespace elrun::inline v0::launcher
