// The shell of a coordinator, as rendezvous/net/coordinator.cpp is: streams and timers in, a core's step, what it answers is
// performed.

#include <algorithm>

#include "tests/support/sim/simulation.hpp"
#include "tests/support/sim/words.hpp"

namespace elrun::sim {

ProcessId Simulation::start_coordinator(HostId host, std::optional<ProcessId> agent) {
  const ProcessId id = start_process(Process::Kind::coordinator, host);
  if (agent) process(id).clock_offset = process(*agent).clock_offset;
  RoundSetup setup;
  setup.run = RunId{"run"};
  setup.version = "1.2.0";
  setup.timeouts = profile_.timeouts;
  setup.lineage = {{exact_ ? id.value() : rng_.next64(), exact_ ? 0 : rng_.next64()}};
  setup.secret.fill(std::byte{static_cast<unsigned char>(id.value())});
  setup.generation_floor = profile_.ledger ? ledger_ : 0;
  setup.floor_may_run = setup.generation_floor > 0;
  setup.elected = profile_.elected;
  Coordinator& c = coordinators_.emplace(id, Coordinator{setup}).first->second;
  c.lineage = setup.lineage;
  c.agent = agent;
  named_ = id;
  tell("{} starts{}; the endpoint's name leads to it", name(id), agent ? fmt::format(" in {}", name(*agent)) : "");
  see(CoordinatorStarted{id, setup.lineage, setup.generation_floor});
  return id;
}

void Simulation::step_down(ProcessId id) {
  const ProcessId agent = *coordinators_.at(id).agent;
  if (process(id).paused || agents_.at(agent).finished) return;
  note("steps down", id);
  end_process(id);
  agents_.at(agent).hosts.reset();
}

void Simulation::on(const FreshCoordinator&) {
  if (job_over_ || (named_ && process(*named_).alive && !process(*named_).paused)) return;
  start_coordinator(coordinator_host_, {});
}

void Simulation::on(ProcessId id, const StreamArrives& e) {
  Stream& stream = streams_.at(e.stream);
  stream.coordinator_end = true;
  send_down(e.stream, StreamAccepted{e.stream});
  feed(id,
       StreamOpened{StreamNumber{e.stream}, stream.in_process, stream.in_process ? std::string{} : address_of(process(stream.agent).host)});
}

void Simulation::on(ProcessId id, const Uplink& e) {
  const Stream& stream = streams_.at(e.stream);
  if (!stream.coordinator_end || (stream.cut && now_ > *stream.cut)) return;
  const StreamNumber number{e.stream};
  if (const auto* call = std::get_if<StoreCall>(&e.message)) {
    if (coordinators_.at(id).round.joined(number)) store_call(id, e.stream, *call);
  } else if (const auto* gone = std::get_if<StoreCallerGone>(&e.message)) {
    forget_caller(id, {e.stream, gone->worker});
  } else {
    feed(id, FromNode{number, e.message});
  }
}

void Simulation::on(ProcessId id, const GuardArrives& e) {
  tell("{} hears from a guard: {}", name(id), words(NodeMessage{e.ended}));
  feed(id, FromGuard{e.ended});
}

void Simulation::on(ProcessId id, const HostAnswers& e) {
  tell("{} hears from the host of node {} that its agent has ended", name(id), e.ended.node.value());
  feed(id, FromHost{e.ended});
}

void Simulation::on(const OutsiderArrives&) {
  const std::vector<ProcessId> agents = alive(Process::Kind::agent);
  if (agents.empty() || !named_ || !process(*named_).alive) return;
  const Agent& agent = agents_.at(agents[guards_.below(agents.size())]);
  happen(now_, named_, GuardArrives{{{agent.who.node, guards_.next64()}, agent.supervisor.last_generation()}});
}

void Simulation::on(ProcessId id, const UplinkEnds& e) {
  if (!streams_.at(e.stream).coordinator_end) return;
  close_coordinator_end(e.stream);
  drop_stream(id, e.stream);
  feed(id, StreamBroken{StreamNumber{e.stream}});
}

void Simulation::on(ProcessId id, const RoundTimer& e) {
  if (coordinators_.at(id).round_timer == e.epoch) feed(id, RoundTick{});
}

void Simulation::on(ProcessId id, const StoreTimer& e) {
  Coordinator& c = coordinators_.at(id);
  if (c.store_timer != e.epoch) return;
  c.store_wake.reset();
  deliver_answers(id, c.store.expire(local(id)));
}

void Simulation::feed(ProcessId id, const RoundEvent& event) {
  Coordinator& c = coordinators_.at(id);
  std::vector<RoundAction> actions = c.round.step(event, local(id));
  // What was decided and said to one is so, whether it is said to all or not.
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto* begin = std::get_if<BeginGeneration>(&actions[i]);
    if (begin == nullptr) continue;
    GenerationBegan began{id, c.lineage, begin->generation, {}, {}, begin->adopted};
    for (const Member& m : begin->members) began.nodes.push_back(m.node);
    for (std::size_t j = i; j < actions.size(); ++j)
      if (const auto* send = std::get_if<SendTo>(&actions[j]);
          send != nullptr && (std::holds_alternative<World>(send->message) || std::holds_alternative<Resumed>(send->message)))
        began.members.push_back(agents_.at(streams_.at(send->stream.value()).agent).who);
    ++generations_;
    sizes_[key_of(began.generation)] = static_cast<std::uint32_t>(began.nodes.size());
    c.began = std::move(began);
  }
  // What is closed with these words is the stream of an agent that has ended.
  for (const RoundAction& action : actions)
    if (const auto* said = std::get_if<elrun::Say>(&action); said != nullptr && said->text.ends_with("as its guard says"))
      for (const RoundAction& other : actions)
        if (const auto* close = std::get_if<CloseStream>(&other)) {
          const ProcessId agent = streams_.at(close->stream.value()).agent;
          if (said->text.find(agents_.at(agent).who.node.value() + " ") != std::string::npos)
            see(LostByItsGuard{id, agents_.at(agent).who, process(agent).alive});
        }
  if (c.round.verdict() && !c.verdict_seen) {
    c.verdict_seen = true;
    if (named_ == id) job_over_ = c.round.verdict()->exit_code;
    tell("{} decides: {}", name(id), words(CoordinatorMessage{*c.round.verdict()}));
    VerdictGiven given{id, c.round.verdict()->exit_code, c.round.verdict()->report, {}};
    for (const auto& [number, stream] : streams_)
      if ((healed_ || profile_.coordinator_stays) && stream.coordinator == id && stream.agent_end && stream.coordinator_end &&
          !stream.cut && c.round.joined(StreamNumber{number}))
        given.connected.push_back(stream.agent);
    see(given);
    if (profile_.coordinator_stays && !exact_) inject(FaultKind::stream_reset);
  }
  c.undone.insert(c.undone.end(), std::make_move_iterator(actions.begin()), std::make_move_iterator(actions.end()));
  work_coordinator(id);
}

