// The workload. A Job's worker opens a session, learns its peers from the store, and decides steps by the votes of all; on
// the way it uses the store. Any other program runs for a while and ends.

#include <charconv>
#include <csignal>

#include "lib/job/group_peers.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

constexpr std::uint64_t steps_between_barriers = 8;
constexpr std::uint64_t steps_of_a_program = 8;  // what a program that is no Job takes, in the time of steps

// A worker that stays may be in a later one by the time an answer of this one is read.
bool is_or_was(const Worker& w, const Generation& generation, std::size_t rank) {
  return w.generation.number > generation.number || (w.generation == generation && w.rank == rank);
}

ByteVector bytes_of(const std::string& text) { return {as_bytes(text).begin(), as_bytes(text).end()}; }

}  // namespace

void Simulation::on(ProcessId id, const WorkerBegins&) {
  Worker& w = workers_.at(id);
  if (profile_.bad_node && agents_.at(w.agent).slot + 1 == profile_.nodes) return exit_worker(id, {.exit_code = 127});
  if (profile_.stuck_node && agents_.at(w.agent).slot + 1 == profile_.nodes) return;
  if (!profile_.jobs) {
    happen_after(profile_.step * steps_of_a_program / 2 + random(profile_.step * steps_of_a_program), id, WorkerExits{{}});
    return;
  }
  Hello hello;
  hello.pid = id.value();
  hello.rank = w.rank;
  hello.world = w.world;
  hello.is_job = true;
  hello.stays = profile_.stays;
  hello.says_ready = w.stay.says_ready;
  say(id, hello);
}

void Simulation::say(ProcessId id, Message message) {
  happen_after(random(100us), workers_.at(id).agent, FromWorker{id, std::move(message)}, {Channel::Kind::from_worker, id.value()});
}

void Simulation::on(ProcessId id, const ToWorker& e) {
  if (profile_.job.real) return to_program(id, e);
  Worker& w = workers_.at(id);
  if (const auto* welcome = std::get_if<Welcome>(&e.message)) {
    if (!std::exchange(w.stay.welcomed, true)) return w.stay.pending ? void() : gather_peers(id);
    if (!w.stay.acknowledged)
      return checkers_.report.violate("fenced",
                                      fmt::format("{} was told a place before it had acknowledged the end of its generation", name(id)));
    w.stay.pending = false;
    const Membership& place = welcome->place.membership;
    w.generation = place.generation;
    w.rank = place.rank.value();
    w.world = place.world.value();
    w.peers.clear();
    w.votes.clear();
    w.stay.acknowledged = false;
    w.stay.away = true;
    see(sim::WorkerStarted{id, w.agent, w.who, w.generation, w.rank, w.world});
    if (!w.stay.loads) happen_after(random(profile_.step), id, ComesBack{w.generation});
  } else if (const auto* over = std::get_if<GenerationOver>(&e.message)) {
    if (!profile_.stays || over->generation != w.generation || w.stay.acknowledged) return;
    w.stay.acknowledged = true;
    w.calls.clear();
    w.counts.forgotten = w.counts.made;
    see(WorkerGone{id});  // as far as that generation goes
    say(id, GenerationOver{w.generation, {.code = Code::generation_over}});
    if (w.stay.pending) w.stay.loads = true, happen_after(random(profile_.starts_within), id, IsReady{});
  } else if (std::holds_alternative<Refusal>(e.message)) {
    exit_worker(id, {.exit_code = 1});
  } else if (std::holds_alternative<JobOver>(e.message)) {
    happen_after(random(1s), id, WorkerExits{{}});
  } else if (std::holds_alternative<PrepareToLeave>(e.message)) {
    if (!w.deaf) say(id, PrepareToLeave{w.generation});
  } else if (const auto* reply = std::get_if<StoreReply>(&e.message)) {
    if (reply->id <= w.counts.forgotten) return;
    const auto call = w.calls.find(reply->id);
    if (call == w.calls.end())
      return checkers_.report.violate("store-is-linear",
                                      fmt::format("{} got an answer to a call that it had an answer to, or never made", name(id)));
    const StoreRequest request = std::move(call->second);
    w.calls.erase(call);
    see(StoreAnswered{id, e.answered_by.value_or(id), w.generation, request, *reply});
    store_answered(id, request, *reply);
  }
}

