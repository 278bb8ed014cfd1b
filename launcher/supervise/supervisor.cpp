// The life of a node: it joins, runs the workers of one generation, stops them when the generation is over, and joins
// again, until a verdict, a signal or a deadline ends it.
//
//   joining --World--> running --Revoke--> stopping --all ended: Join, at once or when successors are ready--> joining
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
    : options_{std::move(options)},
      generation_{options_.workers},
      workers_{options_.workers, options_.run, options_.node},
      hangs_{options_.hang_timeout, options_.hang_sign},
      successors_{options_.timeouts.heartbeat_limit / 2} {}

Actions Supervisor::on(const Event& event, Instant now) {
  const Instant last_event = std::exchange(now_, now);
  actions_.clear();
  judged_.clear();
  if (phase_ == Phase::finished) return {};
  excuse_own_stall(last_event);
  std::visit(
      [this](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, Started>) deadlines_.set(Wait::join, now_ + options_.timeouts.join);
        else if constexpr (std::is_same_v<E, LinkUp>) on_link_up();
        else if constexpr (std::is_same_v<E, LinkDown>) on_link_down(e.why);
        else if constexpr (std::is_same_v<E, FromCoordinator>) std::visit([this](const auto& m) { this->on_message(m); }, e.message);
        else if constexpr (std::is_same_v<E, WorkerStarted>) on_worker_started(e);
        else if constexpr (std::is_same_v<E, WorkerEnded>) on_worker_ended(e);
        else if constexpr (std::is_same_v<E, WorkerWrote>) on_worker_wrote(e.worker);
        else if constexpr (std::is_same_v<E, WorkerHungUp>) on_hung_up(e.from);
        else if constexpr (std::is_same_v<E, FromWriter>) on_writer_message(e);
        else if constexpr (std::is_same_v<E, SignalCame>) on_signal(e.number);
        else if constexpr (std::is_same_v<E, NoticeCame>) on_notice(e);
        else if constexpr (std::is_same_v<E, Tick>) on_tick();
        else if constexpr (std::is_same_v<E, FromWorker>)
          std::visit(
              [&](const auto& m) {
                if constexpr (requires { on_worker_message(e.from, m); }) on_worker_message(e.from, m);
              },
              e.message);
      },
      event);
  return std::move(actions_);
}

void Supervisor::act(Action action) {
  if (const auto* signal = std::get_if<SignalGroup>(&action); signal != nullptr && signal->worker.value() < workers_.size()) {
    Worker& w = workers_[signal->worker.value()];
    w.signalled_to_end = true;
    w.was_killed |= signal->number == SIGKILL;
    if (signal->number == SIGKILL && !w.gone_by) w.gone_by = now_ + options_.timeouts.killed;
  }
  add(actions_, std::move(action));
}
void Supervisor::act(Actions actions) {
  for (Action& action : actions) act(std::move(action));
}

std::optional<Rank> Supervisor::rank(LocalRank worker) const {
  if (worker.value() >= workers_.size() || !workers_[worker.value()].in_world()) return {};
  return Rank{workers_.rank(worker.value())};
}

std::optional<Instant> Supervisor::wake_at() const { return next_deadline(false); }

// The table of waits, and what only single workers have a deadline for.
std::optional<Instant> Supervisor::next_deadline(bool awaited_only) const {
  if (phase_ == Phase::finished) return std::nullopt;
  std::optional<Instant> least = deadlines_.next(awaited_only);
  for (const auto& at : {hangs_.due_in_world(job_.is_job()), hangs_.due_pending(), workers_.next_deadline()})
    if (at && (!least || *at < *least)) least = at;
  return least;
}

// Messages that came while this agent was stopped are still to be read, and workers that were stopped with it need the time that they had left. So
// deadlines move on by the length of the stop.
void Supervisor::excuse_own_stall(Instant last_event) {
  const auto stalled = stall_.stalled(next_deadline(true), last_event, now_);
  if (!stalled) return;
  const Instant not_before = now_ + StallCompensation::grace;
  deadlines_.excuse(*stalled, not_before);
  workers_.excuse(*stalled, not_before);
  hangs_.excuse(*stalled, now_, not_before);
}

