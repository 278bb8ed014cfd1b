#include "launcher/supervise/node_workers.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
std::size_t running(const Workers& workers) {
  return static_cast<std::size_t>(std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.runs(); }));
}

bool any(const Workers& workers, bool (Worker::*is)() const) {
  return std::any_of(workers.begin(), workers.end(), [is](const Worker& w) { return (w.*is)(); });
}

std::optional<std::size_t> worker_with(const Workers& workers, ConnectionId connection) {
  for (std::size_t i = 0; i < workers.size(); ++i)
    if (workers[i].session.connection == connection) return i;
  return std::nullopt;
}

std::optional<std::size_t> worker_that_says(const Workers& workers, const Hello& hello) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const Worker& w = workers[i];
    if (w.pid == 0) continue;  // its process is not there yet, so this is another one, such as a child of the dead worker's
    if (!w.began_as || w.began_as->rank.value() != hello.rank || w.began_as->world.value() != hello.world) continue;
    if (static_cast<std::uint64_t>(w.pid) == hello.pid) return i;
    if (!found || (!w.ending && !w.session.connection)) found = i;
  }
  return found;
}

bool failed_first(const Workers& workers, const Worker& worker) {
  return std::none_of(workers.begin(), workers.end(), [&](const Worker& w) {
    return &w != &worker && w.failed() && !w.life.was_dismissed() && w.failed_at <= worker.failed_at;
  });
}

std::string fate_of(const Workers& workers) {
  const auto all = std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world(); });
  if (all == 0) return "no worker of it was running";
  const auto killed =
      std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world() && w.ending->signal == SIGKILL; });
  std::string text;
  if (const auto ended = static_cast<std::size_t>(all - killed); ended > 0)
    text += fmt::format("{} ended{}", count_of(ended, "worker"), killed > 0 ? ", " : "");
  if (killed > 0) text += fmt::format("{} killed", count_of(static_cast<std::size_t>(killed), "worker"));
  return text;
}

std::uint32_t places_wanted(Workers& workers, std::uint32_t of, bool some_go_on) {
  std::uint32_t wanted = of;
  for (Worker& w : workers) {
    w.pending.is_next = some_go_on && w.in_world() && w.ending && w.session.is_job && w.session.can_stay;
    if (w.pending.is_next || (w.is_pending() && !w.life.is(Life::ready))) --wanted;
  }
  return wanted > 0 ? wanted : of;
}

std::vector<bool> choose_places(const Workers& workers, std::uint32_t places) {
  std::vector<bool> has_place(workers.size(), false);
  const auto choose = [&](const auto& wanted) {
    for (std::size_t i = 0; i < workers.size(); ++i)
      if (places > 0 && !has_place[i] && wanted(workers[i])) has_place[i] = true, --places;
  };
  choose([](const Worker& w) { return w.lives() && w.in_world(); });
  choose([](const Worker& w) { return w.life.is(Life::ready); });
  choose([](const Worker& w) { return !w.lives() && !w.pending.is_next; });
  choose([](const Worker& w) { return !w.lives(); });
  choose([](const Worker& w) { return w.life.is(Life::pending); });
  return has_place;
}

std::uint32_t NodeWorkers::rank(std::size_t worker) const {
  const Worker& w = workers_[worker];
  return w.place ? base_rank_ + *w.place : w.began_as->rank.value();
}

std::string NodeWorkers::name(std::size_t worker) const {
  const Worker& w = workers_[worker];
  const std::string who = w.in_world() ? fmt::format("rank {}", rank(worker))
                          : w.pending.is_successor
                              ? fmt::format("the successor of rank {} of generation {}", rank(worker), w.began_as->generation.number)
                              : fmt::format("worker {}, which was started beside generation {}", worker, w.began_as->generation.number);
  return fmt::format("{} (node {}, pid {})", who, node_.value(), w.pid);
}

// --- the beginning of a generation ---

std::vector<GivenPlace> NodeWorkers::give_places(std::uint32_t places, const Generation& before) {
  std::vector<bool> has_place = choose_places(workers_, places);
  std::vector<GivenPlace> given;
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (ELRUN_PLANTED(coming_is_not_waited_for) && w.is_pending() && w.session.connection)
      has_place[i] = w.becomes_ready() || w.life.is(Life::ready);
    if (!has_place[i]) continue;
    const std::uint32_t its = place++;
    if (!w.lives()) given.push_back({i, GivenPlace::Kind::start, its});
    else if (w.life.is(Life::pending)) w.is_awaited_in(its), given.push_back({i, GivenPlace::Kind::awaited, its});
    else if (w.take_place(its)) given.push_back({i, GivenPlace::Kind::welcome, its});
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (has_place[i] || w.lives()) continue;
    const bool was_pending_beside_it = w.began_as && w.began_as->generation == before;
    given.push_back({i, GivenPlace::Kind::start_beside, w.place.value_or(was_pending_beside_it ? w.pending.place : 0)});
  }
  return given;
}

