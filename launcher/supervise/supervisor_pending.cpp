// Supervisor: which worker has which place in the world, and workers that have none yet. Where workers of a node go on in
// the next generation, those that died are started beside it: it does not wait for them.
//
//   started --Hello--> told that its generation is over --ReadyForPlace--> ready --World with a place for it--> in the world
//
// To itself it is a worker of the generation in which its predecessor died. Its program does all that it does before it needs
// its peers; that may take a minute. Then this node asks for a generation in which it has a place. It may die before that: then
// it is started once more as any other, with the next world, which waits for it; so who fails at its start again and again uses
// up the restarts of the job.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

std::optional<Rank> Supervisor::rank(LocalRank worker) const {
  if (worker.value() >= workers_.size() || !in_world(workers_[worker.value()])) return {};
  return Rank{rank_of(worker.value())};
}

std::uint32_t Supervisor::rank_of(std::size_t worker) const {
  const Worker& w = workers_[worker];
  return w.place ? world_.seat.base_rank + *w.place : w.began_as->rank.value();
}

void Supervisor::start(std::size_t worker, const World& world, std::uint32_t place, bool coming) {
  Worker& w = workers_[worker] = Worker{};
  if (coming) {
    w.is_job = true;  // as the one before was, also before it says so
    hang_at_start_.watch(LocalRank{static_cast<std::uint32_t>(worker)}, now_);
  } else {
    w.place = place;
  }
  w.began_as = Membership{world.generation, Rank{world.seat.base_rank + place}, WorldSize{world.seat.world_size}};
  act(Spawn{world, LocalRank{static_cast<std::uint32_t>(worker)}, node_restarts_, place, coming});
}

// The generation is over. Places are asked for those that go on, those that are ready, and those that are started with the
// next world; the successors of others are started beside it. Not where who coordinates does not know of such workers, and
// would leave them out for good.
void Supervisor::choose_coming() {
  const bool some_go_on =
      world_.takes_more && std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return in_world(w) && !w.ending; });
  places_ = options_.workers;
  for (Worker& w : workers_) {
    w.coming.is_next = some_go_on && in_world(w) && w.ending && w.is_job && w.can_stay;
    if (w.coming.is_next || (is_coming(w) && !w.coming.is_ready)) --places_;
  }
}

// In a new world. Nobody else has changed how many places there are since this node asked for them, but some who were to
// have one may have died.
void Supervisor::give_places(const World& before) {
  std::vector<bool> has_place(workers_.size(), false);
  std::uint32_t left = places_;
  const auto choose = [&](const auto& wanted) {
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (left > 0 && !has_place[i] && wanted(workers_[i])) has_place[i] = true, --left;
  };
  choose([](const Worker& w) { return lives(w) && in_world(w); });
  choose([](const Worker& w) { return is_coming(w) && w.coming.is_ready; });
  choose([](const Worker& w) { return !lives(w) && !w.coming.is_next; });
  choose([](const Worker& w) { return !lives(w); });
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (ELRUN_PLANTED(coming_is_not_waited_for) && is_coming(w) && w.connection) has_place[i] = w.coming.is_ready = true;
    if (!has_place[i]) continue;
    if (!lives(w)) {
      start(i, world_, place++, false);
    } else {
      w.place = place++;
      if (w.stays || (w.coming.is_ready && w.connection)) welcome(i);  // else it was killed just now, and is lost in this generation
    }
  }
  World over = before;
  over.restarts = world_.restarts, over.cause = world_.cause;  // what its program may ask is why it was started
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!has_place[i] && !lives(workers_[i])) start(i, over, workers_[i].place.value_or(0), true);
}

// To libelrun it is a member whose generation ended before its program came to it. That is said before its place, too: no
// moment is left in which it could act in that generation, which may be a world of one. An earlier libelrun hears it after that.
void Supervisor::tell_it_is_early(std::size_t worker) {
  const Worker& w = workers_[worker];
  const GenerationOver over{w.began_as->generation,
                            {Code::generation_over, Remedy::rejoin, "this process was started beside it, for the next one"}};
  act(Answer{*w.connection, over});
  act(Answer{*w.connection, Welcome{place_of(worker, *w.began_as), remembered_}});
  act(Answer{*w.connection, over});
}

void Supervisor::on_worker_said(ConnectionId from, const ReadyForPlace& m) {
  if (const auto i = worker_at(from); i && is_coming(workers_[*i]) && m.generation == workers_[*i].began_as->generation) is_ready(*i);
}

void Supervisor::is_ready(std::size_t worker) {
  Worker& w = workers_[worker];
  if (ELRUN_PLANTED(ready_is_forgotten) && phase_ != Phase::running) return;
  const bool killed = !w.hung.empty() && !w.coming.kill_at;
  if (killed || w.coming.dismissed || std::exchange(w.coming.is_ready, true)) return;
  hang_at_start_.forget(LocalRank{static_cast<std::uint32_t>(worker)});
  w.coming.kill_at.reset(), w.hung.clear();
  offer_more();
}

// Said again to whoever coordinates next; a generation that is not told of it has them in the one after.
void Supervisor::offer_more() {
  if (phase_ != Phase::running || job_over_ || leave_at_ || !link_up_ || !served_) return;
  if (std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return is_coming(w) && w.coming.is_ready; }))
    act(Send{MoreWorkers{world_.generation}});
}

void Supervisor::on_coming_ended(std::size_t worker) {
  const LocalRank local{static_cast<std::uint32_t>(worker)};
  Worker& w = workers_[worker];
  act(SignalGroup{local, SIGKILL});
  act(Release{local});
  w.released = true;
  if (w.connection) act(HangUp{*std::exchange(w.connection, std::nullopt)});
  if (!w.coming.dismissed) {
    say(Level::error, fmt::format("{} ended by {}{} before it was in a world", name_of(worker), describe(*w.ending),
                                  w.death.error.empty() ? "" : fmt::format(" ({})", w.death.error)));
    if (phase_ == Phase::running && !w.ending->ok()) own_failure_ = true, tell_of_failure(worker);
  }
  if (phase_ == Phase::stopping) stop_if_done();
}

// Nobody waits for it, so it is ended alone, and another one is started in its place.
void Supervisor::on_hang_at_start() {
  for (const LocalRank worker : hang_at_start_.silent(now_)) {
    hang_at_start_.forget(worker);
    Worker& w = workers_[worker.value()];
    w.hung = fmt::format("no sign of progress for {}", for_people(options_.hang_timeout));
    w.coming.kill_at = now_ + options_.timeouts.stacks;
    say(Level::error,
        fmt::format(
            "{} of {}, which was started beside the world and is not ready for its place: this is a hang. What it is doing follows; it is killed in {} "
            "(a load that takes longer? Give --hang_timeout more)",
            w.hung, name_of(worker.value()), for_people(options_.timeouts.stacks)));
    act(TakeStacks{worker});
  }
}

void Supervisor::kill_hung_at_start() {
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    auto& at = workers_[i].coming.kill_at;
    if (!at || now_ < *at) continue;
    at.reset();
    act(SignalGroup{LocalRank{i}, SIGKILL});
  }
}

// There is no next world: nobody waits for them longer than it takes to kill them.
void Supervisor::dismiss_coming() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const LocalRank local{static_cast<std::uint32_t>(i)};
    if (!is_coming(workers_[i]) || std::exchange(workers_[i].coming.dismissed, true)) continue;
    hang_at_start_.forget(local);
    workers_[i].coming.kill_at.reset();
    act(SignalGroup{local, SIGKILL});
  }
}

}  // namespace elrun::inline v0::launcher
