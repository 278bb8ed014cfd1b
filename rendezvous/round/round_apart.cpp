// Round: what happens when two members cannot reach each other although both reach this coordinator, and when excluded nodes may
// come back.
#include "rendezvous/round/round.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

// A worker reports a peer that it cannot reach. If the peer or its node has died, the coordinator knows before this report comes:
// a worker gives up a connection only after 15 s.
void Round::note_unreachable(const NodeId& id, const PeerUnreachable& said, Instant now) {
  const std::uint32_t world_size = generation().seat_of(0).world_size;
  if (said.peer >= world_size || said.rank >= world_size || generation().member_of(said.rank).node != id) return;
  const NodeId& peer = generation().member_of(said.peer).node;
  if (peer == id || generation().is_done(id) || generation().is_done(peer)) return;
  if (current_.unreachable.note(id, peer, said, now))
    say(Level::warning,
        fmt::format("rank {} (node {}) cannot reach rank {} (node {}): {}", said.rank, id.value(), said.peer, peer.value(), said.what));
}

// Ends the generation. If the other nodes satisfy the minimum, as few nodes as possible are excluded, and no restart is used up, as
// when a node is lost. If not, all nodes try again, and each try uses up one restart.
void Round::separate_unreachable(Instant now) {
  const UnreachablePairs::Report report = current_.unreachable.take();
  budget_.note_job(report.first.is_job);
  std::vector<NodeId> order;
  for (const Member& m : generation().members()) order.push_back(m.node);
  const auto own = generation().own_place();
  const Separation separation =
      separate(report.pairs, excluded_.unreachable(nodes_), order, own ? std::optional{order[*own]} : std::nullopt);
  const std::vector<NodeId>& out = separation.out;
  const ExcludedNodes before = excluded_;
  for (const NodeId& id : separation.coming_back) excluded_.let_in(id, nodes_, now);
  const auto others = std::count_if(nodes_.all().begin(), nodes_.all().end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return node.stream && node.join.workers > 0 && !node.excluded && std::find(out.begin(), out.end(), entry.first) == out.end();
  });
  std::vector<std::string> pairs;
  for (const auto& [a, b] : report.pairs) pairs.push_back(fmt::format("{} and {}", a.value(), b.value()));
  std::string text = fmt::format("nodes {} cannot reach each other, though both reach the coordinator (rank {} on node {}: {})",
                                 some_of(pairs), report.first.rank, report.by.value(), report.first.what);
  if (static_cast<std::size_t>(others) < needed() || ELRUN_PLANTED(cut_costs_a_restart)) {
    excluded_ = before;
    for (const NodeId& id : separation.coming_back) excluded_.mark(id, nodes_, now);
    // Workers that ended before this did so because of the unreachable peer. The exit code of the first of them is reported.
    const std::int32_t exit_code = current_.root_cause.any() ? current_.root_cause.first()->exit_code : 1;
    RootCause::Death death{report.since, exit_code, text, {}};
    death.worker.node = report.by;
    death.worker.generation = generation().id();
    death.worker.rank = report.first.rank;
    death.worker.local_rank = report.first.rank - generation().member_of(report.first.rank).base_rank;
    if (std::optional<RootCause::Death> same = current_.root_cause.take(report.by, death.worker.local_rank))
      death.worker = std::move(same->worker);
    current_.root_cause.report(std::move(death));
    text += fmt::format("; without one of them fewer than {} would be left", count_of(needed(), "node"));
    budget_.end_row();
    return charge(EndCause::unreachable,
                  {Code::peer_lost, Remedy::rejoin, std::move(text), Rank{report.first.rank}, Rank{report.first.peer}, generation().id(),
                   report.by.value()},
                  exit_code, now);
  }
  current_.root_cause.forget_deaths();
  std::vector<std::string> names;
  Duration longest{};
  for (const NodeId& id : out) {
    std::set<NodeId> from = separation.partners_of(id);
    std::vector<std::string> partners;
    for (const NodeId& partner : from) partners.push_back(partner.value());
    std::string why = fmt::format("it and {} cannot reach each other", some_of(partners));
    longest = std::max(longest, excluded_.exclude_unreachable(id, std::move(why), std::move(from), nodes_, now));
    names.push_back(id.value());
  }
  for (const NodeId& id : separation.coming_back)
    say(Level::info, fmt::format("node {} is admitted again: the nodes that it could not reach are now excluded", id.value()));
  text += fmt::format("; the job goes on without {}, which {} tried again in {:.0f} s", some_of(names), names.size() == 1 ? "is" : "are",
                      seconds(longest));
  revoke(EndCause::unreachable,
         {Code::peer_lost, Remedy::rejoin, std::move(text), Rank{report.first.rank}, Rank{report.first.peer}, generation().id(),
          out.front().value()},
         now);
}

void Round::let_in(const NodeId& id, Instant now) {
  excluded_.let_in(id, nodes_, now);
  if (nodes_.has(id)) say(Level::info, fmt::format("node {} was excluded, and is admitted again", id.value()));
}

// Lets excluded nodes in when the minimum cannot be satisfied without them: to try is better than to wait.
void Round::let_in_needed(Instant now) {
  if (!members_are_ready()) return;
  const std::size_t missing = needed() - std::min<std::size_t>(nodes_.coming(), needed());
  for (const NodeId& id : excluded_.let_in_needed(missing, nodes_))
    if (in_sight() < needed()) let_in(id, now);
}

}  // namespace elrun::inline v0