std::vector<GivenPlace> NodeWorkers::give_places_beside() const {
  std::vector<GivenPlace> given;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.in_world() || !w.ending || !w.session.is_job || !w.session.can_stay) continue;
    if (const int code = w.exit_code(); code == exit_code_configuration || code == exit_code_checkpoint_too_old) return {};
    given.push_back({i, GivenPlace::Kind::start_beside, *w.place});
  }
  return given;
}

std::vector<GivenPlace> NodeWorkers::give_places_to_prepare(std::uint32_t places) {
  workers_.resize(count_);
  std::vector<GivenPlace> given;
  // One that was pending when this node asked for places may be ready since, and take one.
  const auto taken = static_cast<std::uint32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.lives() && !w.life.is(Life::pending); }));
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < workers_.size() && taken + given.size() < places; ++i) {
    const Worker& w = workers_[i];
    if (w.pending.is_next || w.life.is(Life::pending)) continue;  // this node asked for no place for it
    if (!w.lives()) given.push_back({i, GivenPlace::Kind::start_beside, place});
    ++place;
  }
  return given;
}

bool NodeWorkers::are_prepared(std::uint32_t places) const {
  return static_cast<std::uint32_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) {
           return w.life.is(Life::ready) || w.life.is(Life::stayed);
         })) >= places;
}

bool NodeWorkers::are_settled() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& w) { return !w.lives() || w.life.is(Life::ready) || w.life.is(Life::stayed); });
}

bool NodeWorkers::are_pending_ready() const {
  return std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.life.is(Life::pending); });
}

Action NodeWorkers::start(const GivenPlace& given, const World& world, std::uint32_t node_restarts) {
  const bool beside = given.kind == GivenPlace::Kind::start_beside;
  const Membership membership{world.generation, Rank{world.seat.base_rank + given.place}, WorldSize{world.seat.world_size}};
  Worker& w = workers_[given.worker];
  if (beside) w.start_beside(membership, given.place, world.restarts.generations);
  else w.start_in(membership, given.place);
  return Spawn{world, local_rank(given.worker), node_restarts, given.place, beside};
}

Place NodeWorkers::place_in(std::size_t worker, const World& world) const {
  Place place;
  place.membership = {world.generation, Rank{rank(worker)}, WorldSize{world.seat.world_size}};
  place.local_rank = local_rank(worker);
  place.local_world = count_;
  place.run = run_;
  place.node = node_;
  place.address = world.address;
  place.key = world.key;
  place.restart_count = world.restarts.generations;
  place.elastic = true;
  return place;
}

// A libelrun of an earlier minor version reads the message only after its place: it is sent twice.
Actions NodeWorkers::tell_it_is_early(std::size_t worker, const World& world, const Session::Remembered& remembered) const {
  const Worker& w = workers_[worker];
  const GenerationOver over{w.began_as->generation,
                            {Code::generation_over, Remedy::rejoin,
                             "this process was started beside it, for the next one: it calls Session::next_generation before it joins"}};
  Place place = place_in(worker, world);
  place.membership = *w.began_as;
  place.restart_count = w.pending.restart_count;
  const ConnectionId to = *w.session.connection;
  Actions actions;
  add(actions, Answer{to, over});
  add(actions, Answer{to, Welcome{std::move(place), remembered}});
  add(actions, Answer{to, over});
  return actions;
}

// --- the end of a generation ---

// A worker that can stay (as a rule a Job's) is told that its generation is over, and has to acknowledge it. Another worker of a Job is killed at
// once: its step is revoked, and its checkpoints survive a kill. Other programs get SIGTERM.
Actions NodeWorkers::end_generation(const GenerationEnd& end) {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.in_world() || w.life.is(Life::collected)) continue;
    if (end.lets_last_work && w.session.job_over && !w.ending) {
      w.give_up();
      continue;
    }
    const bool stays = w.leave_generation(end.some_stay);
    if (w.session.connection && !end.signal) add(actions, Answer{*w.session.connection, GenerationOver{end.generation, end.why}});
    if (stays) continue;
    add(actions, SignalGroup{local_rank(i), w.ending ? SIGKILL : w.stop_signal(end.signal, end.node_runs_job)});
  }
  return actions;
}

bool NodeWorkers::are_stopped() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_stopped(); });
}

Actions NodeWorkers::signal_running(int signal, bool staying_too) const {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].runs() && (staying_too || !workers_[i].life.stays())) add(actions, SignalGroup{local_rank(i), signal});
  return actions;
}

Actions NodeWorkers::kill_staying(std::optional<Duration> late, std::optional<Generation> job_over_in) {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (late && !job_over_in ? !w.life.is(Life::leaving) : !w.life.stays()) continue;
    w.give_up();
    if (late && job_over_in)
      add(actions, Say{Level::warning, fmt::format("{} did not say within {} that it knows that the job is over (generation {}): killed",
                                                   name(i), for_people(*late), job_over_in->number)});
    else if (late)
      add(actions, Say{Level::error,
                       fmt::format("{} did not acknowledge within {} that its generation is over: killed", name(i), for_people(*late))});
    add(actions, SignalGroup{local_rank(i), SIGKILL});
  }
  return actions;
}

