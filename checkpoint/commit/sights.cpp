#include "checkpoint/commit/sights.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

bool is_older(const CheckpointId& a, const CheckpointId& b) { return std::tie(a.fence, a) < std::tie(b.fence, b); }

void take_newer(std::optional<CheckpointId>& newest, const CheckpointId& id) {
  if (!newest || is_older(*newest, id)) newest = id;
}

/// Of all that this storage itself names.
std::optional<CheckpointId> newest_named(const RootView& view) {
  std::optional<CheckpointId> newest;
  for (const Found& f : view.found)
    if (f.committed || f.quarantined || !f.unreadable.empty()) take_newer(newest, f.id);
  for (const Witness& w : view.witnesses)
    if (!w.is_outside) take_newer(newest, w.id);
  return newest;
}

/// What a rank sees and the leader does not, and what the leader sees in its place.
struct Unlike {
  std::string rank_sees, leader_sees;
};

std::optional<Unlike> difference(const RootView& leaders, const RootSight& sees) {
  const std::string run = sees.root.empty() ? std::string{} : fmt::format(" of run {}", sees.root);
  if (!sees.root.empty() && sees.root != leaders.root)
    return Unlike{sees.newest ? fmt::format("checkpoint {}{}", to_string(*sees.newest), run) : fmt::format("the root{}", run),
                  leaders.root.empty() ? "no run" : fmt::format("the root of run {}", leaders.root)};
  if (const auto newest = newest_named(leaders); sees.newest && (!newest || is_older(*newest, *sees.newest)))
    return Unlike{fmt::format("checkpoint {}{}", to_string(*sees.newest), run),
                  newest ? fmt::format("nothing newer than {}", to_string(*newest)) : "no checkpoint"};
  if (sees.fence > leaders.newest_fence)
    return Unlike{fmt::format("fence {}{}", sees.fence, run),
                  leaders.newest_fence > 0 ? fmt::format("none above {}", leaders.newest_fence) : "none"};
  return std::nullopt;
}

std::string on(const std::string& node) { return node.empty() ? std::string{} : fmt::format(" (node {})", node); }

}  // namespace

RootSight root_sight(std::string root, std::span<const std::string> names) {
  RootSight sight{.root = std::move(root)};
  for (const std::string& name : names) {
    if (const auto number = parse_fence_number(name); number && name == fence_name(*number)) sight.fence = std::max(sight.fence, *number);
    if (const auto id = parse_acknowledgement_name(name)) take_newer(sight.newest, *id);
  }
  return sight;
}

Result<void> see_one_storage(const RootView& leaders, const Sights& others) {
  const RankSight* first = nullptr;
  std::optional<Unlike> unlike;
  std::size_t count = 0;
  for (const RankSight& rank : others.ranks) {
    auto differs = difference(leaders, rank.sees);
    if (!differs) continue;
    if (++count == 1) first = &rank, unlike = std::move(differs);
  }
  if (first == nullptr) return {};
  std::string what = fmt::format("rank {}{} sees {} under {}, and rank 0{} sees {} there", first->rank, on(first->node), unlike->rank_sees,
                                 leaders.where, on(others.leaders_node), unlike->leader_sees);
  if (count > 1) what += fmt::format(" ({} of {} ranks see what rank 0 does not)", count, others.ranks.size() + 1);
  what += ". A job never starts over or goes back silently: mount the same storage on all nodes";
  return Failure{Code::not_found, others.looks < looks_max ? Remedy::retry : Remedy::fix_config, std::move(what)};
}

bool may_be_seen_yet(const Failure& why) { return why.code == Code::not_found && why.remedy == Remedy::retry; }

}  // namespace elrun::inline v0
