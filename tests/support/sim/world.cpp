// Time, processes and the network: events come due one after the other, processes die, pause and see their clocks jump,
// streams delay, lose and break.

#include <algorithm>
#include <csignal>

#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

constexpr std::uint32_t processes_per_host = 16;  // where numbers must not depend on who comes first
constexpr std::size_t trace_lines_max = 200'000;
constexpr std::uint64_t events_max = 2'000'000;  // far beyond any run that gets somewhere

bool is_timer(const Happening& what) {
  return std::holds_alternative<SupervisorTimer>(what) || std::holds_alternative<RoundTimer>(what) ||
         std::holds_alternative<StoreTimer>(what) || std::holds_alternative<HeartbeatDue>(what) ||
         std::holds_alternative<ConnectLimit>(what) || std::holds_alternative<ConnectAgain>(what);
}

}  // namespace

void assertion_failed(const char* expression, const char* file, int line) {
  last_assertion = fmt::format("{} ({}:{})", expression, file, line);
  throw AssertionFailed{last_assertion};
}

Simulation::Simulation(Profile profile, bool traced)
    : profile_{std::move(profile)},
      traced_{traced},
      exact_{profile_.exact},
      rng_{profile_.seed},
      guards_{profile_.seed ^ 0x60642e2a34326f15u} {
  std::get<FaultsStayLocal>(checkers_.all).harmless = profile_.harmless;
  std::get<BadNodeHarmsItself>(checkers_.all).only_that = profile_.bad_node || profile_.stuck_node;
  std::get<BadNodeHarmsItself>(checkers_.all).nodes_prepare = profile_.agents_prepare && profile_.stays;
  std::get<SurvivorsStayTogether>(checkers_.all).others_are_back_at_once = profile_.only_hosts_end;
  std::get<WorldFits>(checkers_.all).nodes_min = profile_.round.nodes_min;
  std::get<WorldFits>(checkers_.all).nodes_max = profile_.round.nodes_max;
  CutsCostOne& cuts = std::get<CutsCostOne>(checkers_.all);
  cuts.only_that = profile_.only_cuts;
  cuts.can_be_spared = profile_.round.nodes_min + profile_.cuts.size() <= profile_.nodes;
  hosts_.push_back(true);  // of a coordinator that has a host of its own
  if (exact_) processes_.resize((profile_.nodes + 1) * processes_per_host);
  for (Slot slot = 0; slot < profile_.nodes; ++slot) {
    hosts_.push_back(true);
    nodes_.push_back({NodeId{fmt::format("node{}", slot)}, static_cast<HostId>(slot + 1), {}, false});
    const bool last = slot + 1 == profile_.nodes;
    if (last && profile_.stuck_node) continue;  // it comes when the others have trained (count_votes)
    const bool late = last && profile_.last_arrives > Duration{0};
    happen(now_ + (late ? profile_.last_arrives : random(profile_.arrive_within)), {}, AgentArrives{slot});
  }
  if (!profile_.hosted) happen(now_ + random(profile_.arrive_within / 2), {}, FreshCoordinator{});
  // Who comes first to a fresh coordinator and was never told of any generation cannot say that one runs; a ledger can.
  const Duration all_know = profile_.harmless && !profile_.ledger ? profile_.arrive_within + 2s : Duration{0};
  for (const FaultKind kind : profile_.faults)
    happen(now_ + std::min(all_know + random(profile_.calm_after), profile_.calm_after), {}, Injected{kind});
  for (std::uint32_t i = 0; i < profile_.outsiders; ++i) {
    const auto ms = static_cast<std::int64_t>(guards_.below(static_cast<std::uint64_t>(profile_.calm_after / 1ms)));
    happen(now_ + Duration{1ms} * ms, {}, OutsiderArrives{});
  }
  if (!exact_) happen(now_ + profile_.calm_after, {}, Heal{});
  if (profile_.job.real) prepare_jobs();
  for (std::size_t i = 0; i < profile_.cuts.size(); ++i) happen(now_ + profile_.cuts[i].at, {}, CutBegins{i});
  if (!profile_.cuts.empty()) happen_after(1s, {}, CutLooks{});
}