bool NodeWorkers::some_stay() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.life.stays(); });
}

bool NodeWorkers::let_last_work() {
  for (Worker& w : workers_)
    if (w.life.stays() && w.session.job_over) w.give_up();
  return some_stay();
}

Actions NodeWorkers::kill_late(Instant now, Duration returning, Generation generation) {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.is_late(now)) continue;
    add(actions,
        Say{Level::error,
            fmt::format(
                "{} did not come back from its program in {} after generation {} began (a slot that takes long? a deadlock?): it is "
                "killed and started again",
                name(i), for_people(std::max(returning, w.returns.within)), generation.number)});
    add(actions, SignalGroup{local_rank(i), SIGKILL});
  }
  return actions;
}

std::vector<LocalRank> NodeWorkers::dismiss_pending() {
  std::vector<LocalRank> dismissed;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.is_pending() || w.life.was_dismissed()) continue;
    w.life.enter(Life::dismissed);
    w.pending.kill_at.reset();
    dismissed.push_back(local_rank(i));
  }
  return dismissed;
}

Actions NodeWorkers::collect(bool leftovers) {
  Actions actions;
  EndOrphans orphans;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.ending) {
      orphans.stay.push_back(local_rank(i));
      continue;
    }
    if (w.session.connection) add(actions, HangUp{*std::exchange(w.session.connection, std::nullopt)});
    if (w.life.is(Life::collected)) continue;
    w.life.enter(Life::collected);
    add(actions, Release{local_rank(i)});
  }
  if (leftovers) add(actions, std::move(orphans));
  return actions;
}

void NodeWorkers::forget_ended() {
  if (std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.lives(); })) workers_.clear();
}

Actions NodeWorkers::collect_at_once(std::size_t worker) {
  Worker& w = workers_[worker];
  Actions actions;
  add(actions, SignalGroup{local_rank(worker), SIGKILL});
  add(actions, Release{local_rank(worker)});
  w.life.enter(Life::collected);
  if (w.session.connection) add(actions, HangUp{*std::exchange(w.session.connection, std::nullopt)});
  return actions;
}

// --- what holds while it runs ---

Actions NodeWorkers::hold_the_broken(Generation generation) {
  Actions actions;
  for (Worker& w : workers_)
    if (w.hold())
      add(actions, Answer{*w.session.connection,
                          GenerationOver{generation, {Code::peer_lost, Remedy::rejoin, "a peer was lost while the coordinator is away"}}});
  return actions;
}

Actions NodeWorkers::end_hung(int signal) const {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].runs() && workers_[i].hangs()) add(actions, SignalGroup{local_rank(i), signal});
  return actions;
}

void NodeWorkers::await_killed(Instant until) {
  for (Worker& w : workers_)
    if (w.lives() && w.was_killed && !w.gone_by) w.gone_by = until;
}

Actions NodeWorkers::kill_hung_pending(Instant now) {
  Actions actions;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    auto& at = workers_[i].pending.kill_at;
    if (!at || now < *at) continue;
    at.reset();
    add(actions, SignalGroup{local_rank(i), SIGKILL});
  }
  return actions;
}

Actions NodeWorkers::ask_to_save(Generation generation) const {
  Actions actions;
  for (const Worker& w : workers_)
    if (w.runs()) add(actions, Answer{*w.session.connection, PrepareToLeave{generation}});
  return actions;
}

bool NodeWorkers::have_saved() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.runs() || w.ready_to_leave; });
}

bool NodeWorkers::can_save() const {
  return running(workers_) > 0 && !any(workers_, &Worker::hangs) && std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) {
           return !w.runs() || (w.session.connection && w.session.is_job);
         });
}

void NodeWorkers::have_joined() {
  for (Worker& w : workers_) {
    w.session.joined = w.session.joined || w.in_world();
    w.brought_along = false;
  }
}

void NodeWorkers::job_is_over() {
  for (Worker& w : workers_) {
    w.returns.by.reset();
    if (!w.ending) w.hung.clear(), w.stuck.clear();
  }
}

std::optional<Instant> NodeWorkers::next_deadline() const {
  std::optional<Instant> least;
  for (const Worker& w : workers_)
    for (const auto& at : {w.returns.by, w.pending.kill_at, w.early.judge_by, w.gone_by})
      if (at && (!least || *at < *least)) least = at;
  return least;
}

void NodeWorkers::excuse(Duration stalled, Instant not_before) {
  for (Worker& w : workers_)
    for (auto* by : {&w.returns.by, &w.gone_by})
      if (*by) *by = std::max(**by + stalled, not_before);
}

}  // namespace elrun::inline v0::launcher
