// Round: nodes that join, reconnect or are refused; and a generation that another coordinator began.
#include "rendezvous/round/round.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/planted.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

// A name belongs to one process at a time; which one of several has it, `names_` knows.
void Round::join(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  const std::uint64_t newest = std::max(earlier_.floor(), generation().id().number);
  if (const std::vector<std::string> all = terms_.contradictions(join, newest); !all.empty()) {
    const NodeId name{printable(id.value())};
    const std::string why = printable(fmt::format("{}", fmt::join(all, "; ")));
    terms_.refuse(name, why);
    return refuse(stream, {Code::mismatch, Remedy::fix_config, fmt::format("node {} does not fit: {}", name.value(), why)});
  }
  // Before anything is concluded of the second name: a stream that is closed for it would leave the first node with none that it knows of.
  if (const auto& old = nodes_.stream(stream).node; old && *old != id)
    return refuse(
        stream, {Code::protocol, Remedy::exit_process, fmt::format("one stream spoke for two nodes, {} and {}", old->value(), id.value())});
  const auto refuse_replaced = [&] {
    refuse(stream, {Code::already_exists, Remedy::fix_config,
                    fmt::format("another agent has joined as node {} since; each agent needs a name of its own", id.value())});
  };
  if (ended_.has_ended(join.who)) {
    actions_.emplace_back(CloseStream{stream});
    return end_stream(stream, now);  // it may be that of a node that is still here
  }
  if (names_.is_replaced(join.who)) return refuse_replaced();
  Node* const known = nodes_.find(id);
  if (!verdict_.is_given() && names_.is_outdated(stream, join.who, known)) {
    if (!names_.is_newest(join.who, known)) {
      names_.replace(join.who);
      return refuse_replaced();
    }
    actions_.emplace_back(CloseStream{stream});  // not refused: the same process has another stream by now
    return nodes_.close(stream);
  }
  names_.take_over(join.who);
  if (verdict_.is_given()) return known != nullptr ? admit(stream, *known, join, now) : send(stream, *verdict_.verdict());
  if (known != nullptr && known->join.who.number != join.who.number) {
    if (known->stream && known->stream != stream) return let_claim(stream, join, now);
    names_.replace(known->join.who);
    if (known->stream == stream) {
      nodes_.set_speaker(stream, {});
      nodes_.change(*known, [](Node& n) { n.stream.reset(); });
    }
    lose(id, "another process has joined under its name", now);
  }
  if (!nodes_.has(id) && nodes_.all().size() >= nodes_limit)
    return refuse(stream, {Code::exhausted, Remedy::retry, fmt::format("{} nodes are here already", nodes_.all().size())});
  if (ELRUN_PLANTED(oversubscription_is_an_error) && generation().runs() && !nodes_.has(id) && generation().members().size() >= room())
    return refuse(stream, {Code::exhausted, Remedy::exit_process, "the round is complete"});
  take(stream, join, now);
}

// A node that fits, and whose name is its own.
void Round::take(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  terms_.agree(join);
  earlier_.learn_from(join);
  if (!generation().has_begun()) {
    earlier_.note(join, setup_.timeouts.recovery, now);
    budget_.count_on_from(join.restarts, options().max_restarts, static_cast<std::uint32_t>(generation_jump_max));
  }
  Node* node = nodes_.find(id);
  if (node == nullptr) {
    Node fresh;
    fresh.join = join;
    fresh.first = stream;
    fresh.arrived = now;
    fresh.excluded = excluded_.enter(join, nodes_, now);
    node = &nodes_.enter(id, std::move(fresh));
    say(Level::info,
        fmt::format("node {} ({}, {}) joined{}", id.value(), join.address, count_of(join.workers, "worker"),
                    generation().lost().contains(id) ? " again" : ""),
        true);
  }
  if (!generation().runs()) forming_.start(now);
  admit(stream, *node, join, now);
}

