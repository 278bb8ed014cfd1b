// Round: what happens when two members cannot reach each other although both reach this coordinator, and when excluded nodes may
// come back.
#include "rendezvous/round/round.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

const Member& Round::member_of(std::uint32_t rank) const {
  const auto after =
      std::upper_bound(members_.begin(), members_.end(), rank, [](std::uint32_t r, const Member& m) { return r < m.base_rank; });
  return *(after - 1);  // the first one's is 0
}

// A worker reports a peer that it cannot reach. If the peer or its node has died, the coordinator knows before this report comes:
// a worker gives up a connection only after 15 s.
void Round::note_apart(const Node& node, const PeerUnreachable& said, Instant now) {
  const NodeId& me = node.join.who.node;
  if (said.peer >= seat_of(0).world_size) return;
  const NodeId& peer = member_of(said.peer).node;
  if (peer == me || done_.contains(me) || done_.contains(peer)) return;
  if (!apart_) {
    apart_ = Apart{now, now + apart_gather, {}, said, me};
    say(Level::warning,
        fmt::format("rank {} (node {}) cannot reach rank {} (node {}): {}", said.rank, me.value(), said.peer, peer.value(), said.what));
  }
  if (apart_->pairs.size() < apart_max) apart_->pairs.insert(std::minmax(me, peer));
}

bool Round::heard_since(const NodeId& id, Instant then) const {
  const NodeTable::Stream* const stream = nodes_.stream_of(id);
  return stream != nullptr && (stream->in_process || stream->heard > then);
}

// Waits until both nodes of each pair were heard of since the first report. A node that is silent here too will soon count as lost,
// and that is the better explanation.
void Round::judge_apart(Instant now) {
  if (!apart_ || now < apart_->look_at) return;
  for (const auto& [a, b] : apart_->pairs)
    for (const NodeId& id : {a, b})
      if (!heard_since(id, apart_->since)) return void(apart_->look_at = now + setup_.timeouts.reconnect_grace);
  part(now);
}

