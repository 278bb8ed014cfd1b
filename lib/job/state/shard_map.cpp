#include "lib/job/state/shard_map.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>

namespace elrun::inline v0 {

namespace {

/// Cuts and copies of mirrored state.
void mirror(std::span<const std::uint32_t> nodes, ShardMap& out) {
  const auto world = static_cast<std::uint32_t>(nodes.size());
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_node;
  for (std::uint32_t r = 0; r < world; ++r) by_node[nodes[r]].push_back(r);
  out.cuts.resize(world), out.copies.resize(world);
  const auto larger = std::ranges::find_if(by_node, [&](const auto& node) { return node.second.size() * 2 > world; });
  if (larger != by_node.end() && by_node.size() > 1) {
    const auto most = static_cast<std::uint32_t>(larger->second.size());
    std::array<std::uint32_t, 2> next{};
    for (std::uint32_t r = 0; r < world; ++r) {
      out.copies[r] = nodes[r] == larger->first ? 0 : 1;
      out.cuts[r] = {out.copies[r] == 0 ? most : world - most, next[out.copies[r]]++};
    }
    return;
  }
  std::uint32_t begin = 0;  // in two copies of `world` parts each
  for (const auto& [node, ranks] : by_node)
    for (const std::uint32_t r : ranks) {
      out.copies[r] = begin / world;
      out.cuts[r] = world > parts_held_max ? Cut{world, begin % world, parts_held_max} : Cut{};
      begin += parts_held_max;
    }
}

}  // namespace

ShardMap shard_map(Sharding sharding, std::span<const std::uint32_t> nodes) {
  ShardMap out;
  const auto world = static_cast<std::uint32_t>(nodes.size());
  if (sharding == Sharding::mirrored) mirror(nodes, out);
  for (std::uint32_t r = 0; r < world; ++r) {
    if (sharding == Sharding::replicated) out.cuts.push_back({}), out.copies.push_back(r);
    if (sharding == Sharding::sharded) out.cuts.push_back({world, r}), out.copies.push_back(0);
    if (sharding != Sharding::sharded_in_node) continue;
    const auto of_node = [&](auto end) { return static_cast<std::uint32_t>(std::count(nodes.begin(), end, nodes[r])); };
    out.cuts.push_back({of_node(nodes.end()), of_node(nodes.begin() + r)});
    out.copies.push_back(nodes[r]);
  }
  std::vector<std::uint32_t> by_place(world);
  std::iota(by_place.begin(), by_place.end(), 0);
  std::stable_sort(by_place.begin(), by_place.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Cut &left = out.cuts[a], &right = out.cuts[b];
    return std::uint64_t{left.part} * right.parts < std::uint64_t{right.part} * left.parts;
  });
  out.folds.resize(world);
  for (std::uint32_t i = 0; i < world; ++i) out.folds[by_place[i]] = {world, i};
  return out;
}

std::optional<Cut> ShardMap::gives(std::uint32_t giver, std::uint32_t taker) const {
  Cut out = cuts[giver];
  const std::uint32_t wrapped = out.wrapped();
  if (copies[giver] == copies[taker]) out.count -= wrapped;
  else if (wrapped > 0 && copies[giver] + 1 == copies[taker]) out.part = 0, out.count = wrapped;
  else return std::nullopt;
  // A taker that wraps has the first parts of its copy too, from the next one. Its cut has as many parts as the giver's, for they are in one copy.
  const std::uint32_t has = std::min(std::max(cuts[taker].wrapped(), out.part) - out.part, out.count);
  out.part += has, out.count -= has;
  return out.count > 0 ? std::optional{out} : std::nullopt;
}

std::vector<std::uint32_t> number_nodes(std::span<const std::string> names) {
  std::vector<std::uint32_t> out;
  std::vector<std::string_view> seen;
  for (const std::string& name : names) {
    const auto at = std::find(seen.begin(), seen.end(), name);
    out.push_back(static_cast<std::uint32_t>(at - seen.begin()));
    if (at == seen.end()) seen.push_back(name);
  }
  return out;
}

std::vector<std::uint32_t> guess_nodes(std::uint32_t world, std::uint32_t rank, std::uint32_t local_world, std::uint32_t local_rank) {
  std::vector<std::uint32_t> out(world, 0);
  if (local_world == 0 || local_rank >= local_world || local_rank > rank) return out;
  const std::uint32_t before = (rank - local_rank) % local_world;  // of a node that has not as many
  for (std::uint32_t r = before; r < world; ++r) out[r] = (r - before) / local_world + (before > 0 ? 1 : 0);
  return out;
}

