// What goes wrong, to whom, and what the world must be like some time after it stopped.

#include <algorithm>
#include <csignal>

#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {

void Simulation::on(const Injected& e) { inject(e.kind); }
void Simulation::on(const Heal&) { heal(); }

std::vector<ProcessId> Simulation::alive(Process::Kind kind) const {
  std::vector<ProcessId> all;
  for (std::uint32_t i = 0; i < processes_.size(); ++i)
    if (processes_[i].alive && processes_[i].kind == kind) all.push_back(ProcessId{i});
  return all;
}

std::optional<ProcessId> Simulation::any(Process::Kind kind) {
  const std::vector<ProcessId> all = alive(kind);
  if (all.empty()) return {};
  return all[rng_.below(all.size())];
}

// Short or long; over when the faults are.
Duration Simulation::some_time() {
  const Duration length = rng_.chance(0.4) ? random(500ms) : random(20s);
  const Duration left = Instant{} + profile_.calm_after - now_;
  return std::clamp(length, Duration{1ms}, std::max(left, Duration{1ms}));
}

void Simulation::note(const std::string& what, std::optional<ProcessId> whom) {
  tell("--- {}{}{}", what, whom ? ": " : "", whom ? name(*whom) : "");
}

void Simulation::inject(FaultKind kind) {
  const auto agent = any(Process::Kind::agent), worker = any(Process::Kind::worker);
  const std::optional<ProcessId> coordinator = named_ && process(*named_).alive ? named_ : std::nullopt;
  const auto back = [&](Slot slot) {
    if (rng_.chance(0.8)) happen_after(200ms + random(15s), {}, AgentArrives{slot});
  };
  const auto fresh_later = [&] {
    if (!profile_.hosted) happen_after(random(profile_.coordinator_away), {}, FreshCoordinator{});
  };
  switch (kind) {
    case FaultKind::agent_crash:
      if (!agent) return;
      note("the agent is killed", agent);
      crash(*agent, false);
      return back(agents_.at(*agent).slot);
    case FaultKind::host_crash: {
      if (!agent) return;
      note("the host loses power", agent);
      lose_power(*agent);
      return back(agents_.at(*agent).slot);
    }
    case FaultKind::replaced_while_frozen: {
      if (!agent || nodes_[agents_.at(*agent).slot].agent != agent || process(*agent).paused || agents_.at(*agent).finished) return;
      note("frozen, and replaced", agent);
      const Slot slot = agents_.at(*agent).slot;
      pause(*agent, some_time());
      hosts_.push_back(true);
      nodes_[slot].host = static_cast<HostId>(hosts_.size() - 1);
      see(NameTakenOver{nodes_[slot].name});
      start_agent(slot);
      return;
    }
    case FaultKind::agent_pause:
      if (agent) note("paused", agent), pause(*agent, some_time());
      return;
    case FaultKind::worker_pause:
      if (worker) note("paused", worker), pause(*worker, some_time());
      return;
    case FaultKind::coordinator_pause:
      if (coordinator)
        note("paused", coordinator),
            pause(*coordinator, profile_.harmless ? random(profile_.timeouts.heartbeat_limit * 19 / 20) : some_time());
      return;
    case FaultKind::coordinator_crash:
      if (!coordinator) return;
      if (profile_.elected && profile_.harmless) return step_down(*coordinator);
      note("killed", coordinator);
      if (const auto host = coordinators_.at(*coordinator).agent) back(agents_.at(*host).slot);
      crash(*coordinator, false);
      return fresh_later();
    case FaultKind::coordinator_replaced:
      if (coordinator && profile_.elected) return step_down(*coordinator);
      if (!coordinator || profile_.hosted || process(*coordinator).paused) return;
      note("paused, and replaced", coordinator);
      pause(*coordinator, some_time());
      return fresh_later();
    case FaultKind::stream_reset:
    case FaultKind::stream_half_open: {
      std::vector<StreamId> open;
      for (const auto& [id, stream] : streams_)
        if (stream.agent_end && stream.coordinator_end && !stream.in_process && !stream.cut) open.push_back(id);
      if (open.empty()) return;
      const StreamId id = open[rng_.below(open.size())];
      Stream& stream = streams_.at(id);
      note(kind == FaultKind::stream_reset ? "its stream is reset" : "its stream is half open", stream.agent);
      stream.cut = now_ + random(delay() * 2);
      const bool silent = kind == FaultKind::stream_half_open, agent_knows = !silent || rng_.chance(0.5),
                 coordinator_knows = !silent || !agent_knows;
      happen_after(agent_knows ? delay() * 3 : profile_.timeouts.heartbeat_limit + random(profile_.timeouts.heartbeat_limit), stream.agent,
                   DownlinkEnds{id, "reset by peer"});
      happen_after(coordinator_knows ? delay() * 3 : 10s + random(10s), stream.coordinator, UplinkEnds{id});
      return;
    }
    case FaultKind::partition:
    case FaultKind::partition_one_way: {
      if (!agent) return;
      const HostId a = process(*agent).host;
      const HostId b = rng_.chance(0.6) && coordinator ? process(*coordinator).host : process(*any(Process::Kind::agent)).host;
      if (a == b) return;
      const Duration length = some_time();
      const bool forth = rng_.chance(0.5);
      note(fmt::format("hosts {} and {} are parted{} for {} ms", a, b, kind == FaultKind::partition ? "" : ", one way,", length / 1ms),
           agent);
      if (kind == FaultKind::partition || forth) blocked_[{a, b}] = now_ + length;
      if (kind == FaultKind::partition || !forth) blocked_[{b, a}] = now_ + length;
      return lose_touch(a, b, length);
    }
    case FaultKind::worker_crash: {
      if (!worker || !profile_.worker_faults) return;
      note("a worker fails", worker);
      const bool by_signal = rng_.chance(0.5);
      see(WorkerFailedByItself{*worker, workers_.at(*worker).generation});
      return exit_worker(*worker, by_signal ? launcher::Ending{.exit_code = 0, .signal = SIGSEGV} : launcher::Ending{.exit_code = 3});
    }
    case FaultKind::clock_jump: {
      const auto whom = rng_.chance(0.3) && coordinator ? coordinator : agent;
      if (!whom) return;
      const Duration by = rng_.chance(0.5) ? random(2s) : random(30s);
      jump(*whom, by);
      if (const auto a = agents_.find(*whom); a != agents_.end() && a->second.hosts) jump(*a->second.hosts, by);
      if (const auto c = coordinators_.find(*whom); c != coordinators_.end() && c->second.agent) jump(*c->second.agent, by);
      return;
    }
    case FaultKind::crash_between_actions:
    case FaultKind::pause_between_actions: {
      const auto whom = rng_.chance(0.5) && coordinator ? coordinator : agent;
      if (!whom) return;
      process(*whom).actions_left = static_cast<std::uint32_t>(rng_.below(12));
      process(*whom).crashes_then = kind == FaultKind::crash_between_actions;
      if (!process(*whom).crashes_then) return;
      if (const auto a = agents_.find(*whom); a != agents_.end()) return back(a->second.slot);
      if (const auto host = coordinators_.at(*whom).agent) return back(agents_.at(*host).slot);
      return happen_after(10s, {}, FreshCoordinator{});
    }
    case FaultKind::asked_to_leave:
      if (!agent || (agents_.at(*agent).hosts && !profile_.elected)) return;
      note("asked to leave", agent);
      return happen(now_, agent, SignalArrives{SIGTERM});
    case FaultKind::new_node: {
      const Slot slot = static_cast<Slot>(nodes_.size());
      hosts_.push_back(true);
      nodes_.push_back({NodeId{fmt::format("node{}", slot)}, static_cast<HostId>(hosts_.size() - 1), {}, false});
      return happen(now_, {}, AgentArrives{slot});
    }
    case FaultKind::count: return;
  }
}

