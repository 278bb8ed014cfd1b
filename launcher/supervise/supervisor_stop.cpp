// Supervisor: the end of a generation on this node, for all of its workers or for those that do not stay; hangs; leaving.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

// Ends what runs: a Job's worker at once, for its state is revoked and its checkpoints survive a kill; others are
// asked. Workers that can stay are told, and have to acknowledge it.
void Supervisor::stop(AfterStop after, std::optional<int> signal, const Failure& why) {
  if (phase_ == Phase::stopping && !after_.rejoin) return;  // the first reason to finish stays
  after_ = std::move(after);
  if (!after_.rejoin) coordinator_by_.reset(), join_by_.reset();
  if (!after_.rejoin || job_over_) dismiss_coming();
  if (phase_ == Phase::stopping) return after_.rejoin ? void() : kill_staying(true);  // on its way already
  phase_ = Phase::stopping;
  const bool some_stay = after_.rejoin && !signal && !job_over_ && !world_hangs();
  hang_.clear();
  hang_unopened_.clear();
  end_hung_at_.reset();
  tell_starting_at_.reset();
  stopped_at_ = now_;
  leave_at_.reset();
  look_again_at_.reset();
  broken_line_at_.reset();
  kill_at_ = gone_by_.value_or(now_ + options_.timeouts.stop_grace);
  if (ELRUN_PLANTED(acknowledges_before_the_end) && after_.rejoin) act(Send{Acknowledge{last_}});
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{static_cast<std::uint32_t>(i)};
    Worker& w = workers_[i];
    if (!in_world(w) || w.released) continue;
    w.return_by.reset();
    w.stays = some_stay && w.can_stay && w.connection && !w.ending && w.hung.empty();
    w.quit = false;
    if (w.connection && !signal) act(Answer{*w.connection, GenerationOver{world_.generation, why}});
    if (w.stays) acknowledge_by_ = now_ + options_.timeouts.revocation;
    else if (w.ending) act(SignalGroup{worker, SIGKILL});
    else act(SignalGroup{worker, signal ? *signal : w.is_job || (job_known_ && !w.session.opened) ? SIGKILL : SIGTERM});
  }
  stop_if_done();
}

void Supervisor::stop_if_done() {
  if (std::all_of(workers_.begin(), workers_.end(), [this](const Worker& w) { return is_stopped(w); })) all_stopped();
}

// --- hangs ---

// Once the world is formed all workers of the node are looked at: which of them holds up the others, none of them can tell. Before
// that it is known: whoever waits for its peers does not hang.
void Supervisor::on_hang() {
  std::vector<LocalRank> silent;
  for (const LocalRank worker : hang_.silent(now_)) {
    if (waits_for_world(workers_[worker.value()])) hang_.sign(worker, now_);
    else silent.push_back(worker);
  }
  if (hangs_unopened_at())
    for (const LocalRank worker : hang_unopened_.silent(now_)) silent.push_back(worker);
  if (silent.empty()) return;
  const bool is_forming =
      job_known_ && std::any_of(workers_.begin(), workers_.end(), [this](const Worker& w) { return is_starting(w) || waits_for_world(w); });
  std::string names;
  for (const LocalRank worker : silent) names += (names.empty() ? "" : ", ") + name_of(worker.value());
  const std::string why = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
  say(Level::error, fmt::format("{} of {} in generation {}: this is a hang. What {} doing follows; they are killed in {}", why, names,
                                world_.generation.number, is_forming ? "they are" : "all workers of this node are",
                                for_people(options_.timeouts.stacks)));
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    const LocalRank worker{i};
    if (!in_world(workers_[i]) || workers_[i].ending || (is_forming && std::find(silent.begin(), silent.end(), worker) == silent.end()))
      continue;
    hang_.forget(worker);
    hang_unopened_.forget(worker);
    workers_[i].hung = workers_[i].session.opened ? why : why + (job_known_ ? ", and its session was never opened" : "");
    act(TakeStacks{worker});
  }
  end_hung_at_ = now_ + options_.timeouts.stacks;
}

bool Supervisor::some_hang() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && !w.hung.empty(); });
}

// One that never joined has held up the others, and has had no part in what they hold.
bool Supervisor::world_hangs() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [this](const Worker& w) { return in_world(w) && !w.hung.empty() && (w.session.joined || !job_known_); });
}

