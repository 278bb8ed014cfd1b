// Supervisor: which worker has which place in the world, and pending workers, which have none yet. When some workers of a node
// go on in the next generation, the others are started beside it, and the generation does not wait for them (worker.hpp).
//
// A pending worker starts with the environment of the worker that died. Its program runs until it needs its peers, which may
// take a minute. Then this node asks for a generation in which it has a place. If it dies before that, its successor starts
// with the next generation, which waits for it. So a program that fails at its start again and again uses up the restarts.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

std::optional<Rank> Supervisor::rank(LocalRank worker) const {
  if (worker.value() >= workers_.size() || !workers_[worker.value()].in_world()) return {};
  return Rank{rank_of(worker.value())};
}

std::uint32_t Supervisor::rank_of(std::size_t worker) const {
  const Worker& w = workers_[worker];
  return w.place ? world_.seat.base_rank + *w.place : w.began_as->rank.value();
}

void Supervisor::start(std::size_t worker, const World& world, std::uint32_t place, bool pending) {
  Worker& w = workers_[worker] = Worker{};
  if (pending) {
    w.is_job = true;  // as the one before was, also before it says so
    hangs_.pending.watch(LocalRank{static_cast<std::uint32_t>(worker)}, now_);
  } else {
    w.place = place;
  }
  w.began_as = Membership{world.generation, Rank{world.seat.base_rank + place}, WorldSize{world.seat.world_size}};
  act(Spawn{world, LocalRank{static_cast<std::uint32_t>(worker)}, node_restarts_, place, pending});
}

// The generation is over. Places are asked for those that go on, those that are ready, and those that are started with the
// next world; the successors of others are started beside it. Not where who coordinates does not know of such workers, and
// would leave them out for good.
void Supervisor::choose_pending() {
  const bool some_go_on = world_.takes_more && any(workers_, &Worker::runs);
  places_ = places_wanted(workers_, options_.workers, some_go_on);
}

// A new world has as many places for this node as it asked for. Workers that were to have one may have died since then.
void Supervisor::give_places(const World& before) {
  std::vector<bool> has_place = choose_places(workers_, places_);
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (ELRUN_PLANTED(coming_is_not_waited_for) && w.is_pending() && w.connection) has_place[i] = w.pending.is_ready = true;
    if (!has_place[i]) continue;
    if (!w.lives()) {
      start(i, world_, place++, false);
    } else {
      w.place = place++;
      if (w.stays || (w.pending.is_ready && w.connection)) welcome(i);  // else it was killed just now, and is lost in this generation
    }
  }
  World over = before;
  over.restarts = world_.restarts, over.cause = world_.cause;  // what its program may ask is why it was started
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!has_place[i] && !workers_[i].lives()) start(i, over, workers_[i].place.value_or(0), true);
}

// The pending worker learns that its generation is over before it learns its place in it, so it can never act in that generation.
// A libelrun of an earlier minor version reads the message only after its place: it is sent twice.
void Supervisor::tell_it_is_early(std::size_t worker) {
  const Worker& w = workers_[worker];
  const GenerationOver over{w.began_as->generation,
                            {Code::generation_over, Remedy::rejoin, "this process was started beside it, for the next one"}};
  act(Answer{*w.connection, over});
  act(Answer{*w.connection, Welcome{place_of(worker, *w.began_as), remembered_}});
  act(Answer{*w.connection, over});
}

void Supervisor::on_worker_said(ConnectionId from, const ReadyForPlace& m) {
  if (const auto i = worker_with(workers_, from); i && workers_[*i].is_pending() && m.generation == workers_[*i].began_as->generation)
    is_ready(*i);
}

void Supervisor::is_ready(std::size_t worker) {
  Worker& w = workers_[worker];
  if (ELRUN_PLANTED(ready_is_forgotten) && phase_ != Phase::running) return;
  const bool killed = !w.hung.empty() && !w.pending.kill_at;
  if (killed || w.pending.dismissed || std::exchange(w.pending.is_ready, true)) return;
  hangs_.pending.forget(LocalRank{static_cast<std::uint32_t>(worker)});
  w.pending.kill_at.reset(), w.hung.clear();
  offer_more();
}

// Sent again to each coordinator. Where it was not sent in time, these workers get a place one generation later.
void Supervisor::offer_more() {
  if (phase_ != Phase::running || job_over_ || deadlines_.is_set(Wait::leave) || !line_.can_report()) return;
  if (std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_pending() && w.pending.is_ready; }))
    act(Send{MoreWorkers{world_.generation}});
}

void Supervisor::on_pending_ended(std::size_t worker) {
  const LocalRank local{static_cast<std::uint32_t>(worker)};
  Worker& w = workers_[worker];
  act(SignalGroup{local, SIGKILL});
  act(Release{local});
  w.released = true;
  if (w.connection) act(HangUp{*std::exchange(w.connection, std::nullopt)});
  if (!w.pending.dismissed) {
    say(Level::error, fmt::format("{} ended by {}{} before it was in a world", name_of(worker), describe(*w.ending),
                                  w.death.error.empty() ? "" : fmt::format(" ({})", w.death.error)));
    if (phase_ == Phase::running && !w.ending->ok()) own_failure_ = true, tell_of_failure(worker);
  }
  if (phase_ == Phase::stopping) stop_if_done();
}

// No other worker waits for a pending one. It alone is killed, and another one is started.
void Supervisor::on_hang_at_start() {
  for (const LocalRank worker : hangs_.pending.silent(now_)) {
    hangs_.pending.forget(worker);
    Worker& w = workers_[worker.value()];
    w.hung = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
    w.pending.kill_at = now_ + options_.timeouts.stacks;
    say(Level::error,
        fmt::format(
            "{} of {}, a pending worker that is not ready for its place: this is a hang. What it is doing follows; it is killed in {} "
            "(a load that takes longer? Give --hang_timeout more)",
            w.hung, name_of(worker.value()), for_people(options_.timeouts.stacks)));
    act(TakeStacks{worker});
  }
}

void Supervisor::kill_hung_at_start() {
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    auto& at = workers_[i].pending.kill_at;
    if (!at || now_ < *at) continue;
    at.reset();
    act(SignalGroup{LocalRank{i}, SIGKILL});
  }
}

// There is no next generation: pending workers are killed.
void Supervisor::dismiss_pending() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank local{static_cast<std::uint32_t>(i)};
    if (!workers_[i].is_pending() || std::exchange(workers_[i].pending.dismissed, true)) continue;
    hangs_.pending.forget(local);
    workers_[i].pending.kill_at.reset();
    act(SignalGroup{local, SIGKILL});
  }
}

}  // namespace elrun::inline v0::launcher
