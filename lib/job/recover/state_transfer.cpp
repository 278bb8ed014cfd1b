#include "lib/job/recover/state_transfer.hpp"

#include "lib/base/planted.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

StateTransfer plan_state_transfer(const Layout& layout, std::span<const MemberStatus> statuses, std::uint64_t step,
                                  std::span<const Cut> cuts) {
  StateTransfer out;
  for (std::uint32_t r = 0; r < statuses.size(); ++r) {
    const MemberStatus& s = statuses[r];
    const bool brings = s.has_state && (s.knowledge.applied == step || ELRUN_PLANTED(state_from_one_behind));
    out.held.push_back(brings ? std::optional{s.held.cut} : std::nullopt);
    out.newcomers.push_back(!brings || !s.has_host_state);
    if (!out.newcomers[r] && !out.found) out.giver = r;
    out.found |= !out.newcomers[r];
    out.moves |= out.newcomers[r] || !s.whole_parameters || s.held.cut != cuts[r];
  }
  out.complete = out.found && share_out(layout, out.held).has_value();
  return out;
}

}  // namespace elrun::inline v0
