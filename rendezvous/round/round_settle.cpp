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

void Round::settle(Instant now) {
  lose_the_silent(now);
  settle_claims(now);
  if (const auto& failing = root_cause_.failing(); failing && (living_members_all_ready() || now >= failing->until)) fail(now);
  if (!verdict_ && !root_cause_.failing() && options_) {
    if (recovery_ && now >= recovery_->until()) end_recovery(std::string{recovery_->why()}, now);
    judge_what_was_put_off(now);
    end_exclusions(now);
    judge_starting(now);
    judge_apart(now);
    let_in_due(now);
    grow(now);
    form(now);
    give_up(now);
  }
  if (!verdict_ && options_) explain(now);
  if (verdict_) tell_of_linger(now);
  wake(now);
}

// Collectives fail within milliseconds when a peer's node dies, before the node is known to be lost. What a member's loss
// did is free of charge.
void Round::excuse(const NodeId& lost) {
  if (!root_cause_.explains(lost)) return;
  take_back_failure();
  if (!budget_.refund()) return;
  const bool would_fail = root_cause_.failing().has_value();
  root_cause_.go_on();
  say(Level::info, fmt::format("{}: after node {} was lost, and no failure of its own{}", root_cause_.first()->what, lost.value(),
                               would_fail ? "; the job goes on" : ""));
}

void Round::lose_the_silent(Instant now) {
  if (ELRUN_PLANTED(torchrun_d6_lost_node_unnoticed)) return;
  std::vector<std::pair<NodeId, std::string>> gone;
  const NodeTable::Silent silent = nodes_.silent(setup_.timeouts.heartbeat_limit, now);
  for (const StreamNumber stream : silent.streams) {
    actions_.emplace_back(CloseStream{stream});
    nodes_.close(stream);
  }
  for (const NodeId& id : silent.nodes)
    gone.emplace_back(id, fmt::format("nothing was heard of it for {:.3g} s", seconds(setup_.timeouts.heartbeat_limit)));
  if (!deserted(now) && !verdict_)
    for (const auto& [at, id] : nodes_.broken()) {
      if (at + setup_.timeouts.reconnect_grace > now && !ELRUN_PLANTED(no_grace_to_reconnect)) break;
      const Duration waited = now >= deserted_until_ && deserted_until_ > at ? deserted_until_ - at : setup_.timeouts.reconnect_grace;
      gone.emplace_back(id, fmt::format("its stream broke and it did not return within {:.3g} s", seconds(waited)));
    }
  if (revoked_ && !verdict_ && nodes_.late() > 0 && now >= return_by_)
    for (const auto& [id, node] : nodes_.all())
      if (node.is_late()) gone.emplace_back(id, fmt::format("it did not end its workers of generation {} in time", to_string(generation_)));
  for (const auto& [id, why] : gone)
    if (nodes_.has(id)) lose(id, why, now);
}

void Round::lose(const NodeId& id, const std::string& why, Instant now) {
  const Node& node = nodes_.at(id);
  const bool member = node.member, done = done_.contains(id);
  const Former former{node.join.who.number, node.newest};
  remove(id, true, now);
  if (verdict_) return;
  say(member ? Level::warning : Level::info, fmt::format("node {} is lost: {}", id.value(), why), !member);
  if (!member) return;
  lost_[id] = why;
  start_watch_.remove(id);
  excuse(id);
  if (former_.size() >= former_max) former_.erase(former_.begin());
  former_.insert_or_assign(id, former);
  if (runs() && !done)  // whoever has done its part may go
    revoke(EndCause::loss,
           {Code::peer_lost, Remedy::rejoin, fmt::format("node {} is lost: {}", id.value(), why), {}, {}, generation_, id.value()}, now);
}