void Simulation::gather_peers(ProcessId id) {
  const Worker& w = workers_.at(id);
  StoreRequest gather;
  gather.op = StoreOp::all_gather;
  gather.keys = {"peers"};
  gather.value = bytes_of(fmt::format("{} {}", id.value(), decided_));
  gather.rank = w.rank;
  gather.count = w.world;
  gather.wait = peers_come_within;
  call_store(id, std::move(gather));
}

void Simulation::on(ProcessId id, const ComesBack& e) {
  Worker& w = workers_.at(id);
  if (w.generation != e.generation || w.stay.acknowledged || w.over) return;
  w.stay.away = false;
  say(id, Returned{w.generation});
  gather_peers(id);
}

void Simulation::on(ProcessId id, const IsReady&) {
  Worker& w = workers_.at(id);
  w.stay.loads = false;
  if (!w.stay.pending) return on(id, ComesBack{w.generation});
  w.stay.ready = now_;
  if (w.stay.says_ready) say(id, ReadyForPlace{w.generation});
}

void Simulation::call_store(ProcessId id, StoreRequest request) {
  Worker& w = workers_.at(id);
  request.id = ++w.counts.made;
  request.generation = w.generation;
  if (gathers(request.op)) request.caller = id.value() + 1, request.turn = ++w.counts.turns;
  w.calls.emplace(request.id, request);
  see(StoreCalled{id, w.generation, request});
  say(id, request);
}

void Simulation::store_answered(ProcessId id, const StoreRequest& request, const StoreReply& reply) {
  Worker& w = workers_.at(id);
  const bool essential = request.op == StoreOp::all_gather || request.op == StoreOp::barrier;
  if (!essential) return;
  if (!reply.ok) {
    // Of a generation that is over the agent takes care; anything else is this program's own failure.
    if (reply.code != Code::generation_over) happen_after(random(1s), id, WorkerExits{{.exit_code = 1}});
    return;
  }
  if (request.op == StoreOp::all_gather) {
    for (const ByteVector& value : reply.values) {
      const std::string_view text = as_text(value);
      std::uint32_t peer = 0;
      std::uint64_t step = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), peer);
      if (error == std::errc{} && end < text.data() + text.size()) std::from_chars(end + 1, text.data() + text.size(), step);
      w.peers.push_back(ProcessId{peer});
      w.step = std::max(w.step, step);
    }
    for (std::size_t rank = 0; rank < w.peers.size(); ++rank)
      if (w.peers[rank].value() >= processes_.size() || !workers_.contains(w.peers[rank]) ||
          !is_or_was(workers_.at(w.peers[rank]), w.generation, rank))
        return checkers_.report.violate("one-membership", fmt::format("{} was told that worker#{} is rank {} of generation {}", name(id),
                                                                      w.peers[rank].value(), rank, to_string(w.generation)));
  }
  begin_step(id);
}

void Simulation::begin_step(ProcessId id) {
  Worker& w = workers_.at(id);
  if (w.step >= profile_.steps) {
    w.over = true;
    return say(id, JobOver{w.generation});
  }
  happen_after(profile_.step / 2 + random(profile_.step), id, StepComputed{w.generation, w.step});
  happen_after(profile_.timeouts.collective, id, StepTooLong{w.generation, w.step});
}

void Simulation::on(ProcessId id, const StepComputed& e) {
  const Worker& w = workers_.at(id);
  if (w.generation != e.generation || w.stay.acknowledged) return;
  for (const ProcessId peer : w.peers)
    if (hosts_[process(peer).host]) happen(peer == id ? now_ : peer_arrival(id, peer), peer, Vote{w.generation, w.rank, e.step});
}

void Simulation::on(ProcessId id, const Vote& e) {
  Worker& w = workers_.at(id);
  if (e.generation != w.generation || w.stay.acknowledged) return;  // the generation's key would not fit
  w.votes[e.step].insert(e.rank);
  count_votes(id);
}

