// verify(): one hash per tensor and kind, of every copy there is.

#include <elrun/verify.hpp>

#include <algorithm>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/commit/verdict.hpp"
#include "lib/job/job_impl.hpp"

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

}  // namespace

Verification Job::Impl::verify() {
  require(restored_, "verify comes after restore()");
  require(!in_.open || world.over(), "verify is called inside a slot; call it between steps");
  no_scope_open("verify()");
  if (world.over() || stage_ != Stage::ready || joined_running_ || (gathers() && !end_phase(phase()))) return {};
  world.now(Call::verify);
  struct Compared {
    std::string tensor;
    std::string_view kind;
    bool is_cut;  // whole on every rank, else a shard of it, of one of the copies
  };
  std::vector<Compared> compared;
  ByteWriter mine;
  const auto add = [&](const UnitSpec& spec, const Extent& e, std::string_view kind, const float* at) {
    compared.push_back({fmt::format("{}/{}", spec.name, spec.tensors[e.tensor].name), kind, false});
    mine.put(mix_sum(std::as_bytes(std::span{at, e.end - e.begin}), 0, 0));
  };
  const std::vector<Piece> shard = pieces(layout_, held_);
  /// `at`: where a piece of the shard lies. Words count from the unit's beginning, so the sums of all shards add up to that of a copy.
  const auto add_shard = [&](std::size_t u, const Extent& e, std::string_view kind, const auto& at) {
    compared.push_back({fmt::format("{}/{}", specs_[u].name, specs_[u].tensors[e.tensor].name), kind, true});
    const std::vector<Piece> extent{{static_cast<std::uint32_t>(u), e.begin, e.end, layout_.units[u].gradient_begin + e.begin, 0, 0}};
    std::uint64_t sum = 0;
    for (const Common& both : common(shard, extent))
      sum += mix_sum(std::as_bytes(std::span{at(both.a), both.a.size()}), both.a.begin * sizeof(float) / sizeof(std::uint64_t), 0);
    mine.put(sum);
  };
  const bool copied = plan->placement.optimizer != Spread::sharded;
  for (std::size_t u = 0; u < specs_.size(); ++u) {
    const UnitLayout& layout = layout_.units[u];
    for (const bool frozen : {false, true})
      for (const Extent& e : extents(specs_[u], layout, frozen)) {
        if (frozen || !gathers()) add(specs_[u], e, "param", parameters_.data() + layout.begin + e.begin);
        if (!frozen && gathers() && copied) add_shard(u, e, "param", [&](const Piece& p) { return parameters_.data() + p.parameter; });
        if (!frozen && copied)
          for (std::size_t m = 0; m < moments_.size(); ++m)
            add_shard(u, e, moments_of(plan->optimizer)[m], [&](const Piece& p) { return moments_[m].data() + p.place; });
      }
  }
  mine.put(state_sum());
  const auto parts = world.all_gather(mine.bytes());
  if (!parts.ok()) return {};
  const std::uint64_t step = commit_.knowledge().applied;
  Verification out{.decided = true, .state_hash = Mix{}(step, salt_of("step")), .compared = compared.size()};
  std::vector<std::uint32_t> firsts;  // of each copy its first rank
  std::vector<std::size_t> copy_of;   // by rank
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    const auto at = std::ranges::find_if(firsts, [&](std::uint32_t first) { return shard_map_.copies[first] == shard_map_.copies[r]; });
    copy_of.push_back(static_cast<std::size_t>(at - firsts.begin()));
    if (at == firsts.end()) firsts.push_back(r);
  }
  std::vector<std::vector<std::uint64_t>> hashes;
  for (const Compared& c : compared) hashes.emplace_back(c.is_cut ? firsts.size() : world.size());
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    ByteReader reader{(*parts)[r]};
    for (std::size_t i = 0; i < compared.size(); ++i) hashes[i][compared[i].is_cut ? copy_of[r] : r] += reader.get<std::uint64_t>();
    out.state_hash += reader.get<std::uint64_t>();
    if (const auto whole = reader.finish("a part of a verification"); !whole.ok()) {
      world.end(whole.failure());
      return {};
    }
  }
  for (std::size_t i = 0; i < compared.size() && !out.difference; ++i)
    if (const auto wrong = dissenter(hashes[i])) {
      const bool of_node = compared[i].is_cut && firsts.size() < world.size();
      const std::uint32_t rank = compared[i].is_cut ? firsts[wrong->index] : static_cast<std::uint32_t>(wrong->index);
      out.difference = {
          .tensor = compared[i].tensor, .kind = std::string{compared[i].kind}, .rank = Rank{rank}, .outvoted = wrong->outvoted};
      out.difference->what =
          fmt::format("after step {} {}rank {} has other bits than {} in {} of tensor '{}'{}", step, of_node ? "the node of " : "", rank,
                      wrong->outvoted ? (of_node ? "most nodes" : "most ranks") : (of_node ? "that of rank 0" : "rank 0"), compared[i].kind,
                      compared[i].tensor,
                      wrong->outvoted ? ": its processor or memory is not to be trusted" : ", and no majority says which of them is wrong");
    }
  return out;
}

Verification verify(Job& job) { return job.impl_->verify(); }

}  // namespace elrun::inline v0