// Ends the generation. If the other nodes satisfy the minimum, as few nodes as possible are excluded, and no restart is used up, as
// when a node is lost. If not, all nodes try again, and each try uses up one restart.
void Round::part(Instant now) {
  const Apart apart = *std::exchange(apart_, {});
  budget_.note_job(apart.first.is_job);
  std::vector<NodeId> order;
  for (const Member& m : members_) order.push_back(m.node);
  // Earlier pairs, of which one node is excluded already, are judged again. If the partner turns out to be cut from more nodes, the
  // partner is excluded and the first node comes back.
  std::set<ApartNodes> all = apart.pairs;
  std::set<NodeId> returning;
  for (const auto& [id, node] : nodes_.all())
    if (const Exclusion* why = exclusions_.of(id, node.join.who.number); why != nullptr && !why->apart_from.empty()) {
      for (const NodeId& partner : why->apart_from) all.insert(std::minmax(id, partner));
      returning.insert(id);
    }
  std::vector<NodeId> out = whom_to_exclude(all, order, own_place_ ? std::optional{order[*own_place_]} : std::nullopt);
  std::erase_if(out, [&](const NodeId& id) { return returning.erase(id) > 0; });  // it stays out
  const Exclusions before = exclusions_;
  for (const NodeId& id : returning) exclusions_.let_in(id, now), note_kept_out(id, now);
  const auto others = std::count_if(nodes_.all().begin(), nodes_.all().end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return node.stream && node.join.workers > 0 && !node.excluded && std::find(out.begin(), out.end(), entry.first) == out.end();
  });
  std::vector<std::string> pairs;
  for (const auto& [a, b] : apart.pairs) pairs.push_back(fmt::format("{} and {}", a.value(), b.value()));
  std::string text = fmt::format("nodes {} cannot reach each other, though both reach the coordinator (rank {} on node {}: {})",
                                 some_of(pairs), apart.first.rank, apart.by.value(), apart.first.what);
  if (static_cast<std::size_t>(others) < needed() || ELRUN_PLANTED(cut_costs_a_restart)) {
    exclusions_ = before;
    for (const NodeId& id : returning) note_kept_out(id, now);
    // Workers that ended before this did so because of the unreachable peer. The exit code of the first of them is reported.
    const std::int32_t exit_code = root_cause_.any() ? root_cause_.first()->exit_code : 1;
    RootCause::Death death{apart.since, exit_code, text, {}};
    death.worker.node = apart.by;
    death.worker.generation = generation_;
    death.worker.rank = apart.first.rank;
    death.worker.local_rank = apart.first.rank - member_of(apart.first.rank).base_rank;
    if (std::optional<RootCause::Death> same = root_cause_.take(apart.by, death.worker.local_rank)) death.worker = std::move(same->worker);
    root_cause_.report(std::move(death));
    text += fmt::format("; without one of them fewer than {} would be left", count_of(needed(), "node"));
    budget_.end_row();
    return charge(
        EndCause::unreachable,
        {Code::peer_lost, Remedy::rejoin, std::move(text), Rank{apart.first.rank}, Rank{apart.first.peer}, generation_, apart.by.value()},
        exit_code, now);
  }
  root_cause_.forget_deaths();
  std::vector<std::string> names;
  Duration longest{};
  for (const NodeId& id : out) {
    std::set<NodeId> from;
    for (const auto& [a, b] : all)
      if (a == id || b == id) from.insert(a == id ? b : a);
    std::vector<std::string> partners;
    for (const NodeId& partner : from) partners.push_back(partner.value());
    keep_out(id, fmt::format("it and {} cannot reach each other", some_of(partners)), std::move(from), now);
    longest = std::max(longest, exclusions_.of(id, nodes_.at(id).join.who.number)->until - now);
    names.push_back(id.value());
  }
  for (const NodeId& id : returning)
    say(Level::info, fmt::format("node {} was kept out, and is tried again: those that it could not reach are kept out", id.value()));
  text += fmt::format("; the job goes on without {}, which {} tried again in {:.0f} s", some_of(names), names.size() == 1 ? "is" : "are",
                      seconds(longest));
  revoke(
      EndCause::unreachable,
      {Code::peer_lost, Remedy::rejoin, std::move(text), Rank{apart.first.rank}, Rank{apart.first.peer}, generation_, out.front().value()},
      now);
}

void Round::keep_out(const NodeId& id, std::string why, std::set<NodeId> apart_from, Instant now) {
  exclusions_.exclude(id, nodes_.at(id).join.who.number, std::move(why), std::move(apart_from), now);
  note_kept_out(id, now);
}

void Round::let_in(const NodeId& id, Instant now) {
  exclusions_.let_in(id, now);
  note_kept_out(id, now);
  if (nodes_.has(id)) say(Level::info, fmt::format("node {} was kept out, and is tried again", id.value()));
}

// Lets nodes in whose exclusion has ended: its time is over, or the nodes that they could not reach are gone.
void Round::let_in_due(Instant now) {
  for (const NodeId& id : exclusions_.due(now)) let_in(id, now);
}

// Lets excluded nodes in when the minimum cannot be satisfied without them: to try is better than to wait. If there are too few nodes
// even with them, they stay out.
void Round::let_in_needed(Instant now) {
  if (!living_members_all_ready() || !exclusions_.any()) return;
  std::vector<std::pair<Instant, NodeId>> out;
  for (const auto& [id, node] : nodes_.all())
    if (const Exclusion* why = exclusions_.of(id, node.join.who.number);
        why != nullptr && node.ready && node.stream && node.join.workers > 0)
      out.emplace_back(why->until, id);
  if (nodes_.waiting() + out.size() < needed()) return;
  std::sort(out.begin(), out.end());
  for (std::size_t i = 0; i < out.size() && nodes_.waiting() < needed(); ++i) let_in(out[i].second, now);
}

}  // namespace elrun::inline v0
