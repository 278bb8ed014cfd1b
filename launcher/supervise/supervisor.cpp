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

constexpr Duration nap_least = 100ms, nap_excuses = 1s, nap_rests = 10s;
constexpr Duration look_again_every = 10s;

// Doing it twice is the same as doing it once, so a call whose answer was lost may be sent again.
bool may_repeat(StoreOp op) {
  return (op != StoreOp::add || ELRUN_PLANTED(add_repeated_after_reconnect)) && op != StoreOp::compare_set && op != StoreOp::remove;
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_{std::move(options)},
      places_{options_.workers},
      hang_{options_.hang_timeout},
      hang_at_start_{options_.hang_timeout},
      hang_unopened_{options_.hang_timeout} {}

std::vector<Action> Supervisor::on(const Event& event, Instant now) {
  const Instant last_event = std::exchange(now_, now);
  actions_.clear();
  if (phase_ == Phase::finished) return {};
  excuse_own_nap(last_event);
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

std::optional<Instant> Supervisor::wake_at() const {
  const std::optional<Instant> deadline = next_deadline();
  if (phase_ == Phase::finished || !tell_starting_at_) return deadline;
  return std::min(deadline.value_or(*tell_starting_at_), *tell_starting_at_);
}

// Of all that others are waited for.
std::optional<Instant> Supervisor::next_deadline() const {
  std::optional<Instant> least;
  const auto consider = [&least](const std::optional<Instant>& at) {
    if (at && (!least || *at < *least)) least = at;
  };
  for (const auto& at : {join_by_, look_again_at_, coordinator_by_, kill_at_, acknowledge_by_, broken_line_at_, verdict_by_, end_hung_at_,
                         hang_.due(), hang_at_start_.due(), hangs_unopened_at(), leave_at_})
    consider(at);
  for (const Worker& w : workers_) consider(w.return_by), consider(w.coming.kill_at), consider(w.session.judge_by);
  return phase_ == Phase::finished ? std::nullopt : least;
}

// An agent that was itself stopped (frozen, swapped out) heard nobody: what was said to it meanwhile is behind this event,
// and who slept with it needs the time that was left. One that is always a little late blames others all the same.
void Supervisor::excuse_own_nap(Instant last_event) {
  const auto wake = next_deadline();
  if (!wake || now_ - *wake < nap_least) return;
  if (excused_at_ && now_ - *excused_at_ < nap_rests && now_ - *wake < nap_excuses) return;
  excused_at_ = now_;
  const Duration asleep = now_ - last_event;
  const auto excuse = [&](std::optional<Instant>& at) {
    if (at) at = std::max(*at + asleep, now_ + nap_excuses);
  };
  for (auto* at : {&join_by_, &coordinator_by_, &acknowledge_by_, &broken_line_at_}) excuse(*at);
  for (Worker& w : workers_) excuse(w.return_by);
  for (HangWatch* watch : {&hang_, &hang_at_start_, &hang_unopened_}) watch->excuse(asleep, now_, now_ + nap_excuses);
}

// --- the coordinator ----------------------------------------------------------------------------------------------

void Supervisor::on_started() { join_by_ = now_ + options_.timeouts.join; }

void Supervisor::join() {
  Join join;
  join.options = options_.round;
  join.workers = places_;
  join.last = last_;
  join.resuming = phase_ == Phase::running || phase_ == Phase::stopping;
  if (phase_ == Phase::running || (!join.resuming && last_.number > 0)) {
    join.seat = world_.seat;
    // The end of the job is told next, and is to be heard before anybody concludes who is missing and has workers stopped.
    if (!job_over_) join.coordinated_by = world_.coordinated_by;
    join.coordinator_fell_silent = join.coordinated_by && coordinator_silent_;
  }
  if (phase_ == Phase::running) {
    const bool failed =
        std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && w.ending && !w.ending->ok(); });
    join.broken = (failed || peer_lost_) && !job_over_;
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
  waiting_for_ = "the coordinator at " +
                 (why.what.starts_with(options_.coordinator) ? why.what : fmt::format("{}: {}", options_.coordinator, why.what));
  if (last_.number != 0 && !coordinator_by_) coordinator_by_ = now_ + options_.timeouts.coordinator_grace;
  if (last_.number == 0 && !join_by_) join_by_ = now_ + options_.timeouts.join;
  const Instant until = coordinator_by_ ? *coordinator_by_ : join_by_.value_or(now_);
  say(Level::warning, fmt::format("waiting for {}; {}it is tried for another {}", waiting_for_,
                                  phase_ == Phase::running ? "the workers go on; " : "", for_people(until - now_)));
  if (served_) coordinator_silent_ = why.code == Code::deadline_passed;
  link_up_ = served_ = false;
  look_again_at_.reset();
  hold_the_broken();
  if (ELRUN_PLANTED(torchrun_d5_store_loss_kills_workers) && phase_ == Phase::running) stop({.rejoin = true}, std::nullopt, why);
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (may_repeat(call->second.op)) {
      ++call;
      continue;
    }
    act(Answer{call->first.first,
               refused_call(call->second, Code::unreachable,
                            "the coordinator was lost while this call was under way; whether it was done is not known")});
    call = calls_.erase(call);
  }
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
  join_by_.reset();  // somebody answers: from here on it judges how long to wait, without end for a spare
  // Of the generation that runs here the coordinator's log has it, too.
  if (m.why != waiting_for_) act(Say{Level::info, m.why, phase_ == Phase::running && m.running == world_.generation});
  waiting_for_ = m.why;
  if (m.for_this_node && phase_ == Phase::running && m.running == world_.generation) job_known_ = true;
  heard_ = std::max(heard_, m.running.number);
  if (phase_ != Phase::joining || m.running.number != 0) look_again_at_.reset();
  else if (!look_again_at_) look_again_at_ = now_ + look_again_every;
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
  served_ = true;
  before_ = world_.generation;
  const World before = std::exchange(world_, m);
  last_ = m.generation;
  join_by_.reset();
  waiting_for_.clear();
  look_again_at_.reset();
  own_failure_ = peer_lost_ = told_job_ = false;
  unreachable_.clear();
  broken_line_at_.reset();
  step_ = 0;  // steps may be done again
  calls_.clear();
  memory_.clear();
  // A job that is over stays over: no worker starts, only the coordinator has to hear it (again).
  const auto staying = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.stays && !w.ending; });
  const auto ready = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return is_coming(w) && w.coming.is_ready; });
  workers_.resize(job_over_ ? 0 : options_.workers);
  hung_were_asked_ = false;
  std::string text =
      fmt::format("generation {}: {}, {}", m.generation.number, count_of(m.seat.nodes, "node"), count_of(world_.seat.world_size, "worker"));
  if (m.seat.nodes > 1 && options_.workers > 0)
    text += places_ == 1 ? fmt::format(", rank {} here", m.seat.base_rank)
                         : fmt::format(", ranks {}-{} here", m.seat.base_rank, m.seat.base_rank + places_ - 1);
  if (staying > 0) text += fmt::format(", {} go on here in the same process", staying);
  if (ready > 0)
    text += fmt::format(", {} that {} started meanwhile {} in", ready, ready == 1 ? "was" : "were", ready == 1 ? "comes" : "come");
  if (lost_at_) text += fmt::format(", started {} after the loss", for_people(now_ - *lost_at_));
  if (m.restarts.used > 0)
    text += fmt::format(
        "; {} of {} used", m.restarts.used,
        count_of(static_cast<std::size_t>(options_.round.max_restarts >= 0 ? options_.round.max_restarts : job_restarts), "restart"));
  if (places_ < workers_.size())
    text += fmt::format("; {} being started here, and joins when it is ready",
                        workers_.size() - places_ == 1 ? "1 worker is" : fmt::format("{} workers are", workers_.size() - places_));
  lost_ = false;
  say(Level::info, text);
  tell_that_workers_are_job();  // those that stay
  give_places(before);
  watch_starting();
  for (std::uint32_t i = 0; i < workers_.size() && options_.hang_sign == HangSign::output; ++i)
    if (in_world(workers_[i])) hang_.watch(LocalRank{i}, now_);
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
  if (m.why.code != Code::generation_over) note_loss();  // that code: the world only grows
  if (own_failure_) ++node_restarts_;
  if (leave_at_) return leave(leaving_by_);
  stop({.rejoin = true}, std::nullopt, m.why);
}