namespace {

/// Calls `give(unit, rank, begin, end)` for all that is given, or for what lies in `only` alone. False: some element is nowhere.
template <class Give>
bool share(const Layout& layout, std::span<const std::optional<Cut>> held, std::optional<std::uint32_t> taker, std::optional<Cut> only,
           const Give& give) {
  std::map<std::uint32_t, std::map<std::uint64_t, std::vector<std::uint32_t>>> by_cut;  // by number of parts and part: who holds it
  for (std::uint32_t r = 0; r < held.size(); ++r)
    for (std::uint32_t i = 0; held[r] && i < held[r]->count; ++i) by_cut[held[r]->parts][(held[r]->part + i) % held[r]->parts].push_back(r);
  const auto share_run = [&](std::uint32_t u, LeafRange run) {
    const std::uint64_t trainable = layout.units[u].trainable;
    std::vector<std::uint64_t> borders{run.begin, run.end};
    for (const auto& [parts, ranks] : by_cut) {
      const std::uint64_t each = shard(trainable, {parts, 0}).end;
      for (auto at = ranks.lower_bound(run.begin / each); at != ranks.end() && at->first * each < run.end; ++at)
        for (const std::uint64_t border : {at->first * each, (at->first + 1) * each})
          borders.push_back(std::clamp(border, run.begin, run.end));
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      const std::uint64_t begin = borders[i], end = borders[i + 1];
      std::vector<std::uint32_t> givers;
      for (const auto& [parts, ranks] : by_cut) {
        const std::uint64_t each = shard(trainable, {parts, 0}).end;
        if (const auto at = ranks.find(begin / each); at != ranks.end()) givers.insert(givers.end(), at->second.begin(), at->second.end());
      }
      if (by_cut.size() > 1) std::sort(givers.begin(), givers.end());
      if (taker && std::binary_search(givers.begin(), givers.end(), *taker)) givers = {*taker};
      if (givers.empty()) return false;
      for (std::uint32_t g = 0; g < givers.size(); ++g) {
        const LeafRange part = shard(end - begin, {static_cast<std::uint32_t>(givers.size()), g});
        give(u, givers[g], begin + part.begin, begin + part.end);
      }
    }
    return true;
  };
  for (std::uint32_t u = 0; u < layout.units.size(); ++u)
    for (const LeafRange& run : runs(layout.units[u].trainable, only.value_or(Cut{})))
      if (!share_run(u, run)) return false;
  return true;
}

/// Whole elements of `unit`; what follows the last piece without a gap is one with it.
void add_piece(std::vector<Piece>& given, const Layout& layout, std::uint32_t u, std::uint64_t begin, std::uint64_t end) {
  const UnitLayout& unit = layout.units[u];
  if (begin == end) return;
  if (!given.empty() && given.back().unit == u && given.back().end == begin) given.back().end = end;
  else given.push_back({u, begin, end, unit.gradient_begin + begin, unit.begin + begin, unit.gradient_begin + begin});
}

}  // namespace

std::optional<std::vector<std::vector<Piece>>> share_out(const Layout& layout, std::span<const std::optional<Cut>> held,
                                                         std::optional<std::uint32_t> taker) {
  std::vector<std::vector<Piece>> out(held.size());
  const bool complete = share(layout, held, taker, {}, [&](std::uint32_t unit, std::uint32_t rank, std::uint64_t begin, std::uint64_t end) {
    add_piece(out[rank], layout, unit, begin, end);
  });
  if (!complete) return std::nullopt;
  return out;
}

std::vector<Piece> share_of(const Layout& layout, std::span<const std::optional<Cut>> held, std::uint32_t taker, std::uint32_t giver) {
  std::vector<Piece> out;
  if (held[giver])
    (void)share(layout, held, taker, held[giver], [&](std::uint32_t unit, std::uint32_t rank, std::uint64_t begin, std::uint64_t end) {
      if (rank == giver) add_piece(out, layout, unit, begin, end);
    });
  return out;
}

std::vector<Piece> primary_pieces(const Layout& layout, const ShardMap& shards, std::uint32_t rank) {
  const std::vector<std::optional<Cut>> held(shards.cuts.begin(), shards.cuts.end());
  const auto shares = share_out(layout, held);
  std::vector<Piece> out;
  for (const Common& both : common(pieces(layout, shards.cuts[rank]), (*shares)[rank])) out.push_back(both.a);
  return out;
}

}  // namespace elrun::inline v0