// An agent that is started again after a crash finds the old stream broken or silent.
void Round::let_claim(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  switch (names_.claim(stream, join, now)) {
    case NodeNames::Claim::waits_already: return;
    case NodeNames::Claim::too_many:
      return refuse(stream, {Code::already_exists, Remedy::fix_config,
                             fmt::format("{} other processes want to be node {} already; each agent needs a name of its own", claimants_max,
                                         id.value())});
    case NodeNames::Claim::waits: break;
  }
  say(Level::warning,
      fmt::format(
          "a second agent ({}) joins as node {}, which is connected. It waits up to {:.3g} s for the first one to be silent or gone",
          join.address, id.value(), seconds(setup_.timeouts.heartbeat_limit)),
      true);
  send(stream,
       Waiting{.why = fmt::format("another agent uses the node name {}. This one is admitted when that one is silent or gone", id.value()),
               .running = running().value_or(Generation{})});
}

void Round::resolve_claims(Instant now) {
  if (verdict_.is_given()) {
    for (const StreamNumber stream : names_.end_claims(nodes_)) send(stream, *verdict_.verdict());
    return;
  }
  for (const NodeId& id : names_.claimed()) {
    NodeNames::Resolved resolved;
    do {
      resolved = names_.resolve(id, nodes_, setup_.timeouts, now);
      for (const StreamNumber stream : resolved.refused)
        refuse(stream, {Code::already_exists, Remedy::fix_config,
                        fmt::format("another process is node {}, and lives; each agent needs a name of its own", id.value())});
      if (resolved.heir) join(resolved.heir->stream, resolved.heir->join, now);
    } while (resolved.heir && !nodes_.has(id));  // it has ended, or does not fit: the next one has the name
  }
}

// The node speaks on this stream from now on; what it is told depends on what became of the generation that it knows.
void Round::admit(StreamNumber stream, Node& node, const Join& join, Instant now) {
  if (node.stream && *node.stream != stream) {
    actions_.emplace_back(CloseStream{*node.stream});
    nodes_.close(*node.stream);
  }
  nodes_.change(node, [&](Node& n) {
    n.stream = stream;
    n.newest = std::max(n.newest, stream);
  });
  nodes_.set_speaker(stream, join.who.node);
  if (verdict_.is_given()) return send(node, *verdict_.verdict());

  const bool knows_it = join.last == generation().id();
  if (node.member && generation().runs()) {
    if (knows_it && join.resuming && join.seat) {
      nodes_.change(node, [&](Node& n) { n.join = join; });
      return send(node, Resumed{generation().id(), generation().id().lineage != setup_.lineage,
                                generation().own_place()});  // its replay may have been cut short
    }
    const Member* const me = generation().member(join.who.node);
    // The world and this Join crossed, or the stream broke before the world arrived: here it is again, if the node still
    // is what the others were told, and the key is this coordinator's.
    if (!knows_it && !join.resuming && generation().id().lineage == setup_.lineage && me->address == join.address &&
        me->master_port == join.master_port && me->workers == join.workers)
      return send(node, world_of(static_cast<std::uint32_t>(me - generation().members().data()), key()));
    nodes_.change(node, [&](Node& n) { n.join = join; });
    current_.state.lost(join.who.node, "it gave the generation up");
    revoke(EndCause::loss,
           {Code::peer_lost,
            Remedy::rejoin,
            fmt::format("node {} gave generation {} up", join.who.node.value(), to_string(generation().id())),
            {},
            {},
            generation().id(),
            join.who.node.value()},
           now);
  }
  nodes_.change(node, [&](Node& n) {
    n.join = join;
    n.ready = !join.resuming;
    if (!join.resuming) n.owes = false;  // it joins only when the workers of the old generation are gone
    n.told = 0;
    n.preparation = {};
    if (!join.resuming && join.preparedness != Preparedness::none && join.preparedness != Preparedness::some_stay)
      n.preparation = {.state = join.preparedness == Preparedness::starting ? Preparation::State::under_way : Preparation::State::done,
                       .beside = generation().id(),
                       .since = now,
                       .ready = now};
  });
  if (forming_.since()) status_.put_off(*forming_.since(), now);
  if (join.resuming) return claim(node, now);
  if (recovery_ && join.last == recovery_->generation()) end_recovery(fmt::format("node {} has ended it", join.who.node.value()), now);
}

