// Supervisor: the end of a generation on this node, for all of its workers or for those that do not stay; hangs; leaving.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

// Ends the workers. A Job's worker is killed at once: its step is revoked, and its checkpoints survive a kill. Other
// programs get SIGTERM. Workers that can stay are told that their generation is over, and have to acknowledge it.
void Supervisor::stop(AfterStop after, std::optional<int> signal, const Failure& why) {
  if (phase_ == Phase::stopping && !after_.rejoin) return;  // the first reason to finish stays
  after_ = std::move(after);
  if (!after_.rejoin) deadlines_.clear(Wait::coordinator), deadlines_.clear(Wait::join);
  if (!after_.rejoin || job_over_) dismiss_pending();
  if (phase_ == Phase::stopping) return after_.rejoin ? void() : kill_staying(true);  // on its way already
  phase_ = Phase::stopping;
  const bool some_stay = after_.rejoin && !signal && !job_over_ && !world_hangs();
  hangs_.end_generation();
  deadlines_.clear(Wait::end_hung);
  deadlines_.clear(Wait::tell_starting);
  stopped_at_ = now_;
  deadlines_.clear(Wait::leave);
  deadlines_.clear(Wait::look_again);
  deadlines_.clear(Wait::broken_line);
  deadlines_.set(Wait::kill, departure_.kill_at(now_, options_.timeouts.stop_grace));
  if (ELRUN_PLANTED(acknowledges_before_the_end) && after_.rejoin) act(Send{Acknowledge{last_}});
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{static_cast<std::uint32_t>(i)};
    Worker& w = workers_[i];
    if (!w.in_world() || w.released) continue;
    w.return_by.reset();
    w.stays = some_stay && w.can_stay && w.connection && !w.ending && w.hung.empty();
    w.quit = false;
    if (w.connection && !signal) act(Answer{*w.connection, GenerationOver{world_.generation, why}});
    if (w.stays) deadlines_.set(Wait::acknowledge, now_ + options_.timeouts.revocation);
    else if (w.ending) act(SignalGroup{worker, SIGKILL});
    else act(SignalGroup{worker, w.stop_signal(signal, job_known_)});
  }
  stop_if_done();
}

void Supervisor::stop_if_done() {
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_stopped(); })) all_stopped();
}

// --- hangs ---

// Once all workers have joined the world, a worker that hangs and a worker that waits for it look the same: the stacks of all
// workers of this node are taken. Before that they can be told apart: a worker that waits for its peers does not hang.
void Supervisor::on_hang() {
  std::vector<LocalRank> silent;
  for (const LocalRank worker : hangs_.in_world.silent(now_)) {
    if (waits_for_world(workers_[worker.value()])) hangs_.in_world.sign(worker, now_);
    else silent.push_back(worker);
  }
  if (hangs_unopened_at())
    for (const LocalRank worker : hangs_.unopened.silent(now_)) silent.push_back(worker);
  if (silent.empty()) return;
  const bool is_forming = job_known_ && std::any_of(workers_.begin(), workers_.end(),
                                                    [this](const Worker& w) { return w.is_starting() || waits_for_world(w); });
  std::string names;
  for (const LocalRank worker : silent) names += (names.empty() ? "" : ", ") + name_of(worker.value());
  const std::string why = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
  say(Level::error, fmt::format("{} of {} in generation {}: this is a hang. What {} doing follows; they are killed in {}", why, names,
                                world_.generation.number, is_forming ? "they are" : "all workers of this node are",
                                for_people(options_.timeouts.stacks)));
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{i};
    if (!workers_[i].in_world() || workers_[i].ending || (is_forming && std::find(silent.begin(), silent.end(), worker) == silent.end()))
      continue;
    hangs_.in_world.forget(worker);
    hangs_.unopened.forget(worker);
    workers_[i].hung = workers_[i].session.opened ? why : why + (job_known_ ? ", and its session was never opened" : "");
    act(TakeStacks{worker});
  }
  deadlines_.set(Wait::end_hung, now_ + options_.timeouts.stacks);
}

// A worker that hangs in the world may hold up all others, so none of them stays. One that never joined shares no state with them.
bool Supervisor::world_hangs() const {
  return std::any_of(workers_.begin(), workers_.end(), [this](const Worker& w) { return w.hangs() && (w.session.joined || !job_known_); });
}

// SIGABRT first: Python's faulthandler answers it with the stacks of all threads, others with a core dump where that is on.
void Supervisor::end_hung() {
  const bool were_asked = std::exchange(hangs_.were_asked, true);
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].in_world() && !workers_[i].ending && !workers_[i].hung.empty())
      act(SignalGroup{LocalRank{i}, were_asked ? SIGKILL : SIGABRT});
  if (!were_asked) deadlines_.set(Wait::end_hung, now_ + options_.timeouts.revocation);
}

void Supervisor::kill_running() {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].in_world() && !workers_[i].ending && !workers_[i].stays)
      act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
}

// Kills workers that were to stay: they did not acknowledge the end in time, or there is no next generation.
void Supervisor::kill_staying(bool acknowledged_too) {
  deadlines_.clear(Wait::acknowledge);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.stays || w.ending || (w.quit && !acknowledged_too)) continue;
    w.stays = false;
    if (!acknowledged_too)
      say(Level::error, fmt::format("{} did not acknowledge within {} that its generation is over: killed", name_of(i),
                                    for_people(options_.timeouts.revocation)));
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
  }
}

