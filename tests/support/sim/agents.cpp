// The shell of an agent, as launcher/agent.cpp and rendezvous/net/client.cpp are: it feeds the supervisor, performs what the
// supervisor answers, and keeps the line to whoever the endpoint's name leads to.

#include <algorithm>
#include <csignal>

#include "tests/support/sim/simulation.hpp"
#include "tests/support/sim/words.hpp"

namespace elrun::sim {
namespace {

constexpr std::uint64_t attempts_per_agent = 1000;
constexpr Duration backoff_min = 50ms, backoff_max = 2s;  // as rendezvous/net/client.cpp has them

}  // namespace

ProcessId Simulation::start_agent(Slot slot) {
  Node& node = nodes_[slot];
  const ProcessId id = start_process(Process::Kind::agent, node.host);
  launcher::SupervisorOptions options;
  options.round = profile_.round;
  options.workers = profile_.workers[slot % profile_.workers.size()];
  options.timeouts = profile_.timeouts;
  options.run = RunId{"run"};
  options.node = node.name;
  options.coordinator = "the-endpoint";
  Agent& agent = agents_.emplace(id, Agent{options}).first->second;
  agent.who = {node.name, exact_ ? id.value() : rng_.next64()};
  agent.slot = slot;
  agent.workers = options.workers;
  agent.backoff = backoff_min;
  node.agent = id;
  see(AgentStarted{id, agent.who, agent.workers});
  tell("{} starts with {} workers", name(id), agent.workers);
  feed(id, launcher::Started{});
  if (profile_.hosted && slot == 0 && (!profile_.taken_over || !named_ || coordinator_is_gone())) {
    const ProcessId coordinator = start_coordinator(node.host, id);
    agent.hosts = coordinator;
  }
  connect(id);
  return id;
}

void Simulation::on(const AgentArrives& e) {
  const Node& node = nodes_[e.slot];
  if (node.left || job_over_ || (node.agent && process(*node.agent).alive)) return;
  start_agent(e.slot);
}

// As launcher/agent.cpp does when the line is down: whoever is first hosts.
void Simulation::on(ProcessId id, const TakesOver&) {
  Agent& agent = agents_.at(id);
  if (agent.hosts || agent.up || agent.over || agent.finished || !coordinator_is_gone()) return;
  if (agent.stream) close_agent_end(*std::exchange(agent.stream, std::nullopt));
  agent.hosts = start_coordinator(process(id).host, id);
  connect(id);
}

// --- the line -----------------------------------------------------------------------------------------------------

void Simulation::connect(ProcessId id) {
  Agent& agent = agents_.at(id);
  ++agent.attempt;
  const std::optional<ProcessId> target = agent.hosts ? agent.hosts : named_;
  if (!target) return connect_failed(id, "the name does not resolve");
  const StreamId stream = exact_ ? id.value() * attempts_per_agent + agent.attempt : streams_.size() + 1;
  streams_.emplace(stream, Stream{id, *target, agent.hosts.has_value()});
  agent.stream = stream;
  if (agent.hosts) return happen(now_, *target, StreamArrives{stream}, {Channel::Kind::up, stream});
  const HostId there = process(*target).host;
  if (hosts_[there]) {
    if (process(*target).alive) {
      send_up(stream, StreamArrives{stream});
    } else {
      happen(arrival(there, process(id).host), id, DownlinkEnds{stream, "connection refused"}, {Channel::Kind::down, stream});
    }
  }
  happen_after(profile_.timeouts.heartbeat_limit, id, ConnectLimit{stream});
}

void Simulation::on(ProcessId id, const StreamAccepted& e) {
  Agent& agent = agents_.at(id);
  if (agent.stream != e.stream || !streams_.at(e.stream).agent_end) return;
  agent.up = true;
  agent.guard_tells = agent.hosts ? std::nullopt : std::optional{streams_.at(e.stream).coordinator};
  agent.backoff = backoff_min;
  agent.last_reason.clear();
  agent.up_since = local(id);
  happen_after(profile_.timeouts.heartbeat, id, HeartbeatDue{e.stream});
  feed(id, launcher::LinkUp{});
}

void Simulation::on(ProcessId id, const HeartbeatDue& e) {
  Agent& agent = agents_.at(id);
  if (agent.stream != e.stream || !agent.up) return;
  if (!streams_.at(e.stream).in_process) send_up(e.stream, Uplink{e.stream, NodeAlive{}});
  happen_after(profile_.timeouts.heartbeat, id, HeartbeatDue{e.stream});
}

void Simulation::on(ProcessId id, const ConnectLimit& e) {
  Agent& agent = agents_.at(id);
  if (agent.stream != e.stream || agent.up || !streams_.at(e.stream).agent_end) return;
  close_agent_end(e.stream);
  link_down(id, "no answer");
}

void Simulation::on(ProcessId id, const DownlinkEnds& e) {
  Stream& stream = streams_.at(e.stream);
  if (!stream.agent_end) return;
  close_agent_end(e.stream);
  if (agents_.at(id).stream == e.stream) link_down(id, e.why);
}

void Simulation::link_down(ProcessId id, const std::string& why) {
  Agent& agent = agents_.at(id);
  agent.up = false;
  agent.stream.reset();
  if (agent.over) return;
  connect_failed(id, why);
}

void Simulation::connect_failed(ProcessId id, const std::string& why) {
  Agent& agent = agents_.at(id);
  // A line that was short is no contact.
  if (agent.up_since && local(id) - *agent.up_since >= profile_.timeouts.coordinator_stays()) agent.out_of_contact.reset();
  agent.up_since.reset();
  if (!agent.out_of_contact) agent.out_of_contact = local(id);
  const Duration wait = agent.backoff / 2 + random(agent.backoff / 2);
  agent.backoff = std::min(agent.backoff * 2, backoff_max);
  happen_after(wait, id, ConnectAgain{agent.attempt});
  if (profile_.taken_over && coordinator_is_gone()) happen_after(random(20ms), id, TakesOver{});
  if (why == agent.last_reason) return;
  agent.last_reason = why;
  tell("{} has no coordinator: {}", name(id), why);
  feed(id, launcher::LinkDown{{Code::unreachable, Remedy::retry, why}});
}

void Simulation::on(ProcessId id, const ConnectAgain& e) {
  Agent& agent = agents_.at(id);
  if (agent.attempt != e.epoch || agent.stream || agent.over) return;
  connect(id);
}

void Simulation::on(ProcessId id, const Downlink& e) {
  Agent& agent = agents_.at(id);
  const Stream& stream = streams_.at(e.stream);
  if (agent.stream != e.stream || !stream.agent_end || (stream.cut && now_ > *stream.cut)) return;
  const bool last = std::holds_alternative<Verdict>(e.message) || std::holds_alternative<Refused>(e.message);
  tell("{} hears {}", name(id), words(e.message));
  if (last && !stream.in_process) {
    agent.over = true;
    agent.up = false;
    if (std::holds_alternative<Verdict>(e.message)) send_up(e.stream, Uplink{e.stream, VerdictReceived{}});
    close_agent_end(e.stream);
  }
  heard(id, e.message);
  agent.answers_from = stream.coordinator;
  feed(id, launcher::FromCoordinator{e.message});
}

void Simulation::heard(ProcessId id, const CoordinatorMessage& message) {
  const Incarnation& who = agents_.at(id).who;
  if (const auto* revoke = std::get_if<Revoke>(&message))
    see(AgentReceived{id, who, AgentReceived::What::revoke, revoke->generation, 0, revoke->why.what});
  if (const auto* verdict = std::get_if<Verdict>(&message))
    see(AgentReceived{id, who, AgentReceived::What::verdict, {}, verdict->exit_code, verdict->report});
  if (const auto* refused = std::get_if<Refused>(&message))
    see(AgentReceived{id, who, AgentReceived::What::refused, {}, 0, refused->failure.what});
}

// --- events in, actions out ---------------------------------------------------------------------------------------

void Simulation::feed(ProcessId id, launcher::Event event) {
  agents_.at(id).inbox.push_back(std::move(event));
  work(id);
}

void Simulation::work(ProcessId id) {
  Agent& agent = agents_.at(id);
  if (agent.busy) return;
  agent.busy = true;
  while (process(id).alive && !process(id).paused) {
    if (!agent.undone.empty()) {
      if (interrupted(id)) break;
      const launcher::Action action = std::move(agent.undone.front());
      agent.undone.pop_front();
      std::visit([&](const auto& a) { perform(id, a); }, action);
    } else if (!agent.inbox.empty()) {
      const launcher::Event event = std::move(agent.inbox.front());
      agent.inbox.pop_front();
      const Generation before = agent.supervisor.last_generation();
      std::vector<launcher::Action> actions = agent.supervisor.on(event, local(id));
      if (const auto* said = std::get_if<launcher::FromCoordinator>(&event);
          said != nullptr && agent.supervisor.last_generation() != before) {
        agent.member_ever = true;
        see(WorldTaken{id, agent.who, agent.supervisor.places(), told(std::get<World>(said->message))});
      }
      agent.undone.insert(agent.undone.end(), std::make_move_iterator(actions.begin()), std::make_move_iterator(actions.end()));
    } else {
      break;
    }
  }
  agent.busy = false;
  if (!process(id).alive || agent.finished) return;
  const std::optional<Instant> at = agent.supervisor.wake_at();
  if (at == agent.wake) return;
  agent.wake = at;
  ++agent.timer;
  if (at) happen_after(std::max(*at - local(id), Duration{0}), id, SupervisorTimer{agent.timer});
}

void Simulation::on(ProcessId id, const SupervisorTimer& e) {
  Agent& agent = agents_.at(id);
  if (agent.timer != e.epoch) return;
  agent.wake.reset();
  if (agent.out_of_contact && !agent.up && local(id) - *agent.out_of_contact >= profile_.timeouts.coordinator_grace)
    see(AgentReceived{id, agent.who, AgentReceived::What::out_of_contact, {}, 0, {}});
  feed(id, launcher::Tick{});
}

void Simulation::perform(ProcessId id, const launcher::Send& a) {
  Agent& agent = agents_.at(id);
  if (const auto* acknowledge = std::get_if<Acknowledge>(&a.message)) see(Acknowledged{id, agent.who, acknowledge->generation});
  const auto* join = std::get_if<Join>(&a.message);
  if (join != nullptr && !join->resuming && join->last.number != 0) see(Acknowledged{id, agent.who, join->last});
  if (!agent.up || !agent.stream) return;
  NodeMessage message = a.message;
  if (join != nullptr) {
    Join whole = *join;
    whole.who = agent.who;
    whole.run = RunId{"run"};
    whole.version = "1.2.0";
    whole.address = address_of(process(id).host);
    if (!join->resuming && (agent.port == 0 || agent.port_is_for != join->last))
      agent.port = static_cast<std::uint16_t>(exact_ ? 20000 + 100 * id.value() + join->last.number : 20000 + ++ports_ % 40000),
      agent.port_is_for = join->last;
    whole.master_port = agent.port;
    whole.hint = static_cast<std::int32_t>(agent.slot);
    whole.place = agent.who.node.value();
    whole.confirms_verdict = whole.may_coordinate = true;
    whole.heartbeat = profile_.timeouts.heartbeat;
    whole.stop_grace = profile_.timeouts.stop_grace;
    whole.prepares = profile_.agents_prepare;
    whole.liveness = LivenessPort{whole.address, 1};  // the simulation knows which process it is
    message = std::move(whole);
  }
  if (traced_ && !std::holds_alternative<StoreCall>(message)) tell("{} says {}", name(id), words(message));
  send_up(*agent.stream, Uplink{*agent.stream, std::move(message)});
}

void Simulation::perform(ProcessId id, const launcher::LookAgain&) {
  const Agent& agent = agents_.at(id);
  if (!agent.up || agent.hosts || !named_ || streams_.at(*agent.stream).coordinator == *named_) return;
  close_agent_end(*agent.stream);
  link_down(id, "its name leads elsewhere now");
}

void Simulation::perform(ProcessId id, const launcher::Spawn& a) {
  Agent& agent = agents_.at(id);
  const ProcessId child = start_process(Process::Kind::worker, process(id).host);
  Worker worker;
  worker.agent = id;
  worker.who = agent.who;
  worker.local_rank = a.worker;
  const Told place = told(a.world);
  worker.generation = place.generation;
  worker.rank = place.base_rank + a.place;
  worker.world = place.world_size;
  worker.wedged = !exact_ && rng_.chance(profile_.wedged_workers);
  worker.deaf = !profile_.jobs && rng_.chance(profile_.deaf_workers);
  worker.stay.pending = a.is_pending;
  worker.stay.says_ready = !a.is_pending || !rng_.chance(profile_.older_workers);
  workers_.emplace(child, std::move(worker));
  agent.children.insert_or_assign(a.worker, child);
  const Worker& made = workers_.at(child);
  tell("{} starts {}{}", name(id), name(child), a.is_pending ? ", a pending worker" : "");
  if (!a.is_pending) see(sim::WorkerStarted{child, id, made.who, made.generation, made.rank, made.world});
  happen_after(profile_.spawn + random(profile_.spawn), child, WorkerBegins{});
  agent.inbox.push_back(launcher::WorkerStarted{a.worker, static_cast<std::int64_t>(child.value())});
}

void Simulation::perform(ProcessId id, const launcher::SignalGroup& a) {
  const auto child = agents_.at(id).children.find(a.worker);
  if (child == agents_.at(id).children.end() || !process(child->second).alive) return;
  tell("{} sends signal {} to {}", name(id), a.number, name(child->second));
  // Who is not back in time is killed, whatever happened elsewhere; and a pending worker is in no generation.
  if (const Staying& stay = workers_.at(child->second).stay; !stay.away && !stay.pending)
    see(WorkerSignalled{child->second, id, workers_.at(child->second).generation, a.number});
  happen_after(random(1ms), child->second, SignalArrives{a.number});
}

void Simulation::perform(ProcessId, const launcher::EndOrphans&) {}  // workers of this world start nothing
void Simulation::perform(ProcessId, const launcher::TakeStacks&) {}  // nor does any of them hang
void Simulation::perform(ProcessId id, const launcher::GiveUp& a) {
  if (agents_.at(id).children.erase(a.worker) > 0) agents_.at(id).inbox.push_back(launcher::WorkerEnded{a.worker, {.signal = SIGKILL}});
}
void Simulation::perform(ProcessId id, const launcher::Release& a) { agents_.at(id).children.erase(a.worker); }

void Simulation::perform(ProcessId id, const launcher::Answer& a) {
  if (answer_writer(id, a)) return;
  const ProcessId worker{static_cast<std::uint32_t>(a.to)};
  happen_after(random(100us), worker, ToWorker{a.message, agents_.at(id).answers_from}, {Channel::Kind::to_worker, worker.value()});
}

void Simulation::perform(ProcessId, const launcher::HangUp&) {}  // the worker sees the refusal before it
void Simulation::perform(ProcessId id, const launcher::Say& a) { tell("{}: {}", name(id), a.text); }

void Simulation::perform(ProcessId id, const launcher::Finish& a) {
  Agent& agent = agents_.at(id);
  agent.finished = true;
  agent.guard_tells.reset();
  tell("{} ends with {}{}", name(id), a.exit_code, a.first_failure.empty() ? "" : ": " + a.first_failure);
  see(AgentFinished{id, agent.who, a.exit_code, a.by_verdict, agent.member_ever, a.first_failure});
  if (nodes_[agent.slot].agent == id) nodes_[agent.slot].left = agent.asked;
  if (!a.by_verdict || !agent.hosts) return end_agent(id);
  happen_after(std::max(profile_.timeouts.verdict_linger, late_linger) + 1s, id, LingerOver{});
  end_agent_if_allowed(id);
}

void Simulation::on(ProcessId id, const LingerOver&) { end_agent(id); }

void Simulation::end_agent(ProcessId id) {
  const std::optional<ProcessId> hosts = agents_.at(id).hosts;
  end_writer_of(id, false);
  end_process(id);
  if (hosts) end_process(*hosts);
}

// Some guards end with their agents; others are stopped for a while, and then their words are of an agent that was replaced long ago.
void Simulation::guard_speaks(ProcessId id) {
  const Agent& agent = agents_.at(id);
  if (!agent.guard_tells || (!exact_ && guards_.chance(0.2))) return;
  const HostId from = process(id).host, to = process(*agent.guard_tells).host;
  if (!hosts_[to]) return;
  Instant at = now_;
  if (!exact_) {
    const std::uint64_t us = guards_.chance(0.2) ? 20'000'000 : 20'000;
    at += 3 * profile_.delay_min + Duration{1us} * static_cast<std::int64_t>(guards_.below(us));
    if (const auto blocked = blocked_.find({from, to}); blocked != blocked_.end()) at = std::max(at, blocked->second);
  }
  happen(at, agent.guard_tells, GuardArrives{{agent.who, agent.supervisor.last_generation()}});
}

// The host of the rendezvous stays until the others have the verdict.
void Simulation::end_agent_if_allowed(ProcessId id) {
  const Agent& agent = agents_.at(id);
  if (agent.finished && process(id).alive && (!agent.hosts || coordinators_.at(*agent.hosts).round.may_end(local(*agent.hosts))))
    end_agent(id);
}

void Simulation::on(ProcessId id, const FromWorker& e) {
  if (std::holds_alternative<JobOver>(e.message)) agents_.at(id).job_over = true;
  feed(id, launcher::FromWorker{e.worker.value(), e.message});
}
void Simulation::on(ProcessId id, const SocketClosed& e) { feed(id, launcher::WorkerHungUp{e.worker.value()}); }
void Simulation::on(ProcessId id, const ChildEnded& e) {
  const LocalRank rank = workers_.at(e.worker).local_rank;
  const auto child = agents_.at(id).children.find(rank);
  if (child == agents_.at(id).children.end() || child->second != e.worker) return;
  feed(id, launcher::WorkerEnded{rank, e.ending});
}

void Simulation::on(ProcessId id, const SignalArrives& e) {
  if (writers_.contains(id)) return end_writer(id, false);
  if (workers_.contains(id)) {
    if (e.number == SIGKILL && workers_.at(id).wedged)
      return happen_after(random(Profile::wedged_at_most), id, WorkerExits{{.exit_code = 0, .signal = SIGKILL}});
    if (e.number == SIGKILL) return exit_worker(id, {.exit_code = 0, .signal = SIGKILL});
    workers_.at(id).hangs = workers_.at(id).deaf;
    if (!workers_.at(id).deaf) happen_after(random(300ms), id, WorkerExits{{.exit_code = 0, .signal = e.number}});
    return;
  }
  Agent& agent = agents_.at(id);
  agent.asked = true;
  see(AgentReceived{id, agent.who, AgentReceived::What::asked_to_leave, {}, 0, {}});
  feed(id, launcher::SignalCame{e.number});
}

}  // namespace elrun::sim