void Simulation::lose_power(ProcessId agent) {
  const HostId host = process(agent).host;
  for (HostId other = 0; other < hosts_.size(); ++other)
    if (other != host) lose_touch(host, other, {});
  hosts_[host] = false;
  for (std::uint32_t i = 0; i < processes_.size(); ++i)
    if (processes_[i].host == host) crash(ProcessId{i}, true);
  hosts_.push_back(true);  // the node comes back as another machine
  nodes_[agents_.at(agent).slot].host = static_cast<HostId>(hosts_.size() - 1);
}

// From here on nothing goes wrong, and whoever is needed comes back.
void Simulation::heal() {
  tell("=== from here on nothing goes wrong");
  healed_ = look_again_ = now_;
  blocked_.clear();
  for (Process& p : processes_) p.actions_left.reset();
  for (std::uint32_t i = 0; i < processes_.size(); ++i) thaw(ProcessId{i});
  if (job_over_) return;
  if (!profile_.hosted) happen_after(random(1s), {}, FreshCoordinator{});
  // Some of the lost never return, where the job can go on without them.
  const bool enough = nodes_alive() >= profile_.round.nodes_min;
  for (Slot slot = 0; slot < nodes_.size(); ++slot)
    if (!nodes_[slot].left && !((profile_.stuck_node || profile_.bad_node) && slot + 1 == profile_.nodes) &&
        ((profile_.hosted && slot == 0) || !enough || rng_.chance(0.5)))
      happen_after(random(2s), {}, AgentArrives{slot});
}

