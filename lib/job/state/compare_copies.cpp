#include "lib/job/state/compare_copies.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/job/commit/verdict.hpp"

namespace elrun::inline v0 {
namespace {

/// A tensor with the padding behind it, which is part of the state hash too.
struct Extent {
  std::size_t tensor;
  std::uint64_t begin, end;  // in the unit
};
std::vector<Extent> extents(const UnitSpec& spec, const UnitLayout& layout, bool frozen) {
  std::vector<Extent> out;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t)
    if (spec.tensors[t].options.frozen == frozen) out.push_back({t, layout.offsets[t], frozen ? layout.size : layout.trainable});
  for (std::size_t i = 0; i + 1 < out.size(); ++i) out[i].end = out[i + 1].begin;  // offsets ascend
  return out;
}

/// Of which every rank has all.
std::span<const float> whole_run(const ModelState& state, std::uint32_t unit, const Extent& e, bool frozen) {
  const std::uint64_t begin = frozen ? state.layout().units[unit].trainable : 0;
  return (frozen ? state.frozen(unit) : state.unit(unit)).subspan(e.begin - begin, e.end - e.begin);
}

}  // namespace

std::vector<TensorHash> hash_tensors(const ModelState& state, const std::vector<UnitSpec>& specs, const Placement& placement,
                                     Optimizer optimizer) {
  const Layout& layout = state.layout();
  const bool sharded = state.parameters_are_sharded(), copied = placement.optimizer != Sharding::sharded;
  const std::vector<Piece> shard = pieces(layout, state.cut());
  std::vector<TensorHash> out;
  const auto add = [&](std::size_t u, const Extent& e, std::string_view kind, bool is_cut, std::uint64_t hash, std::uint64_t next = 0) {
    out.push_back({fmt::format("{}/{}", specs[u].name, specs[u].tensors[e.tensor].name), kind, is_cut, hash, next});
  };
  /// `at`: where a piece of the shard lies. Words count from the unit's beginning, so the sums of all shards add up to that of a copy.
  const auto add_shard = [&](std::size_t u, const Extent& e, std::string_view kind, const auto& at) {
    const std::vector<Piece> extent{{static_cast<std::uint32_t>(u), e.begin, e.end, layout.units[u].gradient_begin + e.begin, 0, 0}};
    const std::uint32_t wrapped = state.cut().wrapped();
    const std::uint64_t next_ends = wrapped > 0 ? elrun::shard(layout.units[u].trainable, {state.cut().parts, 0, wrapped}).end : 0;
    std::uint64_t sum = 0, next = 0;
    for (const Common& both : common(shard, extent))
      (both.a.end <= next_ends ? next : sum) +=
          state.memory().hash(std::as_bytes(std::span{at(both.a), both.a.size()}), both.a.begin * sizeof(float) / sizeof(std::uint64_t), 0);
    add(u, e, kind, true, sum, next);
  };
  for (std::size_t u = 0; u < specs.size(); ++u)
    for (const bool frozen : {false, true})
      for (const Extent& e : extents(specs[u], layout.units[u], frozen)) {
        if (frozen || !sharded)
          add(u, e, "param", false, state.memory().hash(std::as_bytes(whole_run(state, static_cast<std::uint32_t>(u), e, frozen)), 0, 0));
        if (!frozen && sharded && copied) add_shard(u, e, "param", [&](const Piece& p) { return state.parameter(p).data(); });
        if (!frozen && copied)
          for (std::size_t m = 0; m < state.moments(); ++m)
            add_shard(u, e, moments_of(optimizer)[m], [&](const Piece& p) { return state.moment(m).data() + p.place; });
      }
  return out;
}

ByteVector encode(const std::vector<TensorHash>& mine, std::uint64_t state_hash_part) {
  ByteWriter out;
  for (const TensorHash& h : mine) {
    out.put(h.hash);
    if (h.is_cut) out.put(h.next);
  }
  out.put(state_hash_part);
  return out.take();
}

Result<Verification> compare_copies(const std::vector<TensorHash>& mine, const std::vector<ByteVector>& parts, const ShardMap& shards,
                                    bool by_node, std::uint64_t step) {
  Verification out{.decided = true, .state_hash = Mix{}(step, salt_of("step")), .compared = mine.size()};
  std::vector<std::uint32_t> firsts;  // of each copy its first rank
  std::vector<std::size_t> copy_of;   // by rank
  for (std::uint32_t r = 0; r < shards.world(); ++r) {
    const auto at = std::ranges::find_if(firsts, [&](std::uint32_t first) { return shards.copies[first] == shards.copies[r]; });
    copy_of.push_back(static_cast<std::size_t>(at - firsts.begin()));
    if (at == firsts.end()) firsts.push_back(r);
  }
  std::vector<std::vector<std::uint64_t>> hashes;
  for (const TensorHash& h : mine) hashes.emplace_back(h.is_cut ? firsts.size() : shards.world());
  for (std::uint32_t r = 0; r < shards.world(); ++r) {
    ByteReader reader{parts[r]};
    const auto next_copy = std::ranges::find(shards.copies, shards.copies[r] + 1) - shards.copies.begin();  // where there is one
    for (std::size_t i = 0; i < mine.size(); ++i) {
      hashes[i][mine[i].is_cut ? copy_of[r] : r] += reader.get<std::uint64_t>();
      if (!mine[i].is_cut) continue;
      const auto next = reader.get<std::uint64_t>();
      if (shards.cuts[r].wrapped() > 0) hashes[i][copy_of[static_cast<std::size_t>(next_copy)]] += next;
    }
    out.state_hash += reader.get<std::uint64_t>();
    ELRUN_TRY(reader.finish("a part of a verification"));
  }
  for (std::size_t i = 0; i < mine.size() && !out.difference; ++i)
    if (const auto wrong = find_mismatch(hashes[i])) {
      const bool of_copy = mine[i].is_cut && firsts.size() < shards.world();
      const std::string_view whose = !of_copy ? "" : by_node ? "the node of " : "the copy of ";
      const std::string_view most = !of_copy ? "most ranks" : by_node ? "most nodes" : "most copies";
      const std::uint32_t rank = mine[i].is_cut ? firsts[wrong->index] : static_cast<std::uint32_t>(wrong->index);
      out.difference = {.tensor = mine[i].tensor, .kind = std::string{mine[i].kind}, .rank = Rank{rank}, .outvoted = wrong->outvoted};
      out.difference->what =
          fmt::format("after step {} {}rank {} has other bits than {} in {} of tensor '{}'{}", step, whose, rank,
                      wrong->outvoted ? most : (of_copy ? "that of rank 0" : "rank 0"), mine[i].kind, mine[i].tensor,
                      wrong->outvoted ? ": its processor or memory is not to be trusted" : ", and no majority says which of them is wrong");
    }
  return out;
}

}  // namespace elrun::inline v0