void Simulation::run() {
  try {
    while (!queue_.empty() && !violation()) {
      if ((healed_ || job_over_) && alive(Process::Kind::agent).empty()) return;
      next();
      if (events_ > events_max) checkers_.report.violate("liveness", fmt::format("{} events, and no end", events_));
    }
    if (!violation() && !alive(Process::Kind::agent).empty())
      checkers_.report.violate(
          "liveness", fmt::format("nothing will ever happen again, and {} has not ended", name(alive(Process::Kind::agent).front())));
  } catch (const std::exception& error) {
    checkers_.report.violate("cores-hold", fmt::format("a core gave up: {}", error.what()));
  }
}

void Simulation::next() {
  auto entry = queue_.extract(queue_.begin());
  now_ = entry.key().first;
  ++events_;
  deliver(entry.mapped().to, std::move(entry.mapped().what));
  if (healed_ && now_ >= look_again_) watch_liveness();
}

void Simulation::happen(Instant at, std::optional<ProcessId> to, Happening what, Channel channel) {
  at = std::max(at, now_);
  if (channel.kind != Channel::Kind::none) {
    Instant& newest = channels_[channel];
    at = newest = std::max(at, newest);
  }
  queue_.emplace(std::pair{at, ++sequence_}, Queued{to, channel, std::move(what)});
}

void Simulation::deliver(std::optional<ProcessId> to, Happening what) {
  if (!to) {
    std::visit(
        [this](const auto& e) {
          if constexpr (requires { this->on(e); }) this->on(e);
        },
        what);
    return;
  }
  Process& p = process(*to);
  if (!p.alive) return;
  const auto* signal = std::get_if<SignalArrives>(&what);
  if (p.paused && !(signal != nullptr && signal->number == SIGKILL)) return p.kept.push_back(std::move(what));
  std::visit(
      [&](const auto& e) {
        if constexpr (requires { this->on(*to, e); }) this->on(*to, e);
      },
      what);
}

// --- processes ----------------------------------------------------------------------------------------------------

ProcessId Simulation::start_process(Process::Kind kind, HostId host) {
  Process p;
  p.kind = kind;
  p.host = host;
  p.alive = true;
  if (exact_) {
    const std::uint32_t place = started_[host]++;
    if (place >= processes_per_host) throw std::length_error{"too many processes on one host"};
    const ProcessId id{host * processes_per_host + place};
    p.clock_offset = 1h;
    process(id) = std::move(p);
    return id;
  }
  const ProcessId id{static_cast<std::uint32_t>(processes_.size())};
  p.clock_offset = 1h + random(1000h);  // instants of two processes mean nothing to each other
  processes_.push_back(std::move(p));
  return id;
}

// The process is gone, and its system closes what it had open.
void Simulation::end_process(ProcessId id) {
  if (!process(id).alive) return;
  process(id).alive = false;
  process(id).kept.clear();
  for (auto& [number, stream] : streams_) {
    if (stream.agent == id) close_agent_end(number);
    if (stream.coordinator == id) close_coordinator_end(number);
  }
}

void Simulation::crash(ProcessId id, bool with_host) {
  if (!process(id).alive) return;
  if (process(id).kind == Process::Kind::writer) return end_writer(id, with_host);
  if (process(id).kind == Process::Kind::worker) {
    if (with_host) return worker_is_gone(id);
    return exit_worker(id, {.exit_code = 0, .signal = SIGKILL});
  }
  tell("{} crashes{}", name(id), with_host ? " with its host" : "");
  if (with_host) process(id).alive = false;
  end_process(id);
  if (const auto agent = agents_.find(id); agent != agents_.end()) {
    see(AgentCrashed{id, agent->second.who});
    if (!with_host)  // the guard sees to it
      for (const auto& [rank, worker] : agent->second.children)
        if (process(worker).alive) happen_after(random(50ms), worker, SignalArrives{SIGKILL});
    if (const auto writer = writer_of_.find(id); !with_host && writer != writer_of_.end() && process(writer->second).alive)
      happen_after(random(50ms), writer->second, SignalArrives{SIGKILL});
    if (!with_host) guard_speaks(id);
    if (agent->second.hosts) crash(*agent->second.hosts, with_host);
  } else if (const auto coordinator = coordinators_.find(id); coordinator != coordinators_.end() && coordinator->second.agent) {
    crash(*coordinator->second.agent, with_host);
  }
}