void Simulation::work_coordinator(ProcessId id) {
  Coordinator& c = coordinators_.at(id);
  while (!c.undone.empty() && !interrupted(id)) {
    const RoundAction action = std::move(c.undone.front());
    c.undone.pop_front();
    std::visit([&](const auto& a) { perform(id, a); }, action);
  }
  if (!process(id).alive || process(id).paused || !c.round.verdict() || !c.round.may_end(local(id))) return;
  if (c.agent) return end_agent_if_allowed(*c.agent);
  tell("{} ends: the job is over", name(id));
  end_process(id);
}

void Simulation::perform(ProcessId id, const SendTo& a) {
  const StreamId stream = a.stream.value();
  Coordinator& c = coordinators_.at(id);
  if (c.began && (std::holds_alternative<World>(a.message) || std::holds_alternative<Resumed>(a.message))) {
    c.began->named = named_ == id;  // now: it may have been paused since it decided, and replaced meanwhile
    see(*std::exchange(c.began, std::nullopt));
  }
  if (streams_.at(stream).coordinator_end) send_down(stream, Downlink{stream, a.message});
}

void Simulation::perform(ProcessId id, const CloseStream& a) {
  close_coordinator_end(a.stream.value());
  drop_stream(id, a.stream.value());
}

// A host that is up refuses what comes to a process that has ended. While the way there is blocked nothing comes.
void Simulation::perform(ProcessId id, const AskHost& a) {
  const auto agent = std::find_if(agents_.begin(), agents_.end(), [&](const auto& one) { return one.second.who == a.who; });
  if (agent == agents_.end() || process(agent->first).alive) return;
  const HostId here = process(id).host, there = process(agent->first).host;
  const auto is_blocked = [&](HostId from, HostId to) {
    const auto blocked = blocked_.find({from, to});
    return blocked != blocked_.end() && blocked->second > now_;
  };
  if (!hosts_[there] || is_blocked(here, there) || is_blocked(there, here)) return;
  Instant at = now_;
  if (!exact_) at += 2 * profile_.delay_min + Duration{1us} * static_cast<std::int64_t>(guards_.below(20'000));
  happen(at, id, HostAnswers{a.who});
}

void Simulation::perform(ProcessId id, const WakeAt& a) {
  Coordinator& c = coordinators_.at(id);
  happen_after(std::max(a.at - local(id), Duration{0}), id, RoundTimer{++c.round_timer});
}

void Simulation::perform(ProcessId id, const BeginGeneration& a) {
  Coordinator& c = coordinators_.at(id);
  ledger_ = std::max(ledger_, a.generation.number);
  c.serving = a.generation;
  if (id == named_) began_ = now_;
  deliver_answers(id, a.adopted ? c.store.adopt_generation(a.generation, static_cast<std::uint32_t>(a.members.size()))
                                : c.store.begin_generation(a.generation));
}

void Simulation::perform(ProcessId id, const EndGeneration& a) {
  Coordinator& c = coordinators_.at(id);
  if (c.serving) see(GenerationRevoked{id, *c.serving, a.why});
  c.serving.reset();
  deliver_answers(id, c.store.end_generation(a.why));
}

void Simulation::perform(ProcessId id, const elrun::Say& a) { tell("{}: {}", name(id), a.text); }

// --- the store ----------------------------------------------------------------------------------------------------

void Simulation::store_call(ProcessId id, StreamId stream, const StoreCall& call) {
  Coordinator& c = coordinators_.at(id);
  const auto [caller, fresh] = c.callers.try_emplace({stream, call.worker}, StoreCaller{c.callers_made + 1});
  if (fresh) c.caller_of.emplace(StoreCaller{++c.callers_made}, caller->first);
  c.calls[{caller->second, call.request.id}] = call.request;
  deliver_answers(id, c.store.call(caller->second, call.request, local(id)));
}

void Simulation::deliver_answers(ProcessId id, const std::vector<StoreAnswer>& answers) {
  Coordinator& c = coordinators_.at(id);
  for (const StoreAnswer& answer : answers) {
    const auto [stream, worker] = c.caller_of.at(answer.to);
    if (const auto call = c.calls.find({answer.to, answer.reply.id}); call != c.calls.end()) {
      see(StoreServed{id, c.serving, call->second, answer.reply});
      c.calls.erase(call);
    }
    if (streams_.at(stream).coordinator_end) send_down(stream, Downlink{stream, StoreResult{worker, answer.reply}});
  }
  const std::optional<Instant> next = c.store.next_expiry();
  if (next == c.store_wake) return;
  c.store_wake = next;
  ++c.store_timer;
  if (next) happen_after(std::max(*next - local(id), Duration{0}), id, StoreTimer{c.store_timer});
}

void Simulation::forget_caller(ProcessId id, const Coordinator::Caller& who) {
  Coordinator& c = coordinators_.at(id);
  const auto caller = c.callers.find(who);
  if (caller == c.callers.end()) return;
  c.store.forget(caller->second);
  c.calls.erase(c.calls.lower_bound({caller->second, 0}), c.calls.upper_bound({caller->second, ~std::uint64_t{0}}));
  c.caller_of.erase(caller->second);
  c.callers.erase(caller);
}

void Simulation::drop_stream(ProcessId id, StreamId stream) {
  Coordinator& c = coordinators_.at(id);
  while (true) {
    const auto caller = c.callers.lower_bound({stream, 0});
    if (caller == c.callers.end() || caller->first.first != stream) return;
    forget_caller(id, Coordinator::Caller{caller->first});
  }
}

}  // namespace elrun::sim
