#include "tests/support/sim/fingerprint.hpp"

#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {

// Left out is what follows from the rest (indices, counts, sums).
void Fingerprint::add(const Round& round) {
  const auto& [setup, terms, nodes, names, ended, excluded, earlier, recovery, forming, current, growth, budget, verdict, succession,
               status, wake_up, newcomers_prepare, cause, same_hints_told, actions] = round;
  all(setup.lineage, terms, nodes, names, ended, excluded, earlier, recovery, forming, current, growth, budget, verdict, succession, status,
      wake_up, newcomers_prepare, cause);
}

void Fingerprint::add(const JobTerms& terms) {
  const auto& [given, run, options, refused] = terms;
  all(run, options, refused);
}

void Fingerprint::add(const NodeNames& names) {
  const auto& [replaced, former, claimants] = names;
  all(replaced, former, claimants);
}

void Fingerprint::add(const EndedAgents& agents) {
  const auto& [ended, waited_for] = agents;
  all(ended, waited_for);
}

void Fingerprint::add(const ExcludedNodes& excluded) {
  const auto& [failures, exclusions] = excluded;
  all(failures, exclusions);
}

void Fingerprint::add(const EarlierGenerations& earlier) {
  const auto& [first_floor, may_run, floor, hold_until, ended, ended_nodes] = earlier;
  all(first_floor, floor, hold_until, ended, ended_nodes);
}

void Fingerprint::add(const Forming& forming) {
  const auto& [since, enough_since, lift_told] = forming;
  all(since, enough_since, lift_told);
}

void Fingerprint::add(const GenerationState& state) {
  const auto& [generation, members, roster, own_place, began, revoked_at, return_by, deserted_until, done, unseen, lost, stepped,
               progress_told] = state;
  all(generation, members, own_place, began, revoked_at, return_by, deserted_until, done, unseen, lost, stepped);
}

void Fingerprint::add(const UnreachablePairs& unreachable) {
  const auto& [report, look_at] = unreachable;
  all(report, report ? look_at : Instant{});
}

void Fingerprint::add(const PendingJudgement& pending) {
  const auto& [unjudged, until] = pending;
  all(unjudged, unjudged ? until : Instant{});
}

void Fingerprint::add(const VerdictDelivery& delivery) {
  const auto& [verdict, given_at, heard, linger_told] = delivery;
  all(verdict, given_at, heard, linger_told);
}

void Fingerprint::add(const Succession& succession) {
  const auto& [elected, own_node_left, handed_over, told_of_nobody] = succession;
  all(own_node_left, handed_over, told_of_nobody);
}

void Fingerprint::add(const WakeUp& wake_up) {
  const auto& [beat_at, wake] = wake_up;
  all(beat_at, wake);
}

void Fingerprint::add(const NodeTable& table) {
  const auto& [streams, nodes, waiting, coming, late, connected, observers, newcomers, preparations, broken, silences] = table;
  all(streams, nodes);
}

void Fingerprint::add(const StatusMessages& status) {
  const auto& [next, newest, number] = status;
  all(next, newest, number);
}

void Fingerprint::add(const StartWatch& watch) {
  const auto& [starting, tell_at, told] = watch;
  all(starting, tell_at, told);
}

void Fingerprint::add(const FailureRecords& failures) {
  const auto& [histories, holders, records, blamed] = failures;
  all(histories, records, blamed);
}

void Fingerprint::add(const Growth& growth) {
  const auto& [offers, since, size, most, began, step, decided_at, took, grew_at, paced_until, growths] = growth;
  all(offers, offers.empty() ? Instant{} : since, size, most, step, step ? decided_at : Instant{}, took, grew_at, paced_until, growths);
}

void Fingerprint::add(const RestartBudget& budget) {
  const auto& [counts, is_job, progressed, charged, judged_at, failed, failed_before, newest_step, alike, alike_code, pause_until] = budget;
  all(counts, is_job, progressed, charged, judged_at, failed, failed_before, newest_step, alike, alike_code, pause_until);
}

void Fingerprint::add(const RootCause& root_cause) {
  const auto& [deaths, suspects, failing] = root_cause;
  all(deaths, suspects, failing);
}

void Fingerprint::add(const RecoveryWindow& recovery) {
  const auto& [generation, shape, seats, wait, until, why, is_hopeless] = recovery;
  all(generation, shape, seats, until, why, is_hopeless);
}

void Fingerprint::add(const Exclusions& exclusions) {
  const auto& [nodes] = exclusions;
  all(nodes);
}

void Fingerprint::add(const StoreCore& store) {
  const auto& [generation, over, keys, waiters, rooms, adoption, version] = store;
  all(generation, over, keys, waiters, rooms, adoption, version);
}

void Fingerprint::add(const StoreKeys& store) {
  const auto& [keys, bytes] = store;
  all(keys);
}

void Fingerprint::add(const StoreWaiters& store) {
  const auto& [waiters, expiries, parked, bytes] = store;
  all(waiters);
}

void Fingerprint::add(const StoreRooms& store) {
  const auto& [rooms, kept, bytes, kept_bytes, kept_made] = store;
  all(rooms, kept);
}

void Fingerprint::add(const StoreAdoption& adoption) {
  const auto& [nodes_to_hear, heard, replayed, put_off, bytes] = adoption;
  all(nodes_to_hear, heard, replayed, put_off);
}