// The first that is asked is paused with the one in the same process.
void Simulation::pause(ProcessId id, Duration length) {
  if (!process(id).alive || process(id).paused) return;
  process(id).paused = true;
  happen_after(length, {}, Thaws{id});
  lose_touch(id, length);
  tell("{} is paused for {} ms", name(id), length / 1ms);
  if (const auto agent = agents_.find(id); agent != agents_.end() && agent->second.hosts) pause(*agent->second.hosts, length);
  if (const auto c = coordinators_.find(id); c != coordinators_.end() && c->second.agent) pause(*c->second.agent, length);
}

void Simulation::thaw(ProcessId id) {
  if (!process(id).alive || !process(id).paused) return;
  tell("{} goes on", name(id));
  process(id).paused = false;
  look(id);
  if (agents_.contains(id)) work(id);
  if (coordinators_.contains(id)) work_coordinator(id);
  // Its timers have all run out, and its loop looks at them before it reads what came.
  std::vector<Happening> kept = std::exchange(process(id).kept, {});
  std::stable_partition(kept.begin(), kept.end(), is_timer);
  for (Happening& what : kept) deliver(id, std::move(what));
  if (const auto writer = writers_.find(id); writer != writers_.end()) writer->second->look_at_all();
}

void Simulation::on(const Thaws& e) { thaw(e.process); }

// As after a live migration: the clock is ahead, and what was due meanwhile is due now.
void Simulation::jump(ProcessId id, Duration by) {
  process(id).clock_offset += by;
  tell("the clock of {} jumps by {} ms", name(id), by / 1ms);
  std::vector<std::pair<Instant, Queued>> moved;
  for (auto at = queue_.begin(); at != queue_.end();) {
    const auto entry = at++;
    const auto& what = entry->second.what;
    if (entry->second.to != id || !is_timer(what)) continue;
    moved.emplace_back(std::max(now_, entry->first.first - by), std::move(entry->second));
    queue_.erase(entry);
  }
  for (auto& [at, queued] : moved) happen(at, queued.to, std::move(queued.what), queued.channel);
}

// Between two actions of one list.
bool Simulation::interrupted(ProcessId id) {
  Process& p = process(id);
  if (!p.alive || p.paused) return true;
  if (!p.actions_left || (*p.actions_left)-- > 0) return false;
  p.actions_left.reset();
  if (p.crashes_then) {
    tell("... between two actions:");
    crash(id, false);
  } else {
    tell("... between two actions:");
    pause(id, some_time());
  }
  return true;
}

// --- network ------------------------------------------------------------------------------------------------------

Duration Simulation::delay() {
  if (exact_) return {};
  const Duration d = profile_.delay_min + random(profile_.delay_spread);
  return !healed_ && profile_.slow_messages > 0 && rng_.chance(profile_.slow_messages) ? d * 100 : d;
}

// When what is sent now gets there: the system sends it again until it does.
Instant Simulation::arrival(HostId from, HostId to) {
  Instant at = now_ + (from == to ? random(100us) : delay());
  if (const auto blocked = blocked_.find({from, to}); blocked != blocked_.end() && blocked->second > now_)
    at = std::max(at, blocked->second + random(200ms));
  return at;
}

void Simulation::send_up(StreamId id, Happening what) {
  const Stream& stream = streams_.at(id);
  const HostId from = process(stream.agent).host, to = process(stream.coordinator).host;
  if ((stream.cut && now_ >= *stream.cut) || !hosts_[to]) return;
  happen(stream.in_process ? now_ : arrival(from, to), stream.coordinator, std::move(what), {Channel::Kind::up, id});
}

