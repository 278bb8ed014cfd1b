// The idea: what will happen next is chosen among all that could: the first event of each channel that is due, and every
// event outside a channel. Messages take no time, so time goes on only when nothing is under way. An event that crashes its
// process is tried once more for each of the actions that it leads to. Two orders that lead to one state are one.

#include "tests/support/sim/explorer.hpp"

#include <algorithm>
#include <csignal>

namespace elrun::sim {
namespace {

constexpr Duration ends_by = 500s;  // of simulated time; heartbeats are slower, so that there are none
constexpr std::uint64_t generations_max = 2;

}  // namespace

Explorer::Explorer(const Search& search, std::uint64_t states_max) : search_{search}, states_max_{states_max} {}

Simulation Explorer::begin(const Search& search, bool traced) {
  Profile p;
  p.exact = true;
  p.nodes = 3;
  p.workers = {1};
  p.round = {.nodes_min = search.nodes_min, .nodes_max = 3, .last_call = 10s, .max_restarts = 3};
  p.timeouts.heartbeat = 1000s;
  p.timeouts.heartbeat_limit = 5000s;
  p.timeouts.join = 60s;
  p.timeouts.coordinator_grace = 60s;
  p.timeouts.store_wait = 60s;
  p.timeouts.collective = 45s;
  p.jobs = search.jobs;
  p.steps = 1;
  p.spawn = p.delay_min = p.delay_spread = p.arrive_within = {};
  p.coordinator_stays = search.fault == OneFault::broken_stream;
  p.harmless = search.fault != OneFault::agent_crash && search.fault != OneFault::worker_failure;
  Simulation simulation{std::move(p), traced};
  simulation.queue_.clear();
  simulation.on(FreshCoordinator{});
  for (Slot slot = 0; slot < 3; ++slot) simulation.on(AgentArrives{slot});
  return simulation;
}

SearchResult Explorer::run() {
  Simulation simulation = begin(search_, false);
  result_.paths = explore(simulation, search_.fault == OneFault::none);
  result_.states = paths_.size();
  return result_;
}

// Timers that were set anew since, events of the dead, ends of streams that are closed.
void Explorer::drop_what_nobody_waits_for(Simulation& at) {
  std::erase_if(at.queue_, [&](const auto& entry) {
    const auto& [when, queued] = entry;
    if (!queued.to) return false;
    if (!at.process(*queued.to).alive) return true;
    const auto agent = at.agents_.find(*queued.to);
    const auto coordinator = at.coordinators_.find(*queued.to);
    if (const auto* e = std::get_if<SupervisorTimer>(&queued.what)) return agent->second.timer != e->epoch;
    if (const auto* e = std::get_if<ConnectAgain>(&queued.what)) return agent->second.attempt != e->epoch || agent->second.over;
    if (const auto* e = std::get_if<ConnectLimit>(&queued.what)) return agent->second.stream != e->stream || agent->second.up;
    if (const auto* e = std::get_if<HeartbeatDue>(&queued.what)) return agent->second.stream != e->stream || !agent->second.up;
    if (const auto* e = std::get_if<RoundTimer>(&queued.what)) return coordinator->second.round_timer != e->epoch;
    if (const auto* e = std::get_if<StoreTimer>(&queued.what)) return coordinator->second.store_timer != e->epoch;
    if (const auto* e = std::get_if<DownlinkEnds>(&queued.what)) return !at.streams_.at(e->stream).agent_end;
    if (const auto* e = std::get_if<UplinkEnds>(&queued.what)) return !at.streams_.at(e->stream).coordinator_end;
    if (std::holds_alternative<PeerGone>(queued.what))
      return at.profile_.jobs || at.workers_.at(*queued.to).generation != std::get<PeerGone>(queued.what).generation;
    return false;
  });
}

std::vector<Explorer::Move> Explorer::events(Simulation& at) {
  std::vector<Move> moves;
  if (at.queue_.empty()) return moves;
  const Instant when = at.queue_.begin()->first.first;
  std::set<Channel> channels;
  for (const auto& [key, queued] : at.queue_) {
    if (key.first != when) break;
    if (queued.channel.kind != Channel::Kind::none && !channels.insert(queued.channel).second) continue;
    moves.push_back({Move::Kind::event, key.second});
  }
  return moves;
}

std::vector<Explorer::Move> Explorer::faults(const Simulation& at) const {
  std::vector<Move> moves;
  switch (search_.fault) {
    case OneFault::none: break;
    case OneFault::agent_crash:
      for (const ProcessId id : at.alive(Process::Kind::agent)) moves.push_back({Move::Kind::crash, id.value()});
      break;
    case OneFault::coordinator_crash:
      for (const ProcessId id : at.alive(Process::Kind::coordinator)) moves.push_back({Move::Kind::crash, id.value()});
      break;
    case OneFault::broken_stream:
      for (const auto& [id, stream] : at.streams_)
        if (stream.agent_end && stream.coordinator_end) moves.push_back({Move::Kind::break_stream, id});
      break;
    case OneFault::worker_failure:
      for (const ProcessId id : at.alive(Process::Kind::worker)) moves.push_back({Move::Kind::fail, id.value()});
      break;
  }
  return moves;
}

void Explorer::after_crash(Simulation& at, ProcessId crashed) const {
  if (at.coordinators_.contains(crashed)) return at.happen(at.now_, {}, FreshCoordinator{});
  if (search_.returns) at.happen(at.now_, {}, AgentArrives{at.agents_.at(crashed).slot});
}

bool Explorer::apply(Simulation& at, const Move& move) const {
  const ProcessId process{static_cast<std::uint32_t>(move.which)};
  switch (move.kind) {
    case Move::Kind::event:
    case Move::Kind::crash_during: {
      const auto entry = std::find_if(at.queue_.begin(), at.queue_.end(), [&](const auto& e) { return e.first.second == move.which; });
      auto taken = at.queue_.extract(entry);
      at.now_ = taken.key().first;
      ++at.events_;
      const std::optional<ProcessId> to = taken.mapped().to;
      if (move.kind == Move::Kind::crash_during) at.process(*to).actions_left = move.actions, at.process(*to).crashes_then = true;
      at.deliver(to, std::move(taken.mapped().what));
      if (move.kind == Move::Kind::event) return true;
      if (at.process(*to).alive || at.process(*to).actions_left) return false;
      after_crash(at, *to);
      return true;
    }
    case Move::Kind::crash:
      at.crash(process, false);
      after_crash(at, process);
      return true;
    case Move::Kind::break_stream: {
      Stream& stream = at.streams_.at(move.which);
      stream.cut = at.now_ - 1ns;  // what is under way is lost, and what is sent before the ends know it
      std::erase_if(at.queue_, [&](const auto& e) {
        const Channel& channel = e.second.channel;
        return channel.number == move.which && (channel.kind == Channel::Kind::up || channel.kind == Channel::Kind::down);
      });
      at.tell("--- the stream of {} breaks", at.name(stream.agent));
      at.happen(at.now_, stream.agent, DownlinkEnds{move.which, "reset by peer"});
      at.happen(at.now_, stream.coordinator, UplinkEnds{move.which});
      return true;
    }
    case Move::Kind::fail:
      at.see(WorkerFailedByItself{process, at.workers_.at(process).generation});
      at.exit_worker(process, {.exit_code = 3});
      return true;
  }
  return true;
}

double Explorer::explore(const Simulation& before, bool spent) {
  Simulation at = before;
  drop_what_nobody_waits_for(at);
  const std::uint64_t print = Fingerprint::of(spent, at);
  const auto [known, fresh] = paths_.try_emplace(print, 0);
  if (!fresh) return known->second;
  result_.longest = std::max<std::uint64_t>(result_.longest, path_.size());
  if (at.alive(Process::Kind::agent).empty() || at.generations_ > generations_max) {
    ++result_.ends;
    return known->second = 1;
  }
  const std::vector<Move> next = events(at);
  if (next.empty() || at.queue_.begin()->first.first - Instant{} > ends_by) {
    at.checkers_.report.violate(
        "liveness", fmt::format("nothing will happen any more, and {} has not ended", at.name(at.alive(Process::Kind::agent).front())));
    result_.violation = at.violation();
    result_.trace = trace_of_path();
    return 0;
  }
  if (paths_.size() >= states_max_) return result_.whole = false, 0;
  double paths = 0;
  bool done = false;
  for (const Move& move : next) {
    paths += go(at, move, spent, done);
    const std::optional<ProcessId> to =
        std::find_if(at.queue_.begin(), at.queue_.end(), [&](const auto& e) { return e.first.second == move.which; })->second.to;
    const bool may_crash = !spent && to &&
                           ((search_.fault == OneFault::agent_crash && at.agents_.contains(*to)) ||
                            (search_.fault == OneFault::coordinator_crash && at.coordinators_.contains(*to)));
    bool in_the_middle = may_crash;
    for (std::uint32_t actions = 0; in_the_middle && !result_.violation; ++actions) {
      done = false;
      paths += go(at, {Move::Kind::crash_during, move.which, actions}, true, done);
      in_the_middle = !done;
    }
    if (result_.violation) return 0;
  }
  if (!spent)
    for (const Move& move : faults(at)) {
      paths += go(at, move, true, done);
      if (result_.violation) return 0;
    }
  return paths_[print] = paths;
}

double Explorer::go(const Simulation& from, const Move& move, bool spent, bool& done) {
  Simulation next = from;
  ++result_.moves;
  path_.push_back(move);
  double paths = 0;
  try {
    done = !apply(next, move);
  } catch (const std::exception& error) {
    next.checkers_.report.violate("cores-hold", fmt::format("a core gave up: {}", error.what()));
  }
  if (next.violation()) {
    result_.violation = next.violation();
    result_.trace = trace_of_path();
  } else if (!done) {
    paths = explore(next, spent);
  }
  path_.pop_back();
  return paths;
}

std::deque<std::string> Explorer::trace_of_path() const {
  Simulation simulation = begin(search_, true);
  for (const Move& move : path_) {
    drop_what_nobody_waits_for(simulation);
    try {
      apply(simulation, move);
    } catch (const std::exception& error) {
      simulation.tell("a core gave up: {}", error.what());
    }
  }
  return simulation.trace();
}

}  // namespace elrun::sim