void Supervisor::on_message(const Resumed& m) {
  if (phase_ != Phase::running || m.generation != world_.generation) return;
  served_ = true;
  world_.coordinated_by = m.coordinated_by;
  tell_of_the_unreachable();
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
      say(Level::warning,
          "the job is done; this node was a spare, and no worker of it ever ran. Was it to run a job of its own? Then give each job an --rdzv_id and an endpoint of its own");
    else act(Say{Level::info, "the job is done", true});
    // Workers end by themselves, for they decided it, and have much time for work of their own: a program that exports
    // its model after the job is not to be cut short and called a success.
    // Those of an older generation than the job's last had no part in that, and would wait for a next one.
    const bool left_behind = !job_over_ && m.generation.number > last_.number;
    if (phase_ == Phase::running && running() > 0 && !left_behind) {
      phase_ = Phase::stopping;
      job_over_ = true;
      hang_.clear();
      hang_unopened_.clear();
      end_hung_at_.reset();
      after_ = {.rejoin = false, .finish = {0, {}, true}};
      dismiss_coming();
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
  if (const auto worker = worker_at(m.worker); worker && call.mapped().op == StoreOp::all_gather && step_ == 0)
    hang_.sign(LocalRank{static_cast<std::uint32_t>(*worker)}, now_);  // it waited for the others until now
  memory_.note(std::move(call.mapped()), m.reply);
  act(Answer{m.worker, m.reply});
}

// A job that is over and whose workers are gone needs no coordinator to say so. But one that comes back should hear it, or
// it would wait for nodes that have ended, and call the job a failure.
void Supervisor::end_without_coordinator() {
  if (!job_over_ || link_up_ || phase_ != Phase::running || running() > 0 || verdict_by_) return;
  verdict_by_ = now_ + options_.timeouts.recovery;
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
    if (!w.ending) done = done && !in_world(w);
    else if (!w.ending->ok() && !job_over_ && !w.coming.dismissed) {
      done = false;
      tell_of_failure(i);
    }
  }
  told_job_ = false;
  tell_that_workers_are_job();
  told_starting_.reset();
  tell_of_starting();
  if (done) tell_that_workers_are_done();
  offer_more();
}

