// Workers whose programs are the product's Jobs: what their agents tell them, what they send each other, and where they end.

#include <algorithm>
#include <csignal>

#include "tests/support/sim/program.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

Channel between(ProcessId from, ProcessId to, const Generation& generation) {
  return {Channel::Kind::peers, std::uint64_t{from.value()} << 32 | to.value(), generation.number};
}

constexpr Duration lost_node_returns_after = 8s;  // when the others have gone on without it

/// Members of one generation. A worker that was started beside one has a rank beyond theirs, and no peers until it has a place in a later one.
bool are_peers(const Membership& a, const Membership& b) {
  return a.generation == b.generation && a.rank.value() < b.world.value() && b.rank.value() < a.world.value();
}

/// What no loss of a peer, an agent or a coordinator leads to.
bool is_wrong(const Failure& why) {
  return why.code == Code::invalid_argument || why.code == Code::mismatch || why.code == Code::protocol || why.code == Code::corrupt ||
         why.code == Code::internal || why.code == Code::not_found;
}

}  // namespace

void Simulation::prepare_jobs() {
  storage_ = std::make_shared<test::FaultyFiles>();
  storage_->before = [this](std::uint64_t) {
    if (at_work_) programs_.at(*at_work_)->action(false);
  };
  const Expected& wanted = expected(profile_.job.plan);
  std::get<SameState>(checkers_.all).expected = &wanted;
  std::get<SameState>(checkers_.all).follows_the_world = profile_.job.plan.reduce == Reduce::fast;
  std::get<DecidedOnce>(checkers_.all).plan = profile_.job.plan;
  std::get<NothingLost>(checkers_.all).plan = profile_.job.plan;
  if (profile_.job.checkpoint.directory.empty()) std::get<CheckpointsHold>(checkers_.all).every = profile_.job.checkpoint.in_memory_every;
  // With hybrid, one node alone has one copy: there its worker that is lost takes a part with it.
  const Sharding cut = profile_.job.plan.placement.optimizer;
  const bool has_copies =
      profile_.nodes > 1 && cut != Sharding::sharded && (cut != Sharding::sharded_in_node || profile_.round.nodes_min > 1);
  std::get<OneLossIsFree>(checkers_.all).has_copies =
      has_copies && profile_.faults.empty() && profile_.cuts.empty() && profile_.job.faults.empty();
  std::get<SavesHold>(checkers_.all).is_calm = profile_.faults.empty() && profile_.cuts.empty() && profile_.job.faults.empty() &&
                                               profile_.job.crashes_at.empty() && profile_.job.writer_crashes_at.empty() &&
                                               profile_.slow_messages == 0 && !profile_.worker_faults;
  for (const JobFault kind : profile_.job.faults)
    happen(now_ + random(std::min<Duration>(profile_.calm_after, 15s)), {}, JobInjected{kind});
}

void Simulation::look(ProcessId id) {
  const auto program = programs_.find(id);
  if (program == programs_.end() || !process(id).alive || process(id).paused) return;
  const std::optional<ProcessId> before = std::exchange(at_work_, id);
  program->second->look();
  at_work_ = before;
}

void Simulation::to_program(ProcessId id, const ToWorker& e) {
  Worker& w = workers_.at(id);
  if (const auto* welcome = std::get_if<Welcome>(&e.message)) {
    if (!std::exchange(w.stay.welcomed, true)) {
      programs_.emplace(id, std::make_shared<Program>(*this, id, welcome->place));
      programs_.at(id)->remembers(welcome->remembered);
      if (w.stay.pending) programs_.at(id)->on_over({.code = Code::generation_over, .what = "it was over before"});
      return look(id);
    }
    if (!w.stay.acknowledged)
      return checkers_.report.violate("fenced",
                                      fmt::format("{} was told a place before it had acknowledged the end of its generation", name(id)));
    w.stay.pending = false;
    const Membership& place = welcome->place.membership;
    w.generation = place.generation;
    w.rank = place.rank.value();
    w.world = place.world.value();
    w.stay.acknowledged = false;
    w.stay.away = true;
    see(sim::WorkerStarted{id, w.agent, w.who, w.generation, w.rank, w.world});
    programs_.at(id)->remembers(welcome->remembered);
    programs_.at(id)->on_place(welcome->place);
  } else if (const auto* over = std::get_if<GenerationOver>(&e.message)) {
    if (over->generation != w.generation || w.stay.acknowledged || !programs_.contains(id)) return;
    w.stay.acknowledged = true;
    w.calls.clear();
    w.counts.forgotten = w.counts.made;
    programs_.at(id)->on_over(over->why);
    see(WorkerGone{id});  // as far as that generation goes
    say(id, GenerationOver{w.generation, {.code = Code::generation_over}, programs_.at(id)->returns_within()});
  } else if (const auto* refusal = std::get_if<Refusal>(&e.message)) {
    if (!programs_.contains(id)) return exit_worker(id, {.exit_code = 1});
    programs_.at(id)->lost_agent(refusal->failure);
  } else if (!programs_.contains(id)) {
    return;
  } else if (std::holds_alternative<JobOver>(e.message)) {
    programs_.at(id)->on_job_over();
  } else if (const auto* leave = std::get_if<PrepareToLeave>(&e.message)) {
    if (leave->generation == w.generation) programs_.at(id)->asked_to_leave();
  } else if (const auto* reply = std::get_if<StoreReply>(&e.message)) {
    if (reply->id <= w.counts.forgotten) return;
    const auto call = w.calls.find(reply->id);
    if (call == w.calls.end())
      return checkers_.report.violate("store-is-linear",
                                      fmt::format("{} got an answer to a call that it had an answer to, or never made", name(id)));
    see(StoreAnswered{id, e.answered_by.value_or(id), w.generation, call->second, *reply});
    w.calls.erase(call);
    programs_.at(id)->answered(*reply);
  }
  look(id);
}