// --- the coordinator ----------------------------------------------------------------------------------------------

NodeView Supervisor::view() const {
  return {.workers = workers_,
          .generation = generation_,
          .job = job_,
          .now = now_,
          .runs = phase_ == Phase::running,
          .starts_slow = !deadlines_.is_set(Wait::tell_starting),
          .ends_slow = options_.hang_timeout > Duration{0},
          .leaves = deadlines_.is_set(Wait::leave)};
}

void Supervisor::join() {
  Join join;
  join.options = options_.round;
  join.workers = generation_.places();
  join.last = generation_.last();
  join.resuming = phase_ == Phase::running || phase_ == Phase::stopping || deadlines_.is_set(Wait::successors);
  if (phase_ == Phase::running || (!join.resuming && generation_.last().number > 0)) {
    join.seat = generation_.world().seat;
    // After the end of the job this is left out: JobFinished follows, and the coordinator must read that before it decides
    // which nodes are missing.
    if (!job_.is_over()) join.coordinated_by = generation_.world().coordinated_by;
    join.coordinator_fell_silent = join.coordinated_by && line_.fell_silent();
  }
  if (phase_ == Phase::running) {
    const auto failed = [](const Worker& w) { return w.in_world() && (w.failed() || !w.stuck.empty()); };
    join.broken = (std::any_of(workers_.all().begin(), workers_.all().end(), failed) || generation_.lost_peers().any()) && !job_.is_over();
  }
  join.restarts = generation_.world().restarts;
  join.heard = line_.newest_running();
  join.has_trained = job_.has_trained();
  const bool is_ready = !join.resuming && join.workers > 0 && workers_.are_prepared(join.workers);
  const bool some_stay = std::any_of(workers_.all().begin(), workers_.all().end(), [](const Worker& w) { return w.life.is(Life::stayed); });
  if (preparation_.beside) join.preparedness = Preparedness::starting;
  else if (is_ready) join.preparedness = some_stay ? Preparedness::ready : Preparedness::fresh;
  else if (!join.resuming && some_stay) join.preparedness = Preparedness::some_stay;
  act(Send{join});
  preparation_.was_told = !preparation_.beside && is_ready;
  tell_prepared();
  // This coordinator may be a new one that does not know it, and the other members may have ended.
  if (job_.is_over()) act(Send{JobFinished{generation_.last()}});
}

// A new coordinator waits for the other nodes of this generation. It waits less long once it knows that the generation cannot go on.
void Supervisor::join_as_broken() {
  if (phase_ == Phase::running && line_.is_up() && !line_.is_serving()) join();
}

void Supervisor::on_link_up() {
  if (deadlines_.is_set(Wait::coordinator)) say(Level::info, fmt::format("the coordinator at {} is back", options_.coordinator));
  const auto awaited_until = deadlines_.at(generation_.last().number == 0 ? Wait::join : Wait::coordinator);
  line_.up(now_, awaited_until ? std::optional{std::max(*awaited_until - now_, Duration{0})} : std::nullopt);
  deadlines_.clear(Wait::coordinator);
  // Also while workers are being stopped: whoever decides about the next generation has to wait for that. A node that goes
  // for good does not join again.
  if (phase_ != Phase::stopping || stop_.rejoins()) join();
}