void Fingerprint::add(const StoreMemory& memory) {
  const auto& [entries, by_version, bytes, has_forgotten] = memory;
  all(entries, by_version, has_forgotten);
}

void Fingerprint::add(const launcher::Deadlines& deadlines) {
  const auto& [at] = deadlines;
  all(at);
}

void Fingerprint::add(const launcher::StallCompensation& stall) {
  const auto& [last] = stall;
  all(last);
}

void Fingerprint::add(const launcher::StoreCalls& store_calls) {
  const auto& [calls, memory] = store_calls;
  all(calls, memory);
}

void Fingerprint::add(const launcher::Departure& departure) {
  const auto& [signals, signal, why, has_notice, gone_by] = departure;
  all(signals, signal, why, has_notice, gone_by);
}

void Fingerprint::add(const launcher::StopPlan& stop) {
  const auto& [after, since] = stop;
  all(after, since);
}

void Fingerprint::add(const launcher::WorkerLife& life) {
  const auto& [now, ended_as] = life;
  all(now, ended_as);
}

void Fingerprint::add(const launcher::NodeWorkers& workers) {
  const auto& [count, run, node, base_rank, all_of_them] = workers;
  all(all_of_them);
}

void Fingerprint::add(const launcher::NodeGeneration& generation) {
  const auto& [world, before, places, began_at, failed_here, step, lost_peers] = generation;
  all(world, before, places, failed_here, step, lost_peers);
}

void Fingerprint::add(const launcher::JobProgress& job) {
  // Only jobs ask for what is remembered, and say from where they go on; the newest step is for pages.
  const auto& [is_over, is_job, node_restarts, remembered, newest_step, failures, restoration, recovery] = job;
  all(is_over, is_job, node_restarts, recovery);
}

void Fingerprint::add(const launcher::CoordinatorLine& line) {
  const auto& [is_up, serves, fell_silent, up_since, grace_left, prolonged, told_job, told_starting, heard, waiting_for, decided] = line;
  all(is_up, serves, fell_silent, grace_left ? up_since : Instant{}, grace_left, prolonged, told_job, told_starting.has_value(), heard,
      waiting_for, decided.has_value());
}

void Fingerprint::add(const launcher::LostPeers& lost) {
  const auto& [first, unreachable] = lost;
  all(first.has_value(), first ? first->worker : 0, first && first->own, unreachable);
}

void Fingerprint::add(const launcher::RecoveryTime& recovery) {
  const auto& [lost, since] = recovery;
  all(lost, since);
}

void Fingerprint::add(const launcher::Supervisor& supervisor) {
  const auto& [options, now, actions, judged, phase, generation, job, workers, line, calls, deadlines, stall, hangs, departure, stop,
               successors, preparation] = supervisor;  // hangs are not looked for in this world
  all(phase, generation, job, workers, line, calls, deadlines, stall, departure, stop, successors, preparation);
}

void Fingerprint::add(const launcher::SuccessorWait& successors) {
  const auto& [longest, progressed, highest, decided_at, newest_step, step_before, start, starting] = successors;
  all(progressed, highest, decided_at, newest_step, step_before, start, starting);
}

// What happens is a set: in each channel with its place there, all else with its time alone. Timers that were replaced
// are gone from it, so the numbers that tell them apart do not count; neither does what is dead.
void Fingerprint::add(const Simulation& s) {
  std::uint64_t due = 0;
  std::map<Channel, std::uint64_t> places;
  for (const auto& [at, queued] : s.queue_) {
    const auto& what = queued.what;
    const bool timer = std::holds_alternative<SupervisorTimer>(what) || std::holds_alternative<RoundTimer>(what) ||
                       std::holds_alternative<StoreTimer>(what);
    const std::uint64_t place = queued.channel.kind == Channel::Kind::none ? 0 : ++places[queued.channel];
    due += timer ? of(at.first, queued.to, what.index()) : of(at.first, queued.to, queued.channel, place, what);
  }
  all(due, s.now_, s.generations_, s.hosts_, s.named_, s.ledger_, s.decided_, s.job_over_, s.started_, s.seen_);
  for (const Process& p : s.processes_) all(p.alive, p.paused, p.clock_offset);
  for (const Node& node : s.nodes_) all(node.host, node.agent, node.left);
  for (const auto& [id, stream] : s.streams_)
    if (stream.agent_end || stream.coordinator_end) all(id, stream);
  for (const auto& [id, worker] : s.workers_)
    if (s.process(id).alive) all(id, worker);
  for (const auto& [id, a] : s.agents_)
    if (s.process(id).alive)
      all(id, a.supervisor, a.inbox, a.undone, a.children, a.hosts, a.port, a.port_is_for, a.finished, a.member_ever, a.asked, a.job_over,
          a.wake, a.stream, a.up, a.over, a.backoff, a.attempt, a.last_reason, a.answers_from, a.out_of_contact, a.up_since, a.guard_tells);
  for (const auto& [id, c] : s.coordinators_)
    if (s.process(id).alive)
      all(id, c.round, c.store, c.serving, c.undone, c.store_wake, c.callers, c.callers_made, c.calls, c.verdict_seen);
}

}  // namespace elrun::sim
