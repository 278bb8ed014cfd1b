#pragma once
/// \file Growth: when a running generation ends so that the next one has more nodes or workers. No member failed then, so it costs no restart.
///
/// A young generation is left alone, so that a node which comes and goes does not stop the others from working: 1 s, doubled with each
/// growth that no newly decided step has followed, 32 s at most.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

constexpr Duration growth_settle = 1s;
constexpr std::uint32_t growth_doublings_max = 5;
/// Newcomers of this long are taken in together.
constexpr Duration growth_gather = 250ms;

class Growth {
 public:
  /// A member has more workers for the next generation.
  void offer(const NodeId& member, Instant now) {
    if (offers_.empty()) since_ = now;
    offers_.insert(member);
  }
  /// When the generation that began then ends, if nothing changes. `newcomer`: since when the first node waits that there is room for.
  [[nodiscard]] std::optional<Instant> at(Instant began, std::optional<Instant> newcomer) const {
    std::optional<Instant> since = newcomer;
    if (!offers_.empty()) since = since ? std::min(*since, since_) : since_;
    if (!since) return {};
    return std::max(*since + growth_gather, began + growth_settle * (1 << std::min(growths_, growth_doublings_max)));
  }
  /// Members that have more workers.
  [[nodiscard]] const std::set<NodeId>& offers() const { return offers_; }
  /// The generation ends by growth.
  void grew() { ++growths_; }
  /// A step was decided that none had decided before.
  void progressed() { growths_ = 0; }
  /// Another generation begins: who has more workers says so again.
  void begin() { offers_.clear(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::set<NodeId> offers_;
  Instant since_{};            // of the first offer
  std::uint32_t growths_ = 0;  // since a step was decided
};

}  // namespace elrun::inline v0
