// Two nodes that are cut from each other: what their workers send each other does not arrive, all else does. As in lib/comm, a
// worker looks at its connections each second, and says of a peer that nothing of it was heard for 15 looks in a row.

#include <algorithm>

#include "tests/support/sim/program.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

constexpr Duration wire_look = 1s;
constexpr Duration noticed_within = 3s;  // of each other, of two that notice the same
const auto looks_max = static_cast<std::uint32_t>(Timeouts{}.peer_silence / wire_look);

}  // namespace

void Simulation::on(const CutBegins& e) {
  const PairCut& cut = profile_.cuts[e.which];
  const HostId a = nodes_[cut.a].host, b = nodes_[cut.b].host;
  const Instant until = std::min(now_ + cut.length, Instant{} + profile_.calm_after);
  tell("--- the workers of hosts {} and {} are cut from each other{} for {} ms", a, b, cut.one_way ? ", one way," : "",
       (until - now_) / 1ms);
  cut_[{a, b}] = std::max(cut_[{a, b}], until);
  if (!cut.one_way) cut_[{b, a}] = std::max(cut_[{b, a}], until);
  see(PairIsCut{nodes_[cut.a].name, nodes_[cut.b].name, until});
}

// Either way: what is not acknowledged is not known to have arrived.
Instant Simulation::cut_until(HostId a, HostId b) const {
  Instant until{};
  for (const auto& way : {std::pair{a, b}, std::pair{b, a}})
    if (const auto cut = cut_.find(way); cut != cut_.end()) until = std::max(until, cut->second);
  return until;
}

Instant Simulation::peer_arrival(ProcessId from, ProcessId to) {
  Instant at = arrival(process(from).host, process(to).host);
  if (cut_.empty()) return at;
  if (const auto cut = cut_.find({process(from).host, process(to).host}); cut != cut_.end() && cut->second > now_)
    at = std::max(at, cut->second + random(200ms));
  if (const auto wire = wires_.find({from, to}); wire != wires_.end() && wire->second.generation == workers_.at(from).generation)
    at = std::max(at, wire->second.dead_until);
  return at;
}

bool Simulation::is_connected(ProcessId from, ProcessId to) const {
  const Worker &w = workers_.at(from), &peer = workers_.at(to);
  if (w.generation != peer.generation || w.stay.acknowledged || peer.stay.acknowledged) return false;
  if (!profile_.job.real) return std::find(w.peers.begin(), w.peers.end(), to) != w.peers.end();
  const auto program = programs_.find(from);
  return program != programs_.end() && program->second->is_connected();
}

void Simulation::look_at_wire(ProcessId from, ProcessId to) {
  const Instant until = cut_until(process(from).host, process(to).host);
  if (until == Instant{} || !is_connected(from, to)) return;
  Wire& wire = wires_[{from, to}];
  if (wire.generation != workers_.at(from).generation) wire = {workers_.at(from).generation, {}, 0};
  // The system waits twice as long after each attempt: it may be that again after the cut is mended.
  if (until > now_ && wire.dead_until < until) wire.dead_until = until + random(std::min<Duration>(until - now_, 30s));
  wire.looks = wire.dead_until > now_ ? wire.looks + 1 : 0;
  if (wire.looks == looks_max) cannot_reach(from, to);
}

void Simulation::on(const CutLooks&) {
  if (job_over_) return;
  happen_after(wire_look, {}, CutLooks{});
  const std::vector<ProcessId> workers = alive(Process::Kind::worker);
  for (const ProcessId from : workers)
    for (const ProcessId to : workers)
      if (process(from).host != process(to).host && !process(from).paused) look_at_wire(from, to);
  CutsLookedAt looked;
  for (const ProcessId id : alive(Process::Kind::agent)) looked.alive.push_back(agents_.at(id).who.node);
  looked.over =
      std::any_of(agents_.begin(), agents_.end(), [](const auto& agent) { return agent.second.job_over || agent.second.finished; });
  see(looked);
}

// As a ProcessGroup: the agent is told, and a program that does not stay may end by it.
void Simulation::cannot_reach(ProcessId id, ProcessId peer) {
  const Worker& w = workers_.at(id);
  const Rank rank{workers_.at(peer).rank};
  tell("{} cannot reach {}", name(id), name(peer));
  if (profile_.job.real) {
    programs_.at(id)->cannot_reach(w.generation, rank);
    return look(id);
  }
  if (w.over) return;
  happen_after(random(noticed_within), id, SaysUnreachable{w.generation, rank});
}

void Simulation::on(ProcessId id, const SaysUnreachable& e) {
  const Worker& w = workers_.at(id);
  if (w.generation != e.generation || w.stay.acknowledged) return;
  say(id, GenerationOver{e.generation,
                         {.code = Code::peer_lost,
                          .remedy = Remedy::rejoin,
                          .what = fmt::format("rank {} cannot be reached", e.peer.value()),
                          .peer = e.peer},
                         {},
                         true});
  if (!profile_.stays && rng_.chance(0.5)) happen_after(random(1s), id, WorkerExits{{.exit_code = 1}});
}

}  // namespace elrun::sim
