// Round: the conclusions from all that is known, in their fixed order.
#include "rendezvous/round/round.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/assert.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/assign.hpp"

namespace elrun::inline v0 {

void Round::advance(Instant now) {
  lose_nodes(now);
  resolve_claims(now);
  if (const auto& failing = current_.root_cause.failing(); failing && (members_are_ready() || now >= failing->until)) fail(now);
  if (!verdict_.is_given() && !current_.root_cause.failing() && terms_.are_known()) {
    if (recovery_ && now >= recovery_->until()) end_recovery(std::string{recovery_->why()}, now);
    judge_what_was_put_off(now);
    for (const NodeId& id : excluded_.retry_due(nodes_, now))
      say(Level::info, fmt::format("node {} was excluded, and tries again", id.value()));
    judge_starting(now);
    if (current_.unreachable.are_certain(nodes_, setup_.timeouts.reconnect_grace, now)) separate_unreachable(now);
    for (const NodeId& id : excluded_.let_in_due(now)) let_in(id, now);
    end_late_preparations(now);
    grow(now);
    form(now);
    prepare_newcomers(now);
    give_up(now);
  }
  if (!verdict_.is_given() && terms_.are_known()) explain(now);
  if (verdict_.is_given())
    if (auto text = verdict_.linger_text(nodes_, terms_.nodes_max(), now)) say(Level::info, std::move(*text));
  if (const auto at = wake_up_.next(deadlines(now), nodes_.has_streams(), setup_.timeouts.heartbeat, now))
    actions_.emplace_back(WakeAt{*at});
}

// Collectives fail within milliseconds when a peer's node dies, before the node is known to be lost. What a member's loss
// did is free of charge.
void Round::excuse(const NodeId& lost) {
  RootCause& root_cause = current_.root_cause;
  if (!root_cause.explains(lost)) return;
  excluded_.take_back(nodes_);
  if (!budget_.refund()) return;
  const bool would_fail = root_cause.failing().has_value();
  root_cause.go_on();
  say(Level::info, fmt::format("{}: caused by the loss of node {}, so it uses up no restart{}", root_cause.first()->what, lost.value(),
                               would_fail ? "; the job goes on" : ""));
}

void Round::lose_nodes(Instant now) {
  if (ELRUN_PLANTED(torchrun_d6_lost_node_unnoticed)) return;
  std::vector<std::pair<NodeId, std::string>> gone;
  const NodeTable::Silent silent = nodes_.silent(setup_.timeouts.heartbeat_limit, now);
  for (const StreamNumber stream : silent.streams) {
    actions_.emplace_back(CloseStream{stream});
    nodes_.close(stream);
  }
  for (const NodeId& id : silent.nodes)
    gone.emplace_back(id, fmt::format("nothing was heard of it for {:.3g} s", seconds(setup_.timeouts.heartbeat_limit)));
  for (const auto& [id, how] : ended_.waited_for())
    if (!nodes_.at(id).stream || how.until <= now)
      gone.emplace_back(id, how.witness == EndedAgents::Witness::guard
                                ? "its agent was killed, as its guard says"
                                : "its agent has ended: its host refuses connections to the agent's port");
  if (!generation().is_deserted(now) && !verdict_.is_given())
    for (const auto& [at, id] : nodes_.broken()) {
      if (at + setup_.timeouts.reconnect_grace > now && !ELRUN_PLANTED(no_grace_to_reconnect)) break;
      const Duration waited = now >= generation().deserted_until() && generation().deserted_until() > at
                                  ? generation().deserted_until() - at
                                  : setup_.timeouts.reconnect_grace;
      gone.emplace_back(id, fmt::format("its stream broke and it did not return within {:.3g} s", seconds(waited)));
    }
  if (generation().is_revoked() && !verdict_.is_given() && nodes_.late() > 0 && now >= generation().return_by()) {
    std::optional<Instant> next;
    for (const auto& [id, node] : nodes_.all()) {
      if (!node.is_late()) continue;
      const Instant until = generation().revoked_at() + workers_end_within(node.join);
      if (until > now) next = std::min(next.value_or(until), until);
      else gone.emplace_back(id, fmt::format("it did not end its workers of generation {} in time", to_string(generation().id())));
    }
    if (next) current_.state.wait_for_return(*next);
  }
  for (const auto& [id, why] : gone)
    if (nodes_.has(id)) lose(id, why, now);
}

void Round::lose(const NodeId& id, const std::string& why, Instant now) {
  const Node node = nodes_.at(id);
  const bool member = node.member, done = generation().is_done(id);
  remove(id, true, now);
  if (verdict_.is_given()) return;
  say(member ? Level::warning : Level::info, fmt::format("node {} is lost: {}", id.value(), why), !member);
  names_.lose(node);
  if (!member) return;
  current_.state.lost(id, why);
  current_.start_watch.remove(id);
  excuse(id);
  if (generation().runs() && !done)  // whoever has done its part may go
    revoke(EndCause::loss,
           {Code::peer_lost, Remedy::rejoin, fmt::format("node {} is lost: {}", id.value(), why), {}, {}, generation().id(), id.value()},
           now);
}

void Round::remove(const NodeId& id, bool close, Instant now) {
  if (const auto stream = nodes_.at(id).stream; stream && close) {
    actions_.emplace_back(CloseStream{*stream});
    nodes_.close(*stream);
  }
  if (recovery_) recovery_->remove(id);
  excluded_.leave(id, now);
  ended_.remove(id);
  current_.unreachable.remove(id);
  nodes_.erase(id);
  if (!nodes_.all().empty()) return;
  forming_.stop();
  recovery_.reset();
  if (!generation().has_begun()) terms_.forget();
}

void Round::revoke(EndCause cause, Failure why, Instant now) {
  ELRUN_ASSERT(generation().runs());
  current_.revoke(workers_end_within(), now);
  cause_ = why.what;
  budget_.generation_ended(cause);
  forming_.restart(now);
  if (nodes_.all().empty()) forming_.stop();
  say(is_failure(cause) ? Level::warning : Level::info, fmt::format("generation {} is over: {}", to_string(generation().id()), why.what));
  actions_.emplace_back(EndGeneration{why.what});
  actions_.reserve(actions_.size() + generation().members().size() + 1);  // and when to wake
  nodes_.change_members([](Node& n) { n.owes = !ELRUN_PLANTED(forms_before_acknowledged), n.ready = n.ready || !n.owes; });
  for (const auto& [id, node] : nodes_.all())
    if (node.member) send(node, Revoke{generation().id(), why, cause});
}

// A newcomer and room for it, or more workers of a member: the generation ends, free of charge, to begin again with them.
// Not while a member is done, for its work would be done twice.
std::optional<Instant> Round::growth_at() const {
  if (!generation().runs() || !generation().done().empty()) return {};
  const std::vector<NodeId> newcomers = ready_newcomers();
  if (newcomers.empty()) return growth_.at({});
  Growth::Newcomers all{Instant::max(), static_cast<std::uint32_t>(newcomers.size())};
  for (const NodeId& id : newcomers) all.since = std::min(all.since, came_at(nodes_.at(id)));
  return growth_.at(all);
}

void Round::grow(Instant now) {
  const auto at = growth_at();
  if (!at || now < *at) return;
  std::vector<std::string> names;
  for (const NodeId& id : ready_newcomers()) names.push_back(id.value());
  for (const auto& [id, workers] : growth_.offers()) names.push_back(fmt::format("workers of {}", id.value()));
  growth_.grew(now);
  // The code is for agents of earlier versions, which do not read the cause.
  revoke(EndCause::growth,
         {Code::generation_over, Remedy::rejoin, fmt::format("the world grows by {}", some_of(names)), {}, {}, generation().id()}, now);
}

// When those who wait are a world.
Instant Round::closes_at() const {
  const Instant enough = *forming_.enough_since();
  if (!is_first_formation(nodes_)) return enough;
  const bool is_full = nodes_.waiting() >= room();
  if (generation().has_begun()) return is_full ? enough : enough + options().last_call;
  return enough + earlier_.last_call(nodes_, is_full, {options().last_call, workers_end_within(), setup_.timeouts.stop_grace});
}

void Round::form(Instant now) {
  if (generation().runs() || recovery_ || now < earlier_.hold_until() || now < budget_.pause_until()) return;
  if (in_sight() < needed()) lift_exclusions(now);
  if (in_sight() < needed() && in_sight() + excluded_.only_failing(nodes_) < needed()) let_in_needed(now);
  if (!forming_.has_enough(nodes_.waiting() >= needed(), now)) return;
  // The promise that the whole system rests on: nobody begins the next generation while a living member may still act
  // for the last one.
  if (!members_are_ready()) return;
  if (succession_.is_due() && another_may_coordinate()) {
    if (succession_.hand_over()) actions_.emplace_back(HandOver{});
    return;
  }
  if (succession_.has_nobody())
    say(Level::warning,
        "this agent leaves, and no other agent of the job may coordinate (is_host=0): the next generation has no coordinator once this agent has ended. "
        "Let more agents coordinate, or start this one again soon");
  if (now < closes_at()) return;
  // A world of nodes that are enough begins without those that have no workers: it would stand still for their start. Where no member that gets a place has
  // any worker left that could train meanwhile, it waits for all.
  const bool some_stay = std::any_of(nodes_.all().begin(), nodes_.all().end(), [](const auto& entry) {
    return entry.second.member && entry.second.is_waiting() && has_survivors(entry.second.join.preparedness);
  });
  begin(choose_nodes(nodes_, room(), generation().has_begun() ? std::nullopt : earlier_.ended(), needed(),
                     [&](const Node& node) { return is_unprepared(node) && (some_stay || !node.member); }),
        now);
}

bool Round::another_may_coordinate() const {
  return std::any_of(nodes_.all().begin(), nodes_.all().end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return node.stream && node.join.may_coordinate && !nodes_.is_in_process(node);
  });
}