void Supervisor::on_link_down(const Failure& why) {
  line_.down(why, options_.coordinator);
  const bool none_yet = generation_.last().number == 0;
  const bool is_awaited = phase_ != Phase::stopping || stop_.rejoins();  // else it is known already how this node ends
  if (is_awaited && !none_yet && !deadlines_.is_set(Wait::coordinator))
    deadlines_.set(Wait::coordinator, now_ + line_.grace(now_, options_.timeouts.coordinator_grace, options_.timeouts));
  if (none_yet && !deadlines_.is_set(Wait::join))
    deadlines_.set(Wait::join, now_ + line_.grace(now_, options_.timeouts.join, options_.timeouts));
  const Instant until = deadlines_.at(Wait::coordinator).value_or(deadlines_.at(Wait::join).value_or(now_));
  if (is_awaited)
    say(Level::warning,
        fmt::format("waiting for {}; {}elrun retries for another {}", line_.waiting_for(),
                    phase_ == Phase::running && running(workers_.all()) > 0 ? "the workers go on; " : "", for_people(until - now_)));
  deadlines_.clear(Wait::look_again);
  hold_the_broken();
  if (ELRUN_PLANTED(torchrun_d5_store_loss_kills_workers) && phase_ == Phase::running) stop({.rejoin = true}, std::nullopt, why);
  for (auto& [caller, reply] : calls_.coordinator_lost()) act(Answer{caller, std::move(reply)});
  end_without_coordinator();
}

void Supervisor::on_message(const Refused& m) {
  if (job_.is_over()) {  // whoever answers there now coordinates another job
    say(Level::warning, "this node was refused, which means nothing to a job that is over: " + message(m.failure));
    return end_over_job();
  }
  const bool config =
      m.failure.remedy == Remedy::fix_config || m.failure.code == Code::mismatch || m.failure.code == Code::invalid_argument;
  stop({.rejoin = false,
        .finish = {config ? exit_code::contradiction : exit_code::internal, "this node was refused: " + message(m.failure), false}},
       std::nullopt, m.failure);
}

void Supervisor::on_message(const Waiting& m) {
  deadlines_.clear(Wait::join);  // a coordinator answers: it decides how long to wait from here on, and a spare waits without limit
  // Of the generation that runs here the coordinator's log has it, too.
  const bool is_of_this = phase_ == Phase::running && m.running == generation_.last();
  if (line_.waits_for(m.why)) act(Say{Level::info, m.why, is_of_this});
  if (m.for_this_node && is_of_this) job_.know_as_job();
  line_.note_running(m.running.number);
  if (m.decided && m.decided->generation == generation_.last()) line_.note_decided(*m.decided);
  if (phase_ != Phase::joining || m.running.number != 0) deadlines_.clear(Wait::look_again);
  else if (!deadlines_.is_set(Wait::look_again)) deadlines_.set(Wait::look_again, now_ + look_again_every);
}

void Supervisor::on_message(const World& m) {
  // Begun before the coordinator heard that the job is over: its members would wait for this node.
  if (phase_ == Phase::stopping && stop_.rejoins() && job_.is_over()) return act(Send{JobFinished{m.generation}});
  if (phase_ != Phase::joining) return;  // of a round that this node has left since
  if (generation_.is_past(m))
    return say(Level::warning, fmt::format("generation {} was offered after generation {}; it is not taken", to_string(m.generation),
                                           to_string(generation_.last())));
  if (generation_.lacks_places(m)) {
    Failure why{Code::protocol, Remedy::exit_process,
                "the coordinator sent a world in which this node has no place; versions of elrun that differ?"};
    return stop({.rejoin = false, .finish = {exit_code::internal, why.what, false}}, std::nullopt, why);
  }
  phase_ = Phase::running;
  line_.serves(true);
  const World before = generation_.begin(m, now_);
  for (const Wait wait : {Wait::join, Wait::look_again, Wait::broken_line, Wait::successors}) deadlines_.clear(wait);
  end_preparation();
  calls_.begin_generation();
  successors_.begin_generation();
  WorldSummary summary{.has_workers = options_.workers > 0,
                       .max_restarts = options_.round.max_restarts >= 0 ? options_.round.max_restarts : job_restarts,
                       .recovering = job_.recovery().so_far(now_)};
  for (const Worker& w : workers_.all()) summary.staying += w.life.stays() ? 1 : 0, summary.ready += w.life.is(Life::ready) ? 1 : 0;
  workers_.begin(m.seat, job_.is_over());  // a job that is over stays over: no worker starts, only the coordinator has to hear it (again)
  if (generation_.places() < workers_.size()) summary.beside = workers_.size() - generation_.places();
  job_.recovery().begin_generation();
  job_.begin_generation(m.generation.number);
  say(Level::info, describe_world(generation_, summary));
  act(tell_job(line_, view()));  // those that stay
  start_workers(before);
  watch_starts();
  if (workers_.size() == 0) act(tell_all(line_, view()));
  act(offer_more(line_, view()));
}