Simulation::AtAction Simulation::action_of(ProcessId id, bool may_wait) {
  if (!process(id).alive) return AtAction::ends;
  ++actions_;
  const std::vector<std::uint64_t>& crashes = profile_.job.crashes_at;
  if (!healed_ && std::find(crashes.begin(), crashes.end(), actions_) != crashes.end()) {
    note(fmt::format("crashes at action {}", actions_), id);
    const ProcessId agent = workers_.at(id).agent;
    DiedTogether died{{id}};
    if (profile_.job.crash_of != CrashOf::worker) {
      for (const auto& [other, worker] : workers_)
        if (other != id && worker.agent == agent && process(other).alive) died.workers.push_back(other);
      happen(now_, {}, NodeDies{agent, profile_.job.crash_of == CrashOf::node});
    }
    see(died);
    see(WorkerFailedByItself{id, workers_.at(id).generation});
    exit_worker(id, {.exit_code = 0, .signal = SIGKILL});
    return AtAction::ends;
  }
  if (!may_wait) return AtAction::goes_on;
  if (interrupted(id)) return process(id).alive ? AtAction::is_paused : AtAction::ends;
  return profile_.job.slow_threads > 0 && rng_.chance(profile_.job.slow_threads) ? AtAction::is_slow : AtAction::goes_on;
}

std::uint64_t Simulation::call_store_for(ProcessId id, StoreRequest request, const Generation& generation) {
  Worker& w = workers_.at(id);
  request.id = ++w.counts.made;
  request.generation = generation;
  if (gathers(request.op)) request.caller = generation.number << 32 | (id.value() + 1);
  w.calls.emplace(request.id, request);
  see(StoreCalled{id, generation, request});
  say(id, request);
  return w.counts.made;
}

// --- between workers --------------------------------------------------------------------------------------------------

void Simulation::send_parcel(ProcessId from, ProcessId to, Parcel parcel) {
  if (!hosts_[process(to).host]) return;
  const Channel channel = between(from, to, parcel.generation);
  happen(peer_arrival(from, to), to, ParcelArrives{std::move(parcel)}, channel);
}

// A peer that was there when it was asked for its address may be gone, or in another generation.
void Simulation::connect_peers(ProcessId id, const Generation& generation, const std::vector<ProcessId>& members) {
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
    const ProcessId peer = members[rank];
    if (peer.value() >= processes_.size() || !programs_.contains(peer))
      return differ(fmt::format("{} was told that process {} is rank {}", name(id), peer.value(), rank));
    if (peer == id || !hosts_[process(peer).host]) continue;
    if (!process(peer).alive || programs_.at(peer)->place().membership.generation != generation)
      happen(peer_arrival(peer, id), id, PeerLost{generation, 0, rank}, between(peer, id, generation));
  }
}

void Simulation::hang_up(ProcessId id, const PeerLost& what, const std::vector<ProcessId>& members) {
  if (!hosts_[process(id).host]) return;
  for (const ProcessId peer : members)
    if (peer != id && process(peer).alive && hosts_[process(peer).host])
      happen(peer_arrival(id, peer), peer, what, between(id, peer, what.generation));
}

void Simulation::drop_parcels(ProcessId from, std::optional<ProcessId> to) {
  std::erase_if(queue_, [&](const auto& entry) {
    const Queued& queued = entry.second;
    return queued.channel.kind == Channel::Kind::peers && queued.channel.number >> 32 == from.value() && (!to || queued.to == to) &&
           std::holds_alternative<ParcelArrives>(queued.what);
  });
}

// Its system tells its peers, unless that is gone as well; what was under way may be lost with it.
void Simulation::program_is_gone(ProcessId id) {
  const bool dies = profile_.job.parcels_die || (!profile_.job.parcels_live && rng_.chance(0.5));
  if (dies) drop_parcels(id, {});
  if (hosts_[process(id).host]) close_slot_lines_of(id);
  const auto program = programs_.find(id);
  if (program == programs_.end()) return;
  const Membership& place = program->second->place().membership;
  if (hosts_[process(id).host])
    for (const auto& [peer, other] : programs_)
      if (peer != id && process(peer).alive && are_peers(place, other->place().membership) && hosts_[process(peer).host])
        happen(peer_arrival(id, peer), peer, PeerLost{place.generation, 0, place.rank.value()}, between(id, peer, place.generation));
  program->second->end();
}