void Round::begin(const std::vector<NodeId>& chosen, Instant now) {
  std::vector<Candidate> candidates;
  candidates.reserve(chosen.size());
  for (const NodeId& id : chosen) {
    const Join& join = nodes_.at(id).join;
    candidates.push_back({id, join.address, join.workers, join.master_port, join.hint, join.topology, join.role});
  }
  const bool fixed = options().nodes_min == options().nodes_max;
  // Where the number of nodes is fixed, a node's rank is meant to be its place.
  if (fixed && !same_hints_told_)
    if (auto text = same_hints(candidates)) same_hints_told_ = true, say(Level::warning, std::move(*text));
  // Only survivors keep their place: a node that was lost and has returned is a newcomer.
  std::vector<Member> survivors = generation().members();
  std::erase_if(survivors, [&](const Member& m) { return !nodes_.has(m.node) || !nodes_.at(m.node).member; });
  nodes_.change_members([](Node& n) { n.member = false; });
  if (current_.root_cause.any()) cause_ = current_.root_cause.first()->what;
  enter({earlier_.next_number(), setup_.lineage}, assign(std::move(candidates), survivors, fixed), false, now);
  terms_.begin();
  const std::vector<Member>& members = generation().members();
  actions_.reserve(actions_.size() + members.size() + 2);  // and what is said, and when to wake
  const Key256 key = this->key();
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
    Node& node = nodes_.at(members[rank].node);
    nodes_.change(node, [](Node& n) {
      n.member = true;
      n.ready = n.owes = false;
      n.told = 0;
      n.preparation = {};
    });
    send(node, world_of(rank, key));
  }
  say(Level::info, fmt::format("generation {} begins: {}, {}", to_string(generation().id()), count_of(members.size(), "node"),
                               count_of(generation().seat_of(0).world_size, "worker")));
}