void Round::remove(const NodeId& id, bool close, Instant now) {
  if (const auto stream = nodes_.at(id).stream; stream && close) {
    actions_.emplace_back(CloseStream{*stream});
    nodes_.close(*stream);
  }
  if (recovery_) recovery_->remove(id);
  exclusions_.gone(id, now);
  failures_.close(id);
  nodes_.erase(id);
  if (!nodes_.all().empty()) return;
  forming_since_.reset();
  recovery_.reset();
  if (generation_.number == 0) {  // nothing was begun: the next node sets the options
    options_.reset();
    run_ = setup_.run;
  }
}

void Round::revoke(EndCause cause, Failure why, Instant now) {
  ELRUN_ASSERT(runs());
  revoked_ = true;
  unjudged_.reset();
  start_watch_.end();
  apart_.reset();
  cause_ = why.what;
  budget_.generation_ended(cause);
  forming_since_ = now;
  if (nodes_.all().empty()) forming_since_.reset();
  enough_since_.reset();
  // Workers are asked, then killed; a node that is still silent about it after all that is not coming back.
  return_by_ = now + setup_.timeouts.revocation + setup_.timeouts.stop_grace + setup_.timeouts.heartbeat_limit;
  say(is_failure(cause) ? Level::warning : Level::info, fmt::format("generation {} is over: {}", to_string(generation_), why.what));
  actions_.emplace_back(EndGeneration{why.what});
  actions_.reserve(actions_.size() + members_.size() + 1);  // and when to wake
  nodes_.change_members([](Node& n) { n.owes = !ELRUN_PLANTED(forms_before_acknowledged), n.ready = n.ready || !n.owes; });
  for (const auto& [id, node] : nodes_.all())
    if (node.member) send(node, Revoke{generation_, why, cause});
}

// A newcomer and room for it, or more workers of a member: the generation ends, free of charge, to begin again with them.
// Not while a member is done, for its work would be done twice.
std::optional<Instant> Round::growth_at() const {
  if (!runs() || !done_.empty()) return {};
  const bool can_take = members_.size() < room() && !nodes_.newcomers().empty();
  return growth_.at(began_, can_take ? std::optional{nodes_.newcomers().begin()->first} : std::nullopt);
}

void Round::grow(Instant now) {
  const auto at = growth_at();
  if (!at || now < *at) return;
  std::vector<std::string> names;
  if (members_.size() < room())
    for (const auto& [arrived, id] : nodes_.newcomers()) names.push_back(id.value());
  for (const NodeId& id : growth_.offers()) names.push_back(fmt::format("workers of {}", id.value()));
  growth_.grew();
  // The code is for agents of earlier versions, which do not read the cause.
  revoke(EndCause::growth,
         {Code::generation_over, Remedy::rejoin, fmt::format("the world grows by {}", some_of(names)), {}, {}, generation_}, now);
}

// When those who wait are a world. Last call is for the first one of a job: where a generation was over before this coordinator
// came, it is waited for whoever is left of that, who is on the way, and no longer than until their workers are gone.
Instant Round::closes_at() const {
  const bool first_formation = nodes_.newcomers().size() == nodes_.waiting();
  if (!first_formation || nodes_.waiting() >= room()) return *enough_since_;
  if (!ended_ || generation_.number != 0 || nodes_.waiting() < nodes_.connected()) return *enough_since_ + options().last_call;
  if (whoever_is_left_waits()) return *enough_since_;
  return *enough_since_ + std::min(options().last_call, reconnect_window);
}

// All nodes of the generation that was over, or all but the one in whose process it was coordinated.
bool Round::whoever_is_left_waits() const {
  if (nodes_.waiting() + 1 < ended_nodes_) return false;
  std::set<std::uint32_t> here;
  std::set<std::optional<std::uint32_t>> coordinators;
  for (const auto& [id, node] : nodes_.all()) {
    if (!node.is_waiting() || node.join.last != *ended_ || !node.join.seat) continue;
    here.insert(node.join.seat->group_rank);
    coordinators.insert(node.join.coordinated_by);
  }
  if (here.size() >= ended_nodes_) return true;
  if (here.size() + 1 < ended_nodes_ || coordinators.size() != 1) return false;
  const std::optional<std::uint32_t>& missing = *coordinators.begin();
  return missing && *missing < ended_nodes_ && !here.contains(*missing);
}

