// Supervisor: the end of a generation on this node, for all of its workers or for those that do not stay; and leaving.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

void Supervisor::stop(AfterStop after, std::optional<int> signal, const Failure& why) {
  const bool stopping = phase_ == Phase::stopping;
  if (stopping && !stop_.rejoins()) return;  // the first reason to finish stays
  const bool rejoin = after.rejoin;
  if (stopping) stop_.replace(std::move(after));
  else stop_.begin(std::move(after), now_);
  if (!rejoin) deadlines_.clear(Wait::coordinator), deadlines_.clear(Wait::join);
  if (!rejoin || job_.is_over()) dismiss_pending();
  if (stopping && rejoin) return;  // on its way already
  if (!rejoin) workers_.await_killed(now_ + options_.timeouts.killed);
  if (stopping) return kill_staying({});
  phase_ = Phase::stopping;
  // A worker that hangs in the world may hold up all others, so none of them stays. One that never joined shares no state with them.
  const bool world_hangs = std::any_of(workers_.all().begin(), workers_.all().end(),
                                       [this](const Worker& w) { return w.hangs() && (w.session.joined || !job_.is_job()); });
  hangs_.end_generation();
  for (const Wait wait : {Wait::end_hung, Wait::tell_starting, Wait::leave, Wait::look_again, Wait::broken_line}) deadlines_.clear(wait);
  deadlines_.set(Wait::kill, departure_.kill_at(now_, options_.timeouts.stop_grace));
  if (ELRUN_PLANTED(acknowledges_before_the_end) && rejoin) act(Send{Acknowledge{generation_.last()}});
  act(workers_.end_generation({.generation = generation_.last(),
                               .why = why,
                               .some_stay = rejoin && !signal && !world_hangs,
                               .signal = signal,
                               .node_runs_job = job_.is_job(),
                               .lets_last_work = rejoin && !signal && job_.is_over()}));
  if (rejoin && job_.is_over()) let_last_work();
  else if (workers_.some_stay()) deadlines_.set(Wait::acknowledge, now_ + options_.timeouts.revocation);
  stop_if_done();
}

void Supervisor::stop_if_done() {
  if (!workers_.are_stopped() || (job_.is_over() && workers_.some_stay())) return;
  deadlines_.clear(Wait::kill);
  deadlines_.clear(Wait::acknowledge);
  Finish finish = stop_.finish(workers_.all(), job_.is_over());
  act(workers_.collect(stop_.ends_leftovers()));
  calls_.end_generation();
  if (!stop_.rejoins()) {
    phase_ = Phase::finished;
    workers_.forget_ended();
    if (job_.restoration()) finish.went_on_from = describe(*job_.restoration());
    return act(std::move(finish));
  }
  phase_ = Phase::joining;
  if (stop_.revoked()) bring_successors_along(*stop_.revoked());
  if (!deadlines_.is_set(Wait::successors)) join_next();
}

// Places are asked for those that go on, those that are ready, and those that are started with the next world. The successors of
// others are started beside it.
void Supervisor::join_next() {
  deadlines_.clear(Wait::successors);
  workers_.forget_ended();
  generation_.want_places(workers_.places_wanted(successors_can_come_later()));
  if (line_.is_up()) join();  // which says as well that no process of the old generation is left
}

void Supervisor::kill_staying(std::optional<Duration> late) {
  deadlines_.clear(Wait::acknowledge);
  act(workers_.kill_staying(late, job_.is_over() ? std::optional{generation_.last()} : std::nullopt));
}

// The job is over and so is the generation: there is no next one. Workers that know it end by themselves, as they do after a verdict. Of the
// others, one that does not say it soon lost its peers before it could learn it, and waits for a next generation.
void Supervisor::let_last_work() {
  deadlines_.set(Wait::kill, now_ + options_.timeouts.last_work);
  if (workers_.let_last_work()) deadlines_.set(Wait::acknowledge, now_ + options_.timeouts.revocation);
  else deadlines_.clear(Wait::acknowledge);
}