void Simulation::count_votes(ProcessId id) {
  Worker& w = workers_.at(id);
  if (w.over || w.votes[w.step].size() < w.world) return;
  w.votes.erase(w.step);
  ++w.step;
  if (decided_ == 0 && profile_.stuck_node) happen_after(random(profile_.arrive_within), {}, AgentArrives{profile_.nodes - 1});
  decided_ = std::max(decided_, w.step);
  see(StepWasDecided{id, w.who, w.generation, w.step});
  if (w.local_rank.value() == 0) tell("{} decides step {}", name(id), w.step);
  say(id, StepDecided{w.generation, w.step});
  if (w.step % steps_between_barriers == 0) {
    StoreRequest barrier;
    barrier.op = StoreOp::barrier;
    barrier.keys = {fmt::format("after {}", w.step)};
    barrier.rank = w.rank;
    barrier.count = w.world;
    barrier.wait = profile_.timeouts.store_wait;
    return call_store(id, std::move(barrier));
  }
  some_store_call(id);
  begin_step(id);
}

void Simulation::some_store_call(ProcessId id) {
  if (exact_) return;
  Worker& w = workers_.at(id);
  StoreRequest request;
  const std::uint64_t choice = rng_.below(8);
  const std::string key = rng_.chance(0.5) ? "job/register" : "register";
  if (choice < 2) {
    request.op = StoreOp::add;
    request.keys = {rng_.chance(0.5) ? "job/count" : "count"};
    request.amount = 1;
  } else if (choice < 4) {
    request.op = StoreOp::set;
    request.keys = {key};
    request.value = bytes_of(fmt::format("{}.{}", id.value(), w.counts.made + 1));
  } else if (choice < 6) {
    request.op = StoreOp::get;
    request.keys = {key};
    request.wait = rng_.chance(0.5) ? Duration{0} : Duration{5s};
  } else if (choice == 6) {  // the same key in each generation, each time another value
    request.op = StoreOp::set;
    request.keys = {fmt::format("address of {}", w.rank)};
    request.value = bytes_of(fmt::format("{} of {}", id.value(), w.counts.made + 1));
  } else {
    request.op = StoreOp::get;
    request.keys = {fmt::format("address of {}", rng_.below(w.world))};
    request.wait = 5s;
  }
  call_store(id, std::move(request));
}

// Somebody else decided the last step and is gone, or somebody is out of reach: no program waits for ever.
void Simulation::on(ProcessId id, const StepTooLong& e) {
  const Worker& w = workers_.at(id);
  if (w.over || w.step != e.step || w.generation != e.generation || w.stay.acknowledged) return;
  see(WorkerFailedByItself{id, w.generation});
  exit_worker(id, {.exit_code = 1});
}

// A program that is no Job fails when the connection to a peer breaks.
void Simulation::on(ProcessId id, const PeerGone& e) {
  if (profile_.jobs || workers_.at(id).generation != e.generation) return;
  if (exact_ || rng_.chance(0.5)) exit_worker(id, {.exit_code = 1});
}

void Simulation::on(ProcessId id, const WorkerExits& e) {
  if (workers_.at(id).hangs && e.ending.signal == 0) return;
  if (!e.ending.ok() && e.ending.signal == 0) see(WorkerFailedByItself{id, workers_.at(id).generation});
  exit_worker(id, e.ending);
}

void Simulation::exit_worker(ProcessId id, launcher::Ending ending) {
  if (!process(id).alive) return;
  const Worker w = workers_.at(id);
  tell("{} ends: {}", name(id), launcher::describe(ending));
  if (!ending.ok() && ending.signal == 0) see(WorkerFailedByItself{id, w.generation});
  process(id).paused = false;
  process(id).alive = false;
  if (profile_.job.real) program_is_gone(id);
  see(WorkerGone{id});
  happen_after(random(100us), w.agent, SocketClosed{id}, {Channel::Kind::from_worker, id.value()});
  happen_after(random(2ms), w.agent, ChildEnded{id, ending});
  if (ending.ok()) return;
  for (const auto& [other, worker] : workers_)
    if (worker.generation == w.generation && process(other).alive && hosts_[process(other).host])
      happen(peer_arrival(id, other), other, PeerGone{w.generation});
}

void Simulation::worker_is_gone(ProcessId id) {
  process(id).alive = false;
  if (profile_.job.real) program_is_gone(id);
  see(WorkerGone{id});
}

}  // namespace elrun::sim