void Supervisor::on_message(const Revoke& m) {
  if (m.generation != generation_.last()) return;
  if (phase_ == Phase::joining) return act(Send{Acknowledge{m.generation}});  // no process of it is left
  if (phase_ != Phase::running) return;
  // Of a worker of this node it was told when it died.
  if (!generation_.failed_here() || !m.why.rank || !generation_.has_rank(*m.why.rank))
    act(Say{Level::warning, fmt::format("generation {} is over: {}", m.generation.number, m.why.what), true});
  // A world that grows, and a generation that is stale, are no loss: the time to the next world is no recovery.
  if (const EndCause cause = end_cause_of(m); cause != EndCause::growth && cause != EndCause::stale) job_.recovery().lost(now_);
  if (generation_.failed_here()) job_.count_restart();
  if (deadlines_.is_set(Wait::leave)) return leave(departure_.signal(), departure_.why());
  World over = generation_.world();
  over.cause = m.why.what;
  if (is_failure(end_cause_of(m))) ++over.restarts.generations;
  stop({.rejoin = true, .revoked = std::move(over)}, std::nullopt, m.why);
}

void Supervisor::on_message(const Resumed& m) {
  if (phase_ != Phase::running || m.generation != generation_.last()) return;
  line_.serves(false);
  generation_.resume(m.coordinated_by);
  if (m.fresh) successors_.begin_generation();  // this coordinator did not hear of its steps: a failure may use up the last restart
  if (m.fresh && calls_.have_forgotten() && !job_.is_over()) {
    Failure why{
        Code::exhausted, Remedy::rejoin,
        fmt::format("generation {} began under another coordinator, and this node's workers put more into its store than the {} MiB that a "
                    "node keeps for the next one: the generation cannot go on",
                    m.generation.number, store_memory_max.value() >> 20)};
    say(Level::warning, why.what);
    job_.recovery().lost(now_);
    if (deadlines_.is_set(Wait::leave)) return leave(departure_.signal(), departure_.why());
    return stop({.rejoin = true}, std::nullopt, why);  // the coordinator ends the generation when this node joins again
  }
  // The coordinator hears of both nodes, and decides which of them is excluded.
  for (const PeerUnreachable& peer : generation_.lost_peers().unreachable()) act(Send{peer});
  if (generation_.lost_peers().any()) on_broken_line();  // it means to go on in spite of that
  if (!ELRUN_PLANTED(done_is_not_reported_again)) act(tell_all(line_, view()));
  for (auto& [caller, reply] : calls_.end_late(now_)) act(Answer{caller, std::move(reply)});
  for (StoreCall& call : calls_.to_send_again(m.fresh, generation_.world(), now_))
    act(Send{std::move(call)});  // a fresh store waits for what all nodes remember
}