void Round::form(Instant now) {
  if (runs() || recovery_ || now < hold_until_ || now < budget_.pause_until()) return;
  if (nodes_.waiting() < needed()) lift_exclusions(now);
  if (nodes_.waiting() < needed() && nodes_.waiting() + excluded_here() < needed()) let_in_needed(now);
  if (nodes_.waiting() < needed()) return enough_since_.reset();
  if (!enough_since_) enough_since_ = now;
  // The promise that the whole system rests on: nobody begins the next generation while a living member may still act
  // for the last one.
  if (!living_members_all_ready()) return;
  if (setup_.elected && own_node_left_) {
    if (!std::exchange(handed_over_, true)) actions_.emplace_back(HandOver{});
    return;
  }
  if (now < closes_at()) return;
  const bool first_formation = nodes_.newcomers().size() == nodes_.waiting();
  std::vector<NodeId> chosen;
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes_.all())
    if (node.member && node.is_waiting()) chosen.push_back(id), hints.insert(node.join.hint);
  // Of two incarnations of one place the later comes first: the earlier one is probably on its way out.
  std::vector<NodeId> others, twins;
  std::map<std::int32_t, NodeId> latest;
  for (const auto& [arrived, id] : nodes_.newcomers()) latest.insert_or_assign(nodes_.at(id).join.hint, id);
  for (const auto& [arrived, id] : nodes_.newcomers()) {
    const std::int32_t hint = nodes_.at(id).join.hint;
    const bool twin = hint >= 0 && (hints.contains(hint) || latest.at(hint) != id);
    (twin ? twins : others).push_back(id);
  }
  for (const auto* more : {&others, &twins})
    for (const NodeId& id : *more)
      if (chosen.size() < room() && !(ELRUN_PLANTED(spare_never_used) && !first_formation)) chosen.push_back(id);
  begin(std::move(chosen), now);
}

void Round::begin(std::vector<NodeId> chosen, Instant now) {
  progress_told_.reset();
  std::vector<Candidate> candidates;
  candidates.reserve(chosen.size());
  for (const NodeId& id : chosen) {
    const Join& join = nodes_.at(id).join;
    candidates.push_back({id, join.address, join.workers, join.master_port, join.hint, join.topology, join.role});
  }
  tell_of_same_hints(candidates);
  // Only survivors keep their place: a node that was lost and has returned is a newcomer.
  std::erase_if(members_, [&](const Member& m) { return !nodes_.has(m.node) || !nodes_.at(m.node).member; });
  nodes_.change_members([](Node& n) { n.member = false; });
  members_ = assign(std::move(candidates), members_, options().nodes_min == options().nodes_max);
  roster_ = roster_hash(members_);
  note_own_place();
  generation_ = {ELRUN_PLANTED(generation_number_reused) ? std::max<std::uint64_t>(floor_, 1) : ++floor_, setup_.lineage};
  revoked_ = false;
  began_ = now;
  deserted_until_ = {};
  done_.clear();
  growth_.begin();
  if (root_cause_.any()) cause_ = root_cause_.first()->what;
  root_cause_.begin();
  budget_.generation_began();
  stepped_ = false;
  failures_.begin();
  unjudged_.reset();
  unseen_.clear();
  start_watch_.begin();
  lost_.clear();
  refused_.clear();
  enough_since_.reset();
  lift_told_ = false;
  forming_since_.reset();
  actions_.emplace_back(BeginGeneration{generation_, members_});
  actions_.reserve(actions_.size() + members_.size() + 2);  // and what is said, and when to wake
  const Key256 key = this->key();
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    Node& node = nodes_.at(members_[rank].node);
    nodes_.change(node, [](Node& n) {
      n.member = true;
      n.ready = n.owes = false;
      n.told = 0;
    });
    send(node, world_of(rank, key));
  }
  say(Level::info, fmt::format("generation {} begins: {}, {}", to_string(generation_), count_of(members_.size(), "node"),
                               count_of(seat_of(0).world_size, "worker")));
}

