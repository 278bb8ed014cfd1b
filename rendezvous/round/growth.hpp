#pragma once
/// \file Growth: when a running generation ends so that the next one has more nodes or workers. No member failed then, so it costs no restart.
///
/// What takes the place of something that was lost is let in as soon as the others have decided a step without it. What the world never had waits
/// longer: a young generation is left alone for 1 s. Either way, growths are at least 1 s apart, doubled with each growth that no newly decided step
/// has followed, 32 s at most. So a node that comes and goes does not stop the others from working.
///
/// What makes the world whole again need not wait for that second, as long as a newly decided step has followed the growth before: three growths may be early,
/// and each second gives one of them back. So in any time of t seconds there are at most t + 4 growths, whoever dies as soon as it has joined.
///
/// A step that is cut short is done again. So growth waits for the next step to be decided, at most twice as long as the last one took.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

constexpr Duration growth_pause = 1s;
constexpr std::uint32_t growth_doublings_max = 5;
constexpr std::uint32_t growths_early_max = 3;  ///< So many may come before their second is over, if they make the world whole again.
/// Newcomers of this long are taken in together, and so are replacements, where others are still missing.
constexpr Duration growth_gather = 250ms;

class Growth {
 public:
  struct Size {
    std::uint32_t nodes = 0, workers = 0;
  };
  /// Nodes that wait, and that there is room for.
  struct Newcomers {
    Instant since;  ///< The first of them
    std::uint32_t count = 0;
  };

  /// Another generation begins, of this size: who has more workers says so again.
  void begin(Size size, Instant now) {
    offers_.clear();
    size_ = size, began_ = now;
    most_ = {std::max(most_.nodes, size.nodes), std::max(most_.workers, size.workers)};
    step_.reset();
  }
  /// A member has `workers` more for the next generation.
  void offer(const NodeId& member, std::uint32_t workers, Instant now) {
    if (offers_.empty()) since_ = now;
    offers_[member] = std::max(workers, 1u);
  }
  /// A step was decided in the generation; several members say so of each.
  void decided(std::uint64_t step, Instant now) {
    if (step_ && step <= *step_) return;
    if (step_) took_ = now - decided_at_;
    step_ = step, decided_at_ = now;
  }
  /// A step was decided that none had decided before.
  void progressed() { growths_ = 0; }
  /// The generation ends by growth.
  void grew(Instant now) {
    ++growths_, grew_at_ = now;
    paced_until_ = std::max(paced_until_, now) + growth_pause;
  }

  /// When the generation ends, if nothing changes.
  [[nodiscard]] std::optional<Instant> at(const std::optional<Newcomers>& newcomers) const {
    const bool replace_nodes = newcomers && size_.nodes < most_.nodes;
    std::optional<Instant> at;
    if (newcomers && !replace_nodes) at = std::max(newcomers->since + growth_gather, began_ + pause_before_growth());
    if (!offers_.empty() || replace_nodes) {
      const Instant place = place_at(replace_nodes ? newcomers : std::nullopt);
      at = at ? std::min(*at, place) : place;
    }
    return at ? std::optional{at_border(*at)} : std::nullopt;
  }
  /// Members that have more workers, and how many.
  [[nodiscard]] const std::map<NodeId, std::uint32_t>& offers() const { return offers_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  [[nodiscard]] Duration pause_before_growth() const { return growth_pause * (1 << std::min(growths_, growth_doublings_max)); }

  // Of what takes a lost place.
  [[nodiscard]] Instant place_at(const std::optional<Newcomers>& nodes) const {
    std::uint64_t workers = size_.workers;
    for (const auto& [member, more] : offers_) workers += more;
    const bool is_whole = nodes ? size_.nodes + nodes->count >= most_.nodes : workers >= most_.workers;
    Instant since = offers_.empty() ? nodes->since : since_;
    if (nodes) since = std::min(since, nodes->since);
    Instant at = is_whole ? since : since + growth_gather;
    if (!step_) at = std::max(at, began_ + pause_before_growth());  // recovery is not begun anew, but for one that takes long
    if (!grew_at_) return at;
    const bool may_be_early = is_whole && growths_ == 0;
    return std::max(at, may_be_early ? paced_until_ - growths_early_max * growth_pause : *grew_at_ + pause_before_growth());
  }
  [[nodiscard]] Instant at_border(Instant at) const {
    if (!step_ || !took_ || decided_at_ >= at) return at;
    return std::max(at, decided_at_ + 2 * *took_);
  }

  std::map<NodeId, std::uint32_t> offers_;
  Instant since_{};  // of the first offer
  Size size_;        // of the generation
  Size most_;        // of any generation
  Instant began_{};
  std::optional<std::uint64_t> step_;  // the newest of the generation, decided at
  Instant decided_at_{};
  std::optional<Duration> took_;    // the last step
  std::optional<Instant> grew_at_;  // the last time
  Instant paced_until_{};           // if each growth had waited for its second, the next one could come then
  std::uint32_t growths_ = 0;       // since a step was decided
};

}  // namespace elrun::inline v0