void Supervisor::on_message(const Verdict& m) {
  // The workers' own decision that the job is over stands. A coordinator that is new may not have heard of it.
  const bool success = m.exit_code == 0 || job_.is_over();
  if (success) {
    if (generation_.last().number == 0 && options_.workers > 0 && !any(workers_.all(), &Worker::lives))
      say(Level::warning,
          "the job is done; this node was a spare, and no worker of it ever ran. Was it to run a job of its own? Then give each job an --rdzv_id and an endpoint of its own");
    else act(Say{Level::info, "the job is done", true});
    // Workers of an older generation had no part in the decision: they wait for a next one, and are stopped.
    const bool left_behind = !job_.is_over() && m.generation.number > generation_.last().number;
    if (!left_behind && let_job_end(true)) return;
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
  if (const auto worker = worker_with(workers_.all(), m.worker); worker && op == StoreOp::all_gather && generation_.step() == 0)
    hangs_.sign_in_world(LocalRank{static_cast<std::uint32_t>(*worker)}, now_);  // it waited for the others until now
  act(Answer{m.worker, m.reply});
}

// When the job is over and the workers have ended, this node can end without a verdict. It stays for a while: a coordinator
// that comes back and does not hear of the end would wait for nodes that have ended, and then fail the job.
void Supervisor::end_without_coordinator() {
  if (!job_.is_over() || line_.is_up() || phase_ != Phase::running || running(workers_.all()) > 0 || deadlines_.is_set(Wait::verdict))
    return;
  deadlines_.set(Wait::verdict, now_ + options_.timeouts.recovery);
  say(Level::info, fmt::format("the job is done; its coordinator is away, and is told if it comes back within {}",
                               for_people(options_.timeouts.recovery)));
}

// --- time ----------------------------------------------------------------------------------------------------------

// Each wait that is over, in this order: what an earlier one ends, a later one finds ended.
void Supervisor::on_tick() {
  const auto is_over = [this](Wait wait) { return deadlines_.take(wait, now_); };
  const auto is_due = [this](const std::optional<Instant>& at) { return at && now_ >= *at; };
  if (is_over(Wait::kill)) {
    say(Level::warning, fmt::format("{} did not end in time: killed", count_of(running(workers_.all()), "worker")));
    if (!ELRUN_PLANTED(kill_deadline_forgotten)) act(workers_.kill_running());
  }
  if (is_over(Wait::acknowledge)) kill_staying(options_.timeouts.revocation);
  act(workers_.kill_late(now_, options_.timeouts.returning, generation_.last()));
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (is_due(workers_[i].early.judge_by)) judge_early_end(i);
  if (is_over(Wait::look_again)) {
    // The coordinator may have been replaced while it was frozen. It then thaws with the streams of some nodes, and the others are elsewhere.
    deadlines_.set(Wait::look_again, now_ + look_again_every);
    act(LookAgain{});
  }
  if (is_over(Wait::broken_line)) on_broken_line();
  if (is_over(Wait::successors)) join_next();
  if (is_over(Wait::prepare)) on_late_preparation();
  if (is_over(Wait::leave)) {
    say(Level::warning, "the job did not save a checkpoint in time: this node leaves without one");
    leave(departure_.signal(), departure_.why());
  }
  if (is_over(Wait::tell_starting)) act(tell_starting(line_, view()));
  if (is_due(hangs_.due_in_world(job_.is_job()))) on_hang();
  if (is_over(Wait::end_hung)) {
    const int signal = hangs_.next_signal();
    act(workers_.end_hung(signal));
    if (signal == SIGABRT) deadlines_.set(Wait::end_hung, now_ + options_.timeouts.revocation);
  }
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (is_due(workers_[i].gone_by)) on_stuck(i);
  if (is_due(hangs_.due_pending())) on_hang_of_pending();
  act(workers_.kill_hung_pending(now_));
  if (is_over(Wait::verdict)) {
    say(Level::info, "the job is done; its coordinator did not come back");
    stop({.rejoin = false, .finish = {0, {}, false}}, std::nullopt, {});
  }
  if (is_over(Wait::coordinator)) on_coordinator_lost();
  if (is_over(Wait::join)) on_join_deadline();
}

// Two workers live but have lost their connection, or one lives whose device's collective failed. Only a new generation connects them again.
void Supervisor::on_broken_line() {
  deadlines_.clear(Wait::broken_line);
  if (phase_ != Phase::running || job_.is_over() || !line_.can_report()) return;  // else it is held
  const LossReport& report = generation_.lost_peers().first();
  auto failed = living_worker_failed(workers_, generation_.last(), report);
  if (!failed) return;
  workers_[failed->local_rank].told_alive = true;
  const bool own = report.own && failed->local_rank == report.worker;
  say(Level::error,
      fmt::format("{} {}: {}", workers_.name(failed->local_rank),
                  own ? "cannot go on in this generation, and lost no peer" : "lost a peer that is not known to have died", report.why));
  act(Send{*std::move(failed)});
}

void Supervisor::on_hang() {
  const auto found = hangs_.find_in_world(
      workers_.all(), [this](const Worker& w) { return waits_for_world(w); }, job_.is_job(), now_);
  if (!found) return;
  std::string names;
  for (const LocalRank worker : found->silent) names += (names.empty() ? "" : ", ") + workers_.name(worker.value());
  const std::string why = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
  say(Level::error, fmt::format("{} of {} in generation {}: this is a hang. What {} doing follows; they are killed in {}", why, names,
                                generation_.last().number, found->is_forming ? "they are" : "all workers of this node are",
                                for_people(options_.timeouts.stacks)));
  for (const LocalRank worker : found->suspects) {
    Worker& w = workers_[worker.value()];
    w.hung = w.session.opened ? why : why + (job_.is_job() ? ", and its session was never opened" : "");
    act(TakeStacks{worker});
  }
  deadlines_.set(Wait::end_hung, now_ + options_.timeouts.stacks);
}

// No other worker waits for a pending one. It alone is killed, and another one is started.
void Supervisor::on_hang_of_pending() {
  for (const LocalRank worker : hangs_.find_pending(workers_.all(), now_))
    end_hung_pending(worker, fmt::format("no sign of progress for {}", for_people(options_.hang_timeout)), "--hang_timeout");
}

void Supervisor::end_hung_pending(LocalRank worker, std::string why, const char* option) {
  Worker& w = workers_[worker.value()];
  w.hung = std::move(why);
  w.pending.kill_at = now_ + options_.timeouts.stacks;
  say(Level::error,
      fmt::format(
          "{} of {}, a pending worker that is not ready for its place: this is a hang. What it is doing follows; it is killed in {} "
          "(a load that takes longer? Give {} more)",
          w.hung, workers_.name(worker.value()), for_people(options_.timeouts.stacks), option));
  act(TakeStacks{worker});
}

// A node that ends does so without such workers. One that hung is reported, or nobody would learn of the hang. This node then waits for its
// end before it joins again, as for any other: what it does in the kernel may still be done.
void Supervisor::on_stuck(std::size_t worker) {
  Worker& w = workers_[worker];
  w.gone_by.reset();
  if (!w.lives() || w.pid == 0) return;
  const bool ends = phase_ == Phase::stopping && !stop_.rejoins();
  if (!ends && (phase_ != Phase::running || !w.hangs())) return;
  const std::string what =
      fmt::format("SIGKILL has not ended it within {}: it is stuck in the kernel", for_people(options_.timeouts.killed));
  say(Level::error, fmt::format("{}: {}", workers_.name(worker), what));
  if (ends) return act(GiveUp{local_rank(worker)});
  w.stuck = what;
  generation_.fail_here();
  tell_of_failure(worker);
  join_as_broken();
}

void Supervisor::on_coordinator_lost() {
  const bool is_done =
      phase_ == Phase::running && options_.workers > 0 &&
      std::all_of(workers_.all().begin(), workers_.all().end(), [](const Worker& w) { return w.ending && w.ending->ok(); });
  const Failure why{Code::unreachable, Remedy::exit_process,
                    fmt::format("no coordinator for {} ({}){}", for_people(options_.timeouts.coordinator_grace), line_.waiting_for(),
                                is_done ? "; all workers of this node had ended with 0" : "")};
  // That the job is done nobody could decide otherwise: the workers of all members had ended with 0. A failure has its root cause's code, on every node.
  if (const auto& decided = line_.decided(); decided && !job_.is_over() && (decided->exit_code != 0 || is_done)) {
    say(Level::warning, why.what + "; the job ends as the last coordinator had decided, who could not write that to etcd");
    Finish finish{decided->exit_code, decided->report, false};
    finish.deaths = decided->deaths;
    return stop({.rejoin = false, .finish = std::move(finish)}, std::nullopt, why);
  }
  if (!job_.is_over()) return stop({.rejoin = false, .finish = {exit_code::coordinator_lost, why.what, false}}, std::nullopt, why);
  say(Level::info, why.what + "; the job is over, and needs none");
  end_over_job();
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
