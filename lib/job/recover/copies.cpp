#include "lib/job/recover/copies.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace elrun::inline v0 {

namespace {

bool any_knew(std::span<const MemberStatus> statuses, Copies where) {
  return std::ranges::find(statuses, where, &MemberStatus::copies) != statuses.end();
}

}  // namespace

// Of two nodes or more each has all of the state beside the others' (`mirror` in shard_map.cpp).
Copies copies_of(std::span<const MemberStatus> statuses) {
  if (std::ranges::any_of(statuses, [&](const MemberStatus& s) { return s.node != statuses.front().node; })) return Copies::apart;
  return any_knew(statuses, Copies::apart) || any_knew(statuses, Copies::together) ? Copies::together : Copies::never_apart;
}

std::optional<CopiesLine> copies_line(std::span<const MemberStatus> statuses, std::string_view placement) {
  switch (copies_of(statuses)) {
    case Copies::never_apart: return std::nullopt;
    case Copies::apart:
      if (!any_knew(statuses, Copies::together)) return std::nullopt;
      return CopiesLine{
          false,
          fmt::format("{}: the copies of each shard are on different nodes again: no decided step is lost with one node", placement)};
    case Copies::together: break;
  }
  return CopiesLine{
      true,
      fmt::format(
          "{}: {} on one node now ({}): the loss of that node goes back to the last checkpoint, or to the beginning where there is none. "
          "Start a worker on another node to get a second copy there",
          placement, statuses.size() == 1 ? "the only copy of each shard is" : "both copies of each shard are", statuses.front().node)};
}

}  // namespace elrun::inline v0