// Where the number of nodes is fixed, a node's rank is meant to be its place.
void Round::tell_of_same_hints(const std::vector<Candidate>& candidates) {
  if (same_hints_told_ || options().nodes_min != options().nodes_max) return;
  std::map<std::int32_t, const NodeId*> nodes;
  for (const Candidate& c : candidates) {
    if (c.hint < 0) continue;
    const auto [other, fresh] = nodes.try_emplace(c.hint, &c.node);
    if (fresh) continue;
    say(Level::warning,
        fmt::format(
            "nodes {} and {} both have the node rank {} (--node_rank, or the number in the host's name): they are ranked by name; give each its own",
            other->second->value(), c.node.value(), c.hint));
    same_hints_told_ = true;
    return;
  }
}

Key256 Round::key() const {
  ByteWriter text;
  text.put_text("elrun generation");
  text.put(generation_.number);
  text.put(generation_.lineage.bits[0]);
  text.put(generation_.lineage.bits[1]);
  return hmac_sha256(setup_.secret, text.bytes());
}

Seat Round::seat_of(std::uint32_t group_rank) const {
  return {group_rank, members_[group_rank].base_rank, static_cast<std::uint32_t>(members_.size()),
          members_.back().base_rank + members_.back().workers, roster_};
}

void Round::note_own_place() {
  own_place_.reset();
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (nodes_.is_in_process(nodes_.at(members_[rank].node))) own_place_ = rank;
  }
}

World Round::world_of(std::uint32_t group_rank, const Key256& key) const {
  World world{generation_,
              key,
              seat_of(group_rank),
              members_[group_rank].address,
              members_[0].address,
              members_[0].master_port,
              budget_.counts(),
              cause_,
              members_[group_rank].role,
              own_place_,
              true};
  if (ELRUN_PLANTED(torchrun_d1_replacement_gets_no_address) && !cause_.empty() && group_rank > 0) world.master_address.clear();
  if (ELRUN_PLANTED(torchrun_d2_split_brain) && !cause_.empty() && group_rank > 0) world.master_address = world.address;
  return world;
}

void Round::give_up(Instant now) {
  if (runs() || recovery_ || !forming_since_ || nodes_.waiting() >= needed()) return;
  if (now < *forming_since_ + setup_.timeouts.join) return;
  const bool never = generation_.number == 0 && floor_ == setup_.generation_floor;
  decide(never ? exit_never_formed : exit_too_few,
         fmt::format("{} of at least {} nodes were there within {:.3g} s; {}", nodes_.waiting(), needed(), seconds(setup_.timeouts.join),
                     missing()),
         now);
}

void Round::fail(Instant now) {
  const RootCause::Death& first = *root_cause_.first();
  std::string report = fmt::format("generation {}: {}; {}", generation_.number, first.what, root_cause_.failing()->why);
  std::vector<std::string> gone;
  for (const auto& [id, why] : lost_) gone.push_back(fmt::format("{} ({})", id.value(), why));
  if (!gone.empty()) report += fmt::format("; gone as well: {}", some_of(gone));
  decide(first.exit_code, std::move(report), now, root_cause_.workers());
}

void Round::decide(std::int32_t exit_code, std::string report, Instant now, std::vector<WorkerDeath> deaths) {
  // Why, who coordinates says in its report.
  say(exit_code == 0 ? Level::info : Level::error,
      exit_code == 0 ? std::string{"the job is done"} : fmt::format("the job has failed, exit code {}", exit_code));
  verdict_ = Verdict{exit_code, std::move(report), std::move(deaths), generation_};
  root_cause_.go_on();
  verdict_at_ = now;
  for (const auto& [id, node] : nodes_.all()) {
    send(node, *verdict_);
    if (ELRUN_PLANTED(torchrun_d18_others_go_on) && exit_code != 0) break;
  }
}

}  // namespace elrun::inline v0
