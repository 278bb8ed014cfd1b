// verify(): one hash per tensor and kind, of every copy there is.

#include <elrun/verify.hpp>

#include <algorithm>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/job_impl.hpp"
#include "lib/job/verdict.hpp"

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
  if (world.over() || stage_ != Stage::ready || is_alone_here() || (gathers() && !end_phase(phase()))) return {};
  struct Copy {
    std::string tensor;
    std::string_view kind;
  };
  std::vector<Copy> copies;
  ByteWriter mine;
  const auto add = [&](const UnitSpec& spec, const Extent& e, std::string_view kind, const float* at) {
    copies.push_back({fmt::format("{}/{}", spec.name, spec.tensors[e.tensor].name), kind});
    mine.put(mix_sum(std::as_bytes(std::span{at, e.end - e.begin}), 0, 0));
  };
  for (std::size_t u = 0; u < specs_.size(); ++u) {
    const UnitLayout& layout = layout_.units[u];
    for (const bool frozen : {false, true})
      for (const Extent& e : extents(specs_[u], layout, frozen)) {
        if (frozen || plan->placement.parameters == Spread::replicated)
          add(specs_[u], e, "param", parameters_.data() + layout.begin + e.begin);
        if (!frozen && whole_optimizer())
          for (std::size_t m = 0; m < moments_.size(); ++m)
            add(specs_[u], e, moments_of(plan->optimizer)[m], moments_[m].data() + layout.gradient_begin + e.begin);
      }
  }
  mine.put(state_sum());
  const auto parts = world.all_gather(mine.bytes());
  if (!parts.ok()) return {};
  const std::uint64_t step = commit_.knowledge().applied;
  Verification out{.decided = true, .state_hash = Mix{}(step, salt_of("step")), .compared = copies.size()};
  std::vector<std::vector<std::uint64_t>> by_copy(copies.size(), std::vector<std::uint64_t>(world.size()));
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    ByteReader reader{(*parts)[r]};
    for (auto& hashes : by_copy) hashes[r] = reader.get<std::uint64_t>();
    out.state_hash += reader.get<std::uint64_t>();
    if (const auto whole = reader.finish("a part of a verification"); !whole.ok()) {
      world.end(whole.failure());
      return {};
    }
  }
  for (std::size_t i = 0; i < copies.size() && !out.difference; ++i)
    if (const auto wrong = dissenter(by_copy[i])) {
      out.difference = {.tensor = copies[i].tensor,
                        .kind = std::string{copies[i].kind},
                        .rank = Rank{static_cast<std::uint32_t>(wrong->index)},
                        .outvoted = wrong->outvoted};
      out.difference->what = fmt::format(
          "after step {} rank {} has other bits than {} in {} of tensor '{}'{}", step, wrong->index,
          wrong->outvoted ? "most ranks" : "rank 0", copies[i].kind, copies[i].tensor,
          wrong->outvoted ? ": its processor or memory is not to be trusted" : ", and no majority says which of them is wrong");
    }
  return out;
}

Verification verify(Job& job) { return job.impl_->verify(); }

}  // namespace elrun::inline v0