// Agents of one node, the frozen one that thawed and its replacement, count once.
std::size_t Simulation::nodes_alive() const {
  std::set<NodeId> nodes;
  for (const ProcessId id : alive(Process::Kind::agent)) nodes.insert(agents_.at(id).who.node);
  return nodes.size();
}

// A generation runs whose members all run it, or a verdict is there; or there are too few to form one, and none of them
// knows that the job is over.
bool Simulation::settled() const {
  if (job_over_) return true;
  const std::vector<ProcessId> agents = alive(Process::Kind::agent);
  const bool over = std::any_of(agents.begin(), agents.end(), [&](ProcessId id) { return agents_.at(id).job_over; });
  if (nodes_alive() < profile_.round.nodes_min && !over) return true;
  if (!named_ || !process(*named_).alive) return profile_.hosted && nodes_[0].left;
  // One that was stopped while another took its name may go on with the nodes that stayed with it.
  const std::vector<ProcessId> coordinators = alive(Process::Kind::coordinator);
  return std::any_of(coordinators.begin(), coordinators.end(), [&](ProcessId coordinator) {
    const std::optional<Generation> running = coordinators_.at(coordinator).round.running();
    if (!running) return false;
    const auto there = std::count_if(agents.begin(), agents.end(), [&](ProcessId id) {
      return agents_.at(id).up && agents_.at(id).supervisor.last_generation() == *running;
    });
    return static_cast<std::uint32_t>(there) == sizes_.at(key_of(*running));
  });
}

void Simulation::watch_liveness() {
  look_again_ = now_ + 250ms;
  if (!settled_ && settled()) settled_ = now_;
  const Duration since = now_ - *healed_;
  if (!settled_ && since > profile_.forms_within())
    checkers_.report.violate(
        "liveness",
        fmt::format("{} s after the last fault no generation runs with all of its members, and there is no verdict", since / 1s));
  watch_the_ready();
  if (since > profile_.ends_within()) {
    std::string who;
    for (const ProcessId id : alive(Process::Kind::agent)) who += fmt::format(" {}", name(id));
    checkers_.report.violate("liveness", fmt::format("{} s after the last fault the job has not ended on{}", since / 1s, who));
  }
}

// Nobody who is ready for a place waits long for one, where a generation runs undisturbed.
void Simulation::watch_the_ready() {
  if (!settled_ || job_over_ || !named_ || !process(*named_).alive) return;
  const std::optional<Generation> running = coordinators_.at(*named_).round.running();
  for (const ProcessId id : alive(Process::Kind::worker)) {
    const Worker& w = workers_.at(id);
    const Agent& agent = agents_.at(w.agent);
    if (!w.stay.pending || !w.stay.ready || agent.job_over || agent.asked || !agent.up || agent.supervisor.last_generation() != running)
      continue;
    const Duration waited = now_ - std::max({*w.stay.ready, *settled_, began_});
    if (waited > Profile::ready_at_most)
      checkers_.report.violate("liveness",
                               fmt::format("{} was ready for its place for {} s while a generation ran without it", name(id), waited / 1s));
  }
}

}  // namespace elrun::sim