// While the coordinator is away, nobody can end the generation. A worker that has lost a peer waits only a short time for
// that and would then give up. This agent tells it now that the generation is over: so it keeps its state for the next one.
void Supervisor::hold_the_broken() {
  if (phase_ != Phase::running || line_.can_report()) return;
  for (Worker& w : workers_) {
    if (!w.cannot_go_on || !w.can_stay || !w.connection || w.ending || std::exchange(w.held, true)) continue;
    act(Answer{*w.connection,
               GenerationOver{world_.generation, {Code::peer_lost, Remedy::rejoin, "a peer was lost while the coordinator is away"}}});
  }
}

// The coordinator hears of both nodes, and decides which of them is kept out.
void Supervisor::tell_of_the_unreachable() {
  for (const PeerUnreachable& peer : lost_peers_.unreachable()) act(Send{peer});
}

// Two workers live but have lost their connection. Only a new generation connects them again.
void Supervisor::tell_of_broken_line() {
  deadlines_.clear(Wait::broken_line);
  const auto worker = std::find_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.cannot_go_on && !w.ending; });
  if (phase_ != Phase::running || job_over_ || !line_.can_report() || worker == workers_.end()) return;  // else it is held
  const auto local = static_cast<std::uint32_t>(worker - workers_.begin());
  say(Level::error, fmt::format("{} lost a peer that is not known to have died: {}", name_of(local), lost_peers_.why()));
  act(Send{WorkerFailed{world_.generation,
                        local,
                        1,
                        fmt::format("the loss of a peer that is not known to have died ({:.500})", lost_peers_.why()),
                        true,
                        {},
                        {},
                        rank_of(local)}});
}

// A worker that does not come back from its program answers no peer. It is killed, and started again as a new process.
void Supervisor::kill_the_late() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.return_by || now_ < *w.return_by) continue;
    w.return_by.reset();
    say(Level::error,
        fmt::format(
            "{} did not come back from its program in {} after generation {} began (a slot that takes long? a deadlock?): it is killed and started again",
            name_of(i), for_people(std::max(options_.timeouts.returning, w.returns_within)), world_.generation.number));
    act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
  }
}

void Supervisor::all_stopped() {
  deadlines_.clear(Wait::kill);
  deadlines_.clear(Wait::acknowledge);
  if (after_.signal != 0)
    after_.finish.after_signal =
        fmt::format("{}: {}", signal_name(after_.signal), (job_over_ ? "the job was done; " : "this node has left; ") + fate_of(workers_));
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
  calls_.end_generation();
  if (!after_.rejoin) {
    phase_ = Phase::finished;
    return act(after_.finish);
  }
  phase_ = Phase::joining;
  choose_pending();
  if (!line_.is_up()) return;
  join();  // which says as well that no process of the old generation is left
}

void Supervisor::on_signal(int number) {
  switch (departure_.on_signal(phase_ == Phase::stopping, can_prepare_to_leave(), deadlines_.is_set(Wait::leave))) {
    case Departing::prepare: return prepare_to_leave(number);
    case Departing::leave: return leave(number);
    case Departing::leave_and_kill: leave(number); return kill_running();
    case Departing::kill: say(Level::warning, fmt::format("{} again: the workers are killed", signal_name(number))); return kill_running();
  }
}

// Workers of a Job have state that others need, and can save it at the next step's end; others only know the signal.
bool Supervisor::can_prepare_to_leave() const {
  return phase_ == Phase::running && !job_over_ && running(workers_) > 0 && !any(workers_, &Worker::hangs) &&
         std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& w) { return !w.in_world() || w.ending || (w.connection && w.is_job); });
}

void Supervisor::prepare_to_leave(int signal) {
  departure_.prepare(signal, now_ + options_.timeouts.stop_grace);
  deadlines_.set(Wait::leave, now_ + options_.timeouts.drain);
  say(Level::warning, fmt::format("{}: this node leaves as soon as the job has saved a checkpoint, in {} at the latest",
                                  signal_name(signal), for_people(options_.timeouts.drain)));
  dismiss_pending();  // they have nothing to save
  for (const Worker& w : workers_)
    if (w.in_world() && !w.ending) act(Answer{*w.connection, PrepareToLeave{world_.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const PrepareToLeave& m) {
  const auto i = worker_with(workers_, from);
  if (!i || !deadlines_.is_set(Wait::leave) || m.generation != world_.generation) return;
  workers_[*i].ready_to_leave = true;
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.in_world() || w.ending || w.ready_to_leave; }))
    leave(departure_.signal());
}

void Supervisor::leave_unsaved() {
  say(Level::warning, "the job did not save a checkpoint in time: this node leaves without one");
  leave(departure_.signal());
}

void Supervisor::leave(int number) {
  deadlines_.clear(Wait::leave);  // workers that are ending by themselves already are not stopped once more
  say(Level::warning,
      fmt::format("{}: {}", signal_name(number),
                  running(workers_) > 0 ? fmt::format("forwarded to {}; SIGKILL after {}", count_of(running(workers_), "worker"),
                                                      for_people(options_.timeouts.stop_grace))
                                        : "this node leaves"));
  act(Send{Leave{fmt::format("{} came", signal_name(number))}});
  const AfterStop after{.rejoin = false, .finish = {job_over_ ? 0 : 128 + number, {}, false}, .signal = number};
  const bool stopping = phase_ == Phase::stopping;
  if (stopping && deadlines_.is_set(Wait::kill))
    deadlines_.set(Wait::kill, std::min(*deadlines_.at(Wait::kill), departure_.kill_at(now_, options_.timeouts.stop_grace)));
  stop(after, number, {});
  if (stopping)  // they were asked by another signal, or are about to end by themselves
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].in_world() && !workers_[i].ending) act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, number});
}

}  // namespace elrun::inline v0::launcher