// The one place where a generation begins here, or goes on here: nothing of the last one is left.
void Round::enter(const Generation& generation, std::vector<Member> members, bool adopted, Instant now) {
  std::optional<std::uint32_t> own_place;
  for (std::uint32_t rank = 0; rank < members.size(); ++rank)
    if (nodes_.is_in_process(nodes_.at(members[rank].node))) own_place = rank;
  const std::uint64_t roster = roster_hash(members);
  current_ = {.state = {generation, std::move(members), roster, own_place, now}};
  growth_.begin({static_cast<std::uint32_t>(current_.state.members().size()), current_.state.seat_of(0).world_size}, now);
  budget_.generation_began();
  excluded_.begin();
  forming_.end();
  actions_.emplace_back(BeginGeneration{generation, current_.state.members(), adopted});
}

Key256 Round::key() const {
  ByteWriter text;
  text.put_text("elrun generation");
  text.put(generation().id().number);
  text.put(generation().id().lineage.bits[0]);
  text.put(generation().id().lineage.bits[1]);
  return hmac_sha256(setup_.secret, text.bytes());
}

World Round::world_of(std::uint32_t group_rank, const Key256& key) const {
  const std::vector<Member>& members = generation().members();
  World world{generation().id(),
              key,
              generation().seat_of(group_rank),
              members[group_rank].address,
              members[0].address,
              members[0].master_port,
              budget_.counts(),
              cause_,
              members[group_rank].role,
              generation().own_place(),
              true};
  if (ELRUN_PLANTED(torchrun_d1_replacement_gets_no_address) && !cause_.empty() && group_rank > 0) world.master_address.clear();
  if (ELRUN_PLANTED(torchrun_d2_split_brain) && !cause_.empty() && group_rank > 0) world.master_address = world.address;
  return world;
}