void Simulation::send_down(StreamId id, Happening what) {
  const Stream& stream = streams_.at(id);
  const HostId from = process(stream.coordinator).host, to = process(stream.agent).host;
  if ((stream.cut && now_ >= *stream.cut) || !hosts_[to]) return;
  happen(stream.in_process ? now_ : arrival(from, to), stream.agent, std::move(what), {Channel::Kind::down, id});
}

// What was sent before still arrives.
void Simulation::close_agent_end(StreamId id) {
  Stream& stream = streams_.at(id);
  if (!stream.agent_end) return;
  stream.agent_end = false;
  if (hosts_[process(stream.agent).host]) send_up(id, UplinkEnds{id});
}

void Simulation::close_coordinator_end(StreamId id) {
  Stream& stream = streams_.at(id);
  if (!stream.coordinator_end) return;
  stream.coordinator_end = false;
  if (hosts_[process(stream.coordinator).host]) send_down(id, DownlinkEnds{id, "it ended the stream"});
}

// Nothing comes from `with` for this long (for ever, without a length): whoever has a stream to it is told by its own
// keep-alive, if that is too long.
void Simulation::lose_touch(ProcessId with, std::optional<Duration> length) {
  for (const auto& [id, stream] : streams_) {
    if (stream.in_process) continue;
    if (stream.coordinator == with && stream.agent_end)
      if (const Duration t = profile_.timeouts.heartbeat_limit + random(profile_.timeouts.heartbeat_limit); !length || t < *length)
        happen_after(t, stream.agent, DownlinkEnds{id, "keep-alive"});
    if (stream.agent == with && stream.coordinator_end)
      if (const Duration t = 10s + random(10s); !length || t < *length) happen_after(t, stream.coordinator, UplinkEnds{id});
  }
}

void Simulation::lose_touch(HostId a, HostId b, std::optional<Duration> length) {
  for (const auto& [id, stream] : streams_) {
    const HostId agent = process(stream.agent).host, coordinator = process(stream.coordinator).host;
    if (stream.in_process || !((agent == a && coordinator == b) || (agent == b && coordinator == a))) continue;
    if (const Duration t = profile_.timeouts.heartbeat_limit + random(profile_.timeouts.heartbeat_limit);
        stream.agent_end && (!length || t < *length))
      happen_after(t, stream.agent, DownlinkEnds{id, "keep-alive"});
    if (const Duration t = 10s + random(10s); stream.coordinator_end && (!length || t < *length))
      happen_after(t, stream.coordinator, UplinkEnds{id});
  }
}

// --- words --------------------------------------------------------------------------------------------------------

std::string Simulation::name(ProcessId id) const {
  if (const auto agent = agents_.find(id); agent != agents_.end()) return fmt::format("{}#{}", agent->second.who.node.value(), id.value());
  if (const auto worker = workers_.find(id); worker != workers_.end())
    return fmt::format("worker#{} ({}, rank {}, generation {})", id.value(), worker->second.who.node.value(), worker->second.rank,
                       worker->second.generation.number);
  if (const auto writer = writers_.find(id); writer != writers_.end())
    return fmt::format("ckptd#{} ({})", id.value(), agents_.at(writer->second->agent()).who.node.value());
  return fmt::format("coordinator#{}", id.value());
}

void Simulation::record(std::string line) {
  trace_.push_back(fmt::format("{:>10.3f} s  {}", std::chrono::duration<double>(now_.time_since_epoch()).count(), line));
  if (trace_.size() > trace_lines_max) trace_.pop_front();
}

Outcome simulate(const Profile& profile) {
  Simulation simulation{profile, false};
  simulation.run();
  return {simulation.violation(), simulation.events(), simulation.generations(), simulation.actions(), simulation.went_back()};
}

std::deque<std::string> trace_of(const Profile& profile, std::size_t lines) {
  Simulation simulation{profile, true};
  simulation.run();
  std::deque<std::string> trace = simulation.trace();
  while (trace.size() > lines) trace.pop_front();
  return trace;
}

}  // namespace elrun::sim