void Simulation::on(ProcessId id, const ParcelArrives& e) {
  programs_.at(id)->receive(e.parcel);
  look(id);
}

void Simulation::on(ProcessId id, const PeerLost& e) {
  programs_.at(id)->lost_peer(e);
  look(id);
}

void Simulation::on(ProcessId id, const LooksAgain&) { look(id); }

// --- what a program does ------------------------------------------------------------------------------------------------

void Simulation::place_taken(ProcessId id, const Place& place) {
  Worker& w = workers_.at(id);
  const Membership& membership = place.membership;
  tell("{} takes its place as rank {} of generation {}", name(id), membership.rank.value(), membership.generation.number);
  see(PlaceTaken{id, membership.generation, membership.rank.value(), membership.world.value(), place.node});
  if (std::exchange(w.stay.away, false)) say(id, Returned{membership.generation});
}

void Simulation::waits_for_place(ProcessId id) {
  Worker& w = workers_.at(id);
  if (w.stay.pending) w.stay.ready = now_;
  say(id, ReadyForPlace{w.generation});
}

void Simulation::step_applied(ProcessId id, const Generation& generation, std::uint64_t steps) {
  const Worker& w = workers_.at(id);
  see(StepApplied{id, generation, steps});
  // A step that was decided is applied, also when the generation has ended meanwhile.
  if (w.generation == generation && !w.stay.acknowledged) see(StepWasDecided{id, w.who, generation, steps});
  tell("{} has applied {} steps", name(id), steps);
  say(id, StepDecided{generation, steps});
}

void Simulation::job_failed(ProcessId id, const Failure& why) {
  tell("{} fails: {}", name(id), why.what);
  if (is_wrong(why)) differ(fmt::format("{} failed: {}", name(id), why.what));
  // With the verdict, agents leave workers the time of their last work, and one that was cut off hears of nothing any more.
  if (!job_over_ && healed_ && now_ - *healed_ > profile_.forms_within())
    differ(fmt::format("{} failed long after the last fault: {}", name(id), why.what));
}

void Simulation::program_is_over(ProcessId id, int code) { happen_after(random(100ms), id, WorkerExits{{.exit_code = code}}); }

void Simulation::on(const NodeDies& e) {
  if (e.with_host) {
    note("the host loses power", e.agent);
    if (!process(e.agent).alive) return;
    lose_power(e.agent);
    return happen_after(lost_node_returns_after, {}, AgentArrives{agents_.at(e.agent).slot});
  }
  for (const ProcessId id : alive(Process::Kind::worker)) {
    if (workers_.at(id).agent != e.agent) continue;
    note("dies with its node's other workers", id);
    see(WorkerFailedByItself{id, workers_.at(id).generation});
    exit_worker(id, {.exit_code = 0, .signal = SIGKILL});
  }
}

void Simulation::on(const JobInjected& e) {
  if (e.kind == JobFault::writer_crash || e.kind == JobFault::writer_pause) {
    const auto writer = any(Process::Kind::writer);
    if (!writer || healed_) return;
    note(e.kind == JobFault::writer_crash ? "is killed" : "paused", writer);
    if (e.kind == JobFault::writer_crash) end_writer(*writer, false);
    else if (rng_.chance(0.5)) pause(*writer, some_time());
    else process(*writer).actions_left = static_cast<std::uint32_t>(rng_.below(30)), process(*writer).crashes_then = false;
    return;
  }
  std::vector<ProcessId> at_work;
  for (const auto& [id, program] : programs_)
    if (process(id).alive && !process(id).paused) at_work.push_back(id);
  if (at_work.empty() || healed_) return;
  const ProcessId one = at_work[rng_.below(at_work.size())];
  if (e.kind == JobFault::pause_at_action) {
    process(one).actions_left = static_cast<std::uint32_t>(rng_.below(20));
    process(one).crashes_then = false;
    return;
  }
  const Generation& generation = programs_.at(one)->place().membership.generation;
  for (const ProcessId other : at_work) {
    const Membership& place = programs_.at(other)->place().membership;
    if (other == one || !are_peers(programs_.at(one)->place().membership, place) || !hosts_[process(one).host] ||
        !hosts_[process(other).host])
      continue;
    note(fmt::format("its connection to {} breaks", name(other)), one);
    drop_parcels(one, other);
    drop_parcels(other, one);
    happen_after(delay(), one, PeerLost{generation, 0, place.rank.value()}, between(other, one, generation));
    return happen_after(delay(), other, PeerLost{generation, 0, programs_.at(one)->place().membership.rank.value()},
                        between(one, other, generation));
  }
}

}  // namespace elrun::sim
