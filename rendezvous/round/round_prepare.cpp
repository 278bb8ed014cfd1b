// Round: nodes without workers start them before they get a place. The world does not stand still while their programs load, and a node whose
// program does not start harms no other one.
#include <algorithm>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration prepared_gather_most = 30s;

}  // namespace

// No worker of it could begin at once: it is a newcomer, or a member whose workers have all died. A member of which some live may have part of the state.
// Only where the program is a Job whose libelrun can wait for a place: another one starts again with each generation.
bool Round::is_unprepared(const Node& node) const {
  return newcomers_prepare_ && node.join.prepares && node.preparation.state == Preparation::State::none &&
         !(node.member && has_survivors(node.join.preparedness)) && !ELRUN_PLANTED(newcomers_are_waited_for);
}

// Those that would have a place in the next generation, in their order.
std::vector<NodeId> Round::ready_newcomers() const {
  const std::size_t members = generation().members().size();
  std::vector<NodeId> ready;
  for (const auto& [arrived, id] : nodes_.newcomers()) {
    if (members + ready.size() >= room()) break;
    if (!is_unprepared(nodes_.at(id))) ready.push_back(id);
  }
  return ready;
}

// When it became one of them. Nodes that were told to prepare at the same time are rarely ready at the same time: while others are still preparing, the first
// one waits a little for them, or each would end a generation.
Instant Round::came_at(const Node& node) const {
  const Preparation& preparation = node.preparation;
  if (preparation.state != Preparation::State::done) return node.arrived;
  if (nodes_.coming() == 0) return preparation.ready;
  return preparation.ready + std::min<Duration>((preparation.ready - preparation.since) / 4, prepared_gather_most);
}

// While nothing runs nobody trains who could be kept waiting.
void Round::prepare_newcomers(Instant now) {
  if (!generation().runs() || !newcomers_prepare_ || !generation().done().empty()) return;
  const std::size_t taken = generation().members().size() + ready_newcomers().size() + nodes_.coming();
  std::vector<NodeId> chosen;
  for (const auto& [arrived, id] : nodes_.newcomers()) {
    if (taken + chosen.size() >= room()) break;
    if (is_unprepared(nodes_.at(id))) chosen.push_back(id);
  }
  for (const NodeId& id : chosen) prepare(nodes_.at(id), now);
}

void Round::prepare(Node& node, Instant now) {
  const Generation& beside = generation().id();
  Seat seat = generation().seat_of(0);
  seat.group_rank = seat.nodes;
  RolePlace role;
  const auto count_role = [&](const Node& other) { role.base_rank += other.join.role == node.join.role ? other.join.workers : 0; };
  for (const Member& m : generation().members())
    if (const Node* const member = nodes_.find(m.node); member != nullptr) count_role(*member);
  for (const NodeId& id : nodes_.preparations()) {
    const Node& other = nodes_.at(id);
    seat.world_size = std::max(seat.world_size, other.preparation.base_rank + other.join.workers);
    ++seat.group_rank;
    count_role(other);
  }
  role.world_size = role.base_rank + node.join.workers;
  seat.base_rank = seat.world_size;
  seat.world_size += node.join.workers;
  seat.nodes = seat.group_rank + 1;
  seat.roster = 0;
  nodes_.change(node, [&](Node& n) {
    n.preparation = {.state = Preparation::State::under_way, .beside = beside, .base_rank = seat.base_rank, .since = now};
    n.told = 0;
  });
  World world = world_of(0, {});
  world.seat = seat;
  world.address = node.join.address;
  world.role = role;
  say(Level::info,
      fmt::format("node {} starts its workers beside generation {}, and joins when they are ready", node.join.who.node.value(),
                  to_string(beside)),
      true);
  send(node, Prepare{std::move(world)});
}

void Round::prepared(Node& node, Instant now) {
  if (!node.is_preparing() && !(node.member && node.is_waiting() && !generation().runs())) return;
  nodes_.change(node, [&](Node& n) {
    n.preparation.state = Preparation::State::done;
    n.preparation.ready = now;
    n.told = 0;
  });
}

// Nobody waited for it, so it ends no generation and uses no restart.
void Round::not_prepared(Node& node, const NotPrepared& said, Instant now) {
  if (node.preparation.state == Preparation::State::none || verdict_.is_given()) return;
  const NodeId id = node.join.who.node;
  end_preparation(node);
  if (node.member) {  // a worker that stayed, or its successor, has ended between generations. Others of the node may live
    if (has_survivors(node.join.preparedness))
      nodes_.change(node, [](Node& n) { n.join.preparedness = n.join.workers > 1 ? Preparedness::some_stay : Preparedness::none; });
    return;
  }
  const FailureRecords::History& history = excluded_.failed(id, said.what, said.before_session);
  say(Level::warning,
      fmt::format("a worker of node {} ended by {} before the node had a place: failure {} in a row", id.value(), said.what,
                  history.failures),
      true);
  if (history.failures >= exclude_after || (said.exit_code == exit_code_configuration && others_have_trained(id)))
    exclude_unprepared(id, now);
}

// Its agent ends workers that take too long. One that does not even do that is no better than one whose workers fail.
void Round::end_late_preparations(Instant now) {
  std::vector<NodeId> late;
  for (const NodeId& id : nodes_.preparations())
    if (const Node& node = nodes_.at(id); node.is_preparing() && now >= prepared_by(node)) late.push_back(id);
  for (const NodeId& id : late) {
    end_preparation(nodes_.at(id));
    excluded_.failed(id, fmt::format("not being ready within {:.3g} s", seconds(setup_.timeouts.session)), true);
    exclude_unprepared(id, now);
  }
}

void Round::end_preparation(Node& node) {
  nodes_.change(node, [](Node& n) {
    n.preparation = {};
    n.told = 0;
  });
}

// It has held nobody up.
void Round::exclude_unprepared(const NodeId& id, Instant now) {
  excluded_.exclude(id, Duration{0}, nodes_, now);
  say(Level::warning, fmt::format("node {} is {}", id.value(), excluded_.why_failing(id, now)), true);
}

}  // namespace elrun::inline v0
