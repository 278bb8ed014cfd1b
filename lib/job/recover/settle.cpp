#include "lib/job/recover/settle.hpp"

#include <algorithm>

#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

Settled settle(std::span<const MemberStatus> statuses, Sums sums) {
  Settled out;
  const auto there_before = std::ranges::find_if(statuses, [](const MemberStatus& s) { return s.is_past_restore || s.keeps_position; });
  out.printer = there_before == statuses.end() ? 0 : static_cast<std::uint32_t>(there_before - statuses.begin());
  std::vector<Knowledge> known;
  for (const MemberStatus& s : statuses) known.push_back(s.has_state ? s.knowledge : Knowledge{});
  Recovered recovered = recover(known, sums);
  out.newest_step = recovered.next_step;
  out.decided_in = recovered.decided_in;
  out.members = std::move(recovered.members);
  const auto knower = std::ranges::find_if(statuses, [&](const MemberStatus& s) {
    return s.has_state && s.knowledge.decided == out.newest_step && s.knowledge.decided_in == out.decided_in &&
           s.decision.count == out.newest_step;
  });
  if (knower != statuses.end()) out.decision = knower->decision;
  return out;
}

Result<void> check_same_update(std::span<const MemberStatus> statuses, std::uint64_t newest_step) {
  if (newest_step == 0) return {};
  std::vector<UpdateValues> updates;
  for (const MemberStatus& s : statuses) {
    const bool voted = s.knowledge.applied + 1 == newest_step && s.knowledge.voted == newest_step;
    updates.push_back(!s.has_state                      ? UpdateValues{}
                      : voted                           ? s.voted_update
                      : s.decision.count == newest_step ? s.decision.update
                                                        : UpdateValues{});
  }
  return check_decided_update(newest_step - 1, updates);
}

void settle_recut(const Layout& layout, std::span<MemberStatus> statuses) {
  std::vector<Generation> finished;
  for (const MemberStatus& s : statuses) finished.push_back(s.held.recut_in);
  const auto keep_new = [](HeldCut& held) { held = {held.next, held.next_in, {}, {}}; };
  for (MemberStatus& s : statuses)
    if (s.held.next_in.number > 0 && std::ranges::find(finished, s.held.next_in) != finished.end()) keep_new(s.held);
  std::vector<std::optional<Cut>> old_shards, new_shards;
  for (const MemberStatus& s : statuses) {
    old_shards.push_back(s.has_state ? std::optional{s.held.cut} : std::nullopt);
    new_shards.push_back(s.has_state && s.held.next_in.number > 0 ? std::optional{s.held.next} : old_shards.back());
  }
  const bool are_new_better = !share_out(layout, old_shards) && share_out(layout, new_shards);
  for (MemberStatus& s : statuses) {
    if (s.held.next_in.number > 0 && are_new_better) keep_new(s.held);
    s.held.next = {}, s.held.next_in = {};
  }
}

void bring_up_to_date(std::span<MemberStatus> statuses, const Settled& settled, bool whole_after_update) {
  for (std::uint32_t r = 0; r < statuses.size(); ++r) {
    MemberStatus& s = statuses[r];
    // As many steps, but of other sums: here it counts as a newcomer's.
    if (settled.members[r] == Recovery::fetch && s.knowledge.applied == settled.newest_step) s.has_state = false;
    if (!s.has_state || !settled.applies(r)) continue;
    s.knowledge = {settled.newest_step, settled.newest_step, settled.newest_step, settled.decided_in};
    s.decision = *settled.decision;  // newcomers get it with the state
    s.evaluations = 0;               // those that it says followed the step before
    // Its own shard alone; the others' owners are somewhere else now.
    s.whole_parameters = whole_after_update || settled.decision->skips();
  }
}

}  // namespace elrun::inline v0
