// Round: what nodes are told.
#include "rendezvous/round/round.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

std::string Round::missing() const {
  std::string text = nodes_.waiting() < needed() ? fmt::format("missing: at least {}", needed() - nodes_.waiting())
                                                 : fmt::format("room for {} more", room() - nodes_.waiting());
  // Where every node says which one it is, the absent have names.
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes_.all())
    if (node.ready && node.stream) hints.insert(node.join.hint);
  const auto places = static_cast<std::int32_t>(options().nodes_max);
  if (!hints.empty() && *hints.begin() >= 0 && *hints.rbegin() < places && hints.size() == nodes_.waiting() + nodes_.observers()) {
    std::vector<std::string> absent;
    for (std::int32_t rank = 0; rank < places && absent.size() <= names_max; ++rank)
      if (!hints.contains(rank)) absent.push_back(std::to_string(rank));
    if (!absent.empty()) text += fmt::format(" (node rank {})", some_of(absent));
  }
  std::vector<std::string> lost;
  for (const auto& [id, why] : generation().lost())
    if (!nodes_.has(id)) lost.push_back(fmt::format("{} ({})", id.value(), why));
  if (!lost.empty()) text += fmt::format("; gone: {}", some_of(lost));
  std::vector<std::string> refused;
  for (const auto& [id, why] : terms_.refused()) refused.push_back(fmt::format("{} ({})", id.value(), why));
  if (!refused.empty()) text += fmt::format("; refused: {}", some_of(refused));
  const std::vector<std::string> excluded = excluded_.unreachable_texts(nodes_);
  if (!excluded.empty()) text += fmt::format("; excluded: {}", some_of(excluded));
  return text;
}

StatusMessages::Reason Round::reason(Instant now) const {
  if (recovery_)
    return {fmt::format("generation {} of another coordinator: {} of {} nodes are here", to_string(recovery_->generation()),
                        recovery_->seats().size(), recovery_->nodes()),
            recovery_->until(), "it ends unless all come"};
  if (generation().runs()) {
    if (const auto at = growth_at(); at && generation().members().size() < room())
      return {fmt::format("generation {} runs", to_string(generation().id())), at, "it makes room for newcomers"};
    if (generation().is_deserted(now) && std::none_of(generation().members().begin(), generation().members().end(),
                                                      [&](const Member& m) { return nodes_.has(m.node) && nodes_.at(m.node).stream; }))
      return {fmt::format("generation {} lost all of its {} at once; they may come back", to_string(generation().id()),
                          count_of(generation().members().size(), "node")),
              generation().deserted_until(), "they count as lost"};
    return {fmt::format("generation {} runs with {}; this node is a spare", to_string(generation().id()),
                        count_of(generation().members().size(), "node")),
            {},
            {}};
  }
  if (generation().is_revoked() && !members_are_ready()) {
    std::vector<std::string> late;
    Instant all_by = generation().return_by();
    for (const auto& [id, node] : nodes_.all()) {
      if (!node.is_late()) continue;
      late.push_back(id.value());
      all_by = std::max(all_by, generation().revoked_at() + workers_end_within(node.join));
    }
    return {fmt::format("waiting for {} to end the workers of generation {}", some_of(late), to_string(generation().id())), all_by,
            "they count as lost"};
  }
  if (nodes_.waiting() < needed() && in_sight() >= needed()) {
    std::vector<std::string> names;
    Instant all_by{};
    for (const NodeId& id : nodes_.preparations())
      if (const Node& node = nodes_.at(id); node.is_coming()) names.push_back(id.value()), all_by = std::max(all_by, prepared_by(node));
    return {fmt::format("{} of {} nodes; waiting for workers of {} to start", nodes_.waiting(), needed(), some_of(names)), all_by,
            "they count as failed"};
  }
  if (nodes_.waiting() < needed())
    return {fmt::format("{} of {} nodes; {}", nodes_.waiting(), needed(), missing()), forming_.given_up_at(setup_.timeouts.join),
            "the job is given up"};
  if (now < budget_.pause_until())
    return {fmt::format("the workers failed {} times in a row with exit code {} within {:.0f} s of their start", budget_.row(),
                        budget_.row_exit_code(), seconds(start_over_within)),
            budget_.pause_until(), "they are started again"};
  if (!forming_.enough_since())
    return {"a generation that another coordinator began may still run", earlier_.hold_until(), "another one begins"};
  if (earlier_.ended() && !generation().has_begun())
    return {fmt::format("generation {} of {} is over; {} here so far", to_string(*earlier_.ended()),
                        count_of(earlier_.ended_nodes(), "node"), nodes_.waiting()),
            closes_at(), "the others begin the next one"};
  return {fmt::format("{} of {} nodes; {}", nodes_.waiting(), room(), missing()), closes_at(), "last call ends"};
}

void Round::explain(Instant now) {
  if (!status_.due(now)) return;
  const StatusMessages::Reason why = reason(now);
  const std::uint64_t number = status_.number_of(why);
  std::string text = why.why;
  if (why.until) text += fmt::format("; {} in {:.0f} s", why.then, std::ceil(seconds(*why.until - now)));
  std::size_t told = 0;
  for (const auto& [id, node] : nodes_.all()) {
    const bool waits = node.stream && (node.ready || recovery_) && !(node.member && generation().runs());
    if (!waits || node.told == number) continue;
    nodes_.at(id).told = number;
    send(node, Waiting{.why = node.excluded         ? excluded_.why(node, now)
                              : node.is_preparing() ? "the workers of this node start beside the others, and join when they are ready"
                              : node.join.workers == 0 && generation().runs()
                                  ? fmt::format("generation {} runs with {}; this node has no workers, it only coordinates",
                                                to_string(generation().id()), count_of(generation().members().size(), "node"))
                                  : text,
                       .running = running().value_or(Generation{})});
    ++told;
  }
  status_.sent(told, now);
}

void Round::refuse(StreamNumber stream, Failure why) {
  say(Level::warning, "refused: " + why.what, true);
  send(stream, Refused{std::move(why)});
  actions_.emplace_back(CloseStream{stream});
  const std::optional<NodeId> node = nodes_.stream(stream).node;
  nodes_.close(stream);
  if (!node) return;
  nodes_.change(nodes_.at(*node), [](Node& n) {
    n.stream.reset();
    n.broken = Instant{};  // no grace: it is not welcome back as it is
  });
}

void Round::tell_members(const std::string& why, const std::set<NodeId>& waited_for) {
  for (const Member& m : generation().members())
    if (const Node* node = nodes_.find(m.node))
      send(*node, Waiting{.why = why, .running = generation().id(), .for_this_node = waited_for.contains(m.node)});
}

void Round::send(const Node& node, CoordinatorMessage message) {
  if (node.stream) send(*node.stream, std::move(message));
}

}  // namespace elrun::inline v0