void Round::give_up(Instant now) {
  // Enough are here, but for the workers of some that are starting. That has a deadline of its own, and a node that fails is taken as it is.
  if (!generation().runs() && !recovery_ && nodes_.waiting() < needed() && in_sight() >= needed() && members_are_ready())
    forming_.restart(now);
  const std::optional<Instant> at = forming_.given_up_at(setup_.timeouts.join);
  if (generation().runs() || recovery_ || !at || now < *at || nodes_.waiting() >= needed()) return;
  const bool never = !generation().has_begun() && earlier_.none_is_new();
  decide(never ? exit_never_formed : exit_too_few,
         fmt::format("{} of at least {} nodes were there within {:.3g} s; {}", nodes_.waiting(), needed(), seconds(setup_.timeouts.join),
                     missing()),
         now);
}

void Round::fail(Instant now) {
  const RootCause::Death& first = *current_.root_cause.first();
  std::string report = fmt::format("generation {}: {}; {}", generation().id().number, first.what, current_.root_cause.failing()->why);
  std::vector<std::string> gone;
  for (const auto& [id, why] : generation().lost()) gone.push_back(fmt::format("{} ({})", id.value(), why));
  if (!gone.empty()) report += fmt::format("; gone as well: {}", some_of(gone));
  decide(first.exit_code, std::move(report), now, current_.root_cause.workers());
}

void Round::decide(std::int32_t exit_code, std::string report, Instant now, std::vector<WorkerDeath> deaths) {
  // Why, who coordinates says in its report.
  say(exit_code == 0 ? Level::info : Level::error,
      exit_code == 0 ? std::string{"the job is done"} : fmt::format("the job has failed, exit code {}", exit_code));
  verdict_.give({exit_code, std::move(report), std::move(deaths), generation().id()}, now);
  current_.root_cause.go_on();
  for (const auto& [id, node] : nodes_.all()) {
    send(node, *verdict_.verdict());
    if (ELRUN_PLANTED(torchrun_d18_others_go_on) && exit_code != 0) break;
  }
}

}  // namespace elrun::inline v0