// SIGABRT first: Python's faulthandler answers it with the stacks of all threads, others with a core dump where that is on.
void Supervisor::end_hung() {
  end_hung_at_.reset();
  const bool were_asked = std::exchange(hung_were_asked_, true);
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (in_world(workers_[i]) && !workers_[i].ending && !workers_[i].hung.empty())
      act(SignalGroup{LocalRank{i}, were_asked ? SIGKILL : SIGABRT});
  if (!were_asked) end_hung_at_ = now_ + options_.timeouts.revocation;
}

void Supervisor::kill_running() {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (in_world(workers_[i]) && !workers_[i].ending && !workers_[i].stays)
      act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, SIGKILL});
}

// Those that were to stay, and shall not: they did not acknowledge it in time, or there is nothing to stay for.
void Supervisor::kill_staying(bool acknowledged_too) {
  acknowledge_by_.reset();
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

// Nobody can end the generation while the coordinator is away, for as long as its grace. A worker that lost a peer in it
// waits for that a short time only: told now that it is over, it keeps its state and waits for the next one instead.
void Supervisor::hold_the_broken() {
  if (phase_ != Phase::running || (link_up_ && served_)) return;
  for (Worker& w : workers_) {
    if (!w.cannot_go_on || !w.can_stay || !w.connection || w.ending || std::exchange(w.held, true)) continue;
    act(Answer{*w.connection,
               GenerationOver{world_.generation, {Code::peer_lost, Remedy::rejoin, "a peer was lost while the coordinator is away"}}});
  }
}

// Who of the two is kept out is for the coordinator to say, which hears of both.
void Supervisor::tell_of_the_unreachable() {
  for (const PeerUnreachable& peer : unreachable_) act(Send{peer});
}

// Two workers live and cannot talk to each other any more: only a new generation connects them again.
void Supervisor::tell_of_broken_line() {
  broken_line_at_.reset();
  const auto worker = std::find_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.cannot_go_on && !w.ending; });
  if (phase_ != Phase::running || job_over_ || !link_up_ || !served_ || worker == workers_.end()) return;  // else it is held
  const auto local = static_cast<std::uint32_t>(worker - workers_.begin());
  say(Level::error, fmt::format("{} lost a peer that is not known to have died: {}", name_of(local), peer_lost_why_));
  act(Send{WorkerFailed{world_.generation,
                        local,
                        1,
                        fmt::format("the loss of a peer that is not known to have died ({:.500})", peer_lost_why_),
                        true,
                        {},
                        {},
                        rank_of(local)}});
}

// Its peers cannot connect to it: a process of its own is the next rung.
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
  choose_coming();
  if (!link_up_) return;
  join();  // which says as well that no process of the old generation is left
}

std::string Supervisor::fate_of_workers() const {
  const std::string begin = job_over_ ? "the job was done" : "this node has left";
  if (std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w); }))
    return begin + "; no worker of it was running";
  const auto all = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w); });
  const auto killed =
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && w.ending->signal == SIGKILL; });
  std::string text = begin + "; ";
  if (const auto ended = static_cast<std::size_t>(all - killed); ended > 0)
    text += fmt::format("{} ended{}", count_of(ended, "worker"), killed > 0 ? ", " : "");
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
  return phase_ == Phase::running && !job_over_ && running() > 0 && !some_hang() &&
         std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& w) { return !in_world(w) || w.ending || (w.connection && w.is_job); });
}

void Supervisor::prepare_to_leave(int signal) {
  leaving_by_ = signal;
  leave_at_ = now_ + options_.timeouts.drain;
  gone_by_ = now_ + options_.timeouts.stop_grace;
  say(Level::warning, fmt::format("{}: this node leaves as soon as the job has saved a checkpoint, in {} at the latest",
                                  signal_name(signal), for_people(options_.timeouts.drain)));
  dismiss_coming();  // they have nothing to save
  for (const Worker& w : workers_)
    if (in_world(w) && !w.ending) act(Answer{*w.connection, PrepareToLeave{world_.generation}});
}

void Supervisor::on_worker_said(ConnectionId from, const PrepareToLeave& m) {
  const auto i = worker_at(from);
  if (!i || !leave_at_ || m.generation != world_.generation) return;
  workers_[*i].ready_to_leave = true;
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !in_world(w) || w.ending || w.ready_to_leave; }))
    leave(leaving_by_);
}

void Supervisor::leave(int number) {
  leave_at_.reset();  // workers that are ending by themselves already are not stopped once more
  say(Level::warning, fmt::format("{}: {}", signal_name(number),
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
      if (in_world(workers_[i]) && !workers_[i].ending) act(SignalGroup{LocalRank{static_cast<std::uint32_t>(i)}, number});
}

}  // namespace elrun::inline v0::launcher