// --- time ----------------------------------------------------------------------------------------------------------

void Supervisor::on_tick() {
  if (kill_at_ && now_ >= *kill_at_) {
    kill_at_.reset();
    say(Level::warning, fmt::format("{} did not end in time: killed", count_of(running(), "worker")));
    if (!ELRUN_PLANTED(kill_deadline_forgotten)) kill_running();
  }
  if (acknowledge_by_ && now_ >= *acknowledge_by_) kill_staying(false);
  kill_the_late();
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (const auto at = workers_[i].session.judge_by; at && now_ >= *at) judge_early_end(i);
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
  if (tell_starting_at_ && now_ >= *tell_starting_at_) tell_starting_at_.reset(), tell_of_starting();
  const auto is_due = [this](const std::optional<Instant>& at) { return at && now_ >= *at; };
  if (is_due(hang_.due()) || is_due(hangs_unopened_at())) on_hang();
  if (end_hung_at_ && now_ >= *end_hung_at_) end_hung();
  if (const auto due = hang_at_start_.due(); due && now_ >= *due) on_hang_at_start();
  kill_hung_at_start();
  if (verdict_by_ && now_ >= *verdict_by_) {
    verdict_by_.reset();
    say(Level::info, "the job is done; its coordinator did not come back");
    stop({.rejoin = false, .finish = {0, {}, false}}, std::nullopt, {});
  }
  if (coordinator_by_ && now_ >= *coordinator_by_) {
    coordinator_by_.reset();
    const Failure why{Code::unreachable, Remedy::exit_process,
                      fmt::format("no coordinator for {} ({})", for_people(options_.timeouts.coordinator_grace), waiting_for_)};
    stop({.rejoin = false, .finish = {job_over_ ? 0 : exit_code::coordinator_lost, job_over_ ? std::string{} : why.what, false}},
         std::nullopt, why);
  }
  if (join_by_ && now_ >= *join_by_) {
    join_by_.reset();
    if (phase_ != Phase::joining) return;
    const Failure why{Code::deadline_passed, Remedy::exit_process,
                      fmt::format("the nodes did not meet within {}: node {} waited for {}", for_people(options_.timeouts.join),
                                  options_.node.value(), waiting_for_.empty() ? "the coordinator" : waiting_for_)};
    act(Send{Leave{"the join deadline passed"}});
    stop({.rejoin = false, .finish = {exit_code::join_deadline, why.what, false}}, std::nullopt, why);
  }
}

}  // namespace elrun::inline v0::launcher
