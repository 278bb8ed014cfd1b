#include "tests/support/sim/words.hpp"

#include <fmt/format.h>

namespace elrun::sim {
namespace {

std::string of(const Join& m) {
  return fmt::format("Join (last {}{}{}{}{})", to_string(m.last), m.resuming ? ", resuming" : "",
                     m.preparedness == Preparedness::starting    ? ", preparing"
                     : m.preparedness == Preparedness::ready     ? ", prepared"
                     : m.preparedness == Preparedness::some_stay ? ", some stay"
                     : m.preparedness == Preparedness::fresh     ? ", prepared anew"
                                                                 : "",
                     m.seat && m.resuming ? m.broken ? " its seat, broken" : " its seat" : "", m.has_trained ? ", has trained" : "");
}
std::string of(const NodeAlive&) { return "NodeAlive"; }
std::string of(const Acknowledge& m) { return fmt::format("Acknowledge {}", to_string(m.generation)); }
std::string of(const WorkerFailed& m) {
  return fmt::format("WorkerFailed {}: local rank {}, {}", to_string(m.generation), m.local_rank, m.what);
}
std::string of(const WorkersDone& m) { return fmt::format("WorkersDone {}", to_string(m.generation)); }
std::string of(const JobFinished& m) { return fmt::format("JobFinished {}", to_string(m.generation)); }
std::string of(const Progress& m) { return fmt::format("Progress {}: step {}", to_string(m.generation), m.step); }
std::string of(const Leave& m) { return fmt::format("Leave: {}", m.why); }
std::string of(const StoreCall& m) { return fmt::format("StoreCall {} of worker#{}", m.request.id, m.worker); }
std::string of(const StoreCallerGone& m) { return fmt::format("StoreCallerGone worker#{}", m.worker); }
std::string of(const VerdictReceived&) { return "VerdictReceived"; }
std::string of(const WorkersAreJob& m) { return fmt::format("WorkersAreJob {}", to_string(m.generation)); }
std::string of(const PeerUnreachable& m) {
  return fmt::format("PeerUnreachable {}: rank {} cannot reach {}: {}", to_string(m.generation), m.rank, m.peer, m.what);
}
std::string of(const WorkersStarting& m) {
  return fmt::format("WorkersStarting {}: {}, the first is rank {}", to_string(m.generation), m.count, m.rank);
}
std::string of(const AgentEnded& m) { return fmt::format("AgentEnded {} (last {})", m.who.node.value(), to_string(m.last)); }
std::string of(const MoreWorkers& m) { return fmt::format("MoreWorkers {}", to_string(m.generation)); }
std::string of(const NotPrepared& m) { return fmt::format("NotPrepared {}: {}", to_string(m.beside), m.what); }
std::string of(const Refused& m) { return "Refused: " + m.failure.what; }
std::string of(const Waiting& m) { return "Waiting: " + m.why; }
std::string of(const World& m) {
  const Told t = told(m);
  return fmt::format("World {}: place {} of {}, ranks from {} of {}, master {}:{}", to_string(t.generation), t.group_rank, t.nodes,
                     t.base_rank, t.world_size, t.master_address, t.master_port);
}
std::string of(const Revoke& m) { return fmt::format("Revoke {}: {}", to_string(m.generation), m.why.what); }
std::string of(const Resumed& m) { return fmt::format("Resumed {}{}", to_string(m.generation), m.fresh ? " by a fresh coordinator" : ""); }
std::string of(const Prepare& m) {
  return fmt::format("Prepare beside {}: ranks from {}", to_string(m.beside.generation), m.beside.seat.base_rank);
}
std::string of(const Verdict& m) { return fmt::format("Verdict {}{}{}", m.exit_code, m.report.empty() ? "" : ": ", m.report); }
std::string of(const StoreResult& m) {
  return fmt::format("StoreResult {} for worker#{}{}", m.reply.id, m.worker, m.reply.ok ? "" : ": " + m.reply.what);
}

}  // namespace

std::string words(const NodeMessage& message) {
  return std::visit([](const auto& m) { return of(m); }, message);
}
std::string words(const CoordinatorMessage& message) {
  return std::visit([](const auto& m) { return of(m); }, message);
}

Told told(const World& world) {
  Told t;
  t.generation = world.generation;
  t.group_rank = world.seat.group_rank;
  t.base_rank = world.seat.base_rank;
  t.nodes = world.seat.nodes;
  t.world_size = world.seat.world_size;
  t.roster = world.seat.roster;
  t.master_address = world.master_address;
  t.master_port = world.master_port;
  t.key = world.key;
  return t;
}

}  // namespace elrun::sim
