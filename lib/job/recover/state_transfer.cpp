#include "lib/job/recover/state_transfer.hpp"

#include <algorithm>

#include <fmt/format.h>

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

std::optional<std::string> lost_state_line(std::span<const MemberStatus> statuses, std::uint64_t step, const StateTransfer& transfer) {
  if (transfer.complete || std::ranges::none_of(statuses, &MemberStatus::has_state)) return std::nullopt;
  // A member that knows of a step has its state, or has voted for it and applied it by now. So without `found` host state alone is missing.
  return fmt::format("{} step {} was lost with a worker: all go back to the newest checkpoint, or to the beginning",
                     transfer.found ? "part of the state of" : "the host state (what the program registered with job.state) of", step);
}

}  // namespace elrun::inline v0