// The node's workers still run for a generation that is over, or that another coordinator began.
void Round::claim(Node& node, Instant now) {
  const Join& join = node.join;
  // What is on record, or what another node has heard of, may be a later one: then this one is over. None has the number 0.
  const bool nothing_begun = !generation().has_begun() && join.last.number > 0 && join.last.number >= earlier_.floor() &&
                             !ELRUN_PLANTED(fresh_coordinator_ends_what_runs);
  if (nothing_begun && join.seat && (!recovery_ || recovery_->generation().number < join.last.number)) {
    const std::optional<RecoveryWindow> older = std::exchange(recovery_, {});
    if (older)
      for (const auto& [rank, id] : older->seats()) is_over(nodes_.at(id), join.last);
    recovery_.emplace(join, setup_.timeouts.recovery, now);
    say(Level::info, fmt::format("generation {} was begun by another coordinator; waiting for its {}", to_string(join.last),
                                 count_of(join.seat->nodes, "node")));
  }
  if (!recovery_ || recovery_->generation() != join.last) return is_over(node, generation().id());
  if (!join.seat) {
    end_recovery(fmt::format("node {} is ending it", join.who.node.value()), now);
    return is_over(node, generation().id());
  }
  switch (recovery_->take(join, now)) {
    case RecoveryWindow::Taken::no: return is_over(node, generation().id());
    case RecoveryWindow::Taken::yes:
      if (recovery_->only_its_coordinator_is_missing(succession_.is_elected(), join_of()))
        end_recovery("the missing one coordinated it", now);
      return;
    case RecoveryWindow::Taken::complete: break;
  }
  if (recovery_->generation().number < earlier_.floor()) return end_recovery("a later one was begun", now);
  adopt(now);
}

RecoveryWindow::JoinOf Round::join_of() const {
  return [this](const NodeId& id) -> const Join& { return nodes_.at(id).join; };
}

void Round::is_over(const Node& node, const Generation& newest) {
  const Generation& held = node.join.last;
  send(node, Revoke{held,
                    {Code::generation_over,
                     Remedy::rejoin,
                     fmt::format("generation {} is over; this coordinator's newest is {}", to_string(held), to_string(newest)),
                     {},
                     {},
                     held},
                    EndCause::stale});
}

// Every member of the generation is there: it goes on, as if nothing had happened.
void Round::adopt(Instant now) {
  earlier_.end_hold();
  std::optional<std::vector<Member>> members = recovery_->all_members(join_of());
  if (!members) return end_recovery("its members do not agree on who they are", now);
  const Generation adopted = recovery_->generation();
  recovery_.reset();
  enter(adopted, std::move(*members), true, now);
  say(Level::info,
      fmt::format("generation {} goes on: all of its {} are here", to_string(adopted), count_of(generation().members().size(), "node")));
  for (const Member& m : generation().members()) {
    Node& node = nodes_.at(m.node);
    nodes_.change(node, [](Node& n) { n.member = true; });
    send(node, Resumed{adopted, true, generation().own_place()});
  }
}

// The generation will not be whole again: those of its members that are here end it, and come first in the next one.
void Round::end_recovery(const std::string& why, Instant now) {
  const RecoveryWindow recovery = *std::exchange(recovery_, {});
  earlier_.end_hold();
  current_ = {.state = {recovery.generation(), recovery.present_members(join_of()), 0, {}, Instant{}}};
  for (const Member& member : generation().members()) nodes_.change(nodes_.at(member.node), [](Node& n) { n.member = true; });
  if (generation().members().empty()) return;
  revoke(EndCause::loss,
         {Code::peer_lost,
          Remedy::rejoin,
          fmt::format("its coordinator was lost, and {} of its {} did not join the new coordinator: {}",
                      recovery.nodes() - recovery.seats().size(), count_of(recovery.nodes(), "node"), why),
          {},
          {},
          generation().id()},
         now);
}

}  // namespace elrun::inline v0