// The workers decided the end, and now end by themselves. They get an hour for work of their own, such as exporting the model. True: there
// are workers to wait for. Then this node finishes with 0 when they have ended.
bool Supervisor::let_job_end(bool by_verdict) {
  const bool is_stopping = phase_ == Phase::joining || stop_.rejoins();  // the generation was ended meanwhile
  const bool runs = phase_ == Phase::running && running(workers_.all()) > 0;
  if (!runs && !(workers_.some_stay() && is_stopping)) return false;
  job_.finish();
  const AfterStop after{.rejoin = false, .finish = {0, {}, by_verdict}};
  if (std::exchange(phase_, Phase::stopping) == Phase::joining) stop_.begin(after, now_);
  else stop_.replace(after);
  for (const Wait wait : {Wait::coordinator, Wait::join, Wait::look_again}) deadlines_.clear(wait);
  workers_.await_killed(now_ + options_.timeouts.killed);
  dismiss_pending();
  if (!runs) return let_last_work(), true;
  hangs_.end_generation();
  deadlines_.clear(Wait::end_hung);
  deadlines_.clear(Wait::leave);  // nothing is left to save
  deadlines_.set(Wait::kill, now_ + options_.timeouts.last_work);
  return true;
}

// Without a verdict.
void Supervisor::end_over_job() {
  if (!let_job_end(false)) stop({.rejoin = false, .finish = {0, {}, false}}, std::nullopt, {});
}

// While the coordinator is away, nobody can end the generation. A worker that has lost a peer waits only a short time for
// that and would then give up. This agent tells it now that the generation is over.
void Supervisor::hold_the_broken() {
  if (phase_ == Phase::running && !line_.can_report()) act(workers_.hold_the_broken(generation_.last()));
}

// There is no next generation for them.
void Supervisor::dismiss_pending() {
  deadlines_.clear(Wait::successors);
  end_preparation();
  for (const LocalRank worker : workers_.dismiss_pending()) {
    hangs_.forget_pending(worker);
    act(SignalGroup{worker, SIGKILL});
  }
}

void Supervisor::on_signal(int number) {
  const std::string name = signal_name(number);
  switch (departure_.on_signal(phase_ == Phase::stopping, can_save(), deadlines_.is_set(Wait::leave))) {
    case Departing::prepare: return prepare_to_leave(number, name);
    case Departing::leave: return leave(number, name);
    case Departing::leave_and_kill: leave(number, name); return act(workers_.kill_running());
    case Departing::kill: say(Level::warning, fmt::format("{} again: the workers are killed", name)); return act(workers_.kill_running());
    case Departing::goes_on:
      say(Level::info, fmt::format("{}: this node is leaving already, because of the preempt notice; another one kills the workers", name));
  }
}

// What follows is what SIGTERM does.
void Supervisor::on_notice(const NoticeCame& e) {
  const std::string why = fmt::format("preempt notice ({})", e.words);
  switch (departure_.on_notice(can_save())) {
    case Departing::prepare: return prepare_to_leave(SIGTERM, why);
    case Departing::leave: return leave(SIGTERM, why);
    case Departing::leave_and_kill:
    case Departing::kill:
    case Departing::goes_on: return;
  }
}

void Supervisor::prepare_to_leave(int signal, const std::string& why) {
  departure_.prepare(signal, why, now_ + options_.timeouts.stop_grace);
  deadlines_.set(Wait::leave, now_ + options_.timeouts.drain);
  say(Level::warning, fmt::format("{}: this node leaves as soon as the job has saved a checkpoint, in {} at the latest", why,
                                  for_people(options_.timeouts.drain)));
  dismiss_pending();  // they have nothing to save
  act(workers_.ask_to_save(generation_.last()));
}

void Supervisor::leave(int number, const std::string& why) {
  departure_.leave(number, why);
  deadlines_.clear(Wait::leave);  // workers that are ending by themselves already are not stopped once more
  const bool stopping = phase_ == Phase::stopping;
  Instant kill_at = departure_.kill_at(now_, options_.timeouts.stop_grace);
  if (stopping && deadlines_.is_set(Wait::kill)) deadlines_.set(Wait::kill, kill_at = std::min(*deadlines_.at(Wait::kill), kill_at));
  const std::size_t alive = running(workers_.all());
  say(Level::warning, fmt::format("{}: {}", why,
                                  alive > 0 ? fmt::format("{}forwarded to {}; SIGKILL after {}",
                                                          why == signal_name(number) ? "" : signal_name(number) + " ",
                                                          count_of(alive, "worker"), for_people(std::max(kill_at - now_, Duration{0})))
                                            : "this node leaves"));
  act(Send{Leave{fmt::format("{} came", why)}});
  stop({.rejoin = false, .finish = {job_.is_over() ? 0 : 128 + number, {}, false}, .asked_by = why}, number, {});
  if (stopping) act(workers_.pass_on(number));
}

}  // namespace elrun::inline v0::launcher
