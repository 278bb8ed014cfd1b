#include "lib/job/recover/settle.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/planted.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

namespace {

/// Settled with this state.
Settled settled_at(std::span<const MemberStatus> statuses, Sums sums, const DecidedState& state) {
  Settled out;
  std::vector<Knowledge> known;
  for (const MemberStatus& s : statuses) known.push_back(s.has_state ? s.knowledge : Knowledge{});
  Recovered recovered = recover(known, sums, state);
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

/// It has the state once it has done what `settled` says.
bool brings(const MemberStatus& s, const Settled& settled, std::uint32_t rank) {
  return s.has_state && (settled.applies(rank) || (settled.members[rank] == Recovery::go_on && s.knowledge.applied == settled.newest_step));
}

bool has_next(const MemberStatus& s) { return s.held.next_in.number > 0; }
void keep_new(HeldCut& held) { held = {held.next, held.next_in, {}, {}}; }

/// A member votes when it has its new shard, and its sums are of that one. The step may have been decided in another generation, by votes of the same bits.
bool applies_to_new(const MemberStatus& s, const Settled& settled, std::uint32_t rank) {
  return has_next(s) && settled.applies(rank) && s.held.next_in == s.knowledge.voted_in;
}

enum class Keep : std::uint8_t { none, old_shards, new_shards };

/// With which shards those who bring the state have all of it.
Keep complete_with(const Layout& layout, std::span<const MemberStatus> statuses, const Settled& settled) {
  std::vector<std::optional<Cut>> old_shards, new_shards;
  bool found = false;
  for (std::uint32_t r = 0; r < statuses.size(); ++r) {
    const MemberStatus& s = statuses[r];
    const bool here = brings(s, settled, r);
    old_shards.push_back(here ? std::optional{applies_to_new(s, settled, r) ? s.held.next : s.held.cut} : std::nullopt);
    new_shards.push_back(here && has_next(s) ? std::optional{s.held.next} : old_shards.back());
    found |= here && s.has_host_state;
  }
  if (!found) return Keep::none;
  if (share_out(layout, old_shards)) return Keep::old_shards;
  return new_shards != old_shards && share_out(layout, new_shards) ? Keep::new_shards : Keep::none;
}

/// Of checkpoints, as far as members and their agents know.
std::uint64_t newest_saved(std::span<const MemberStatus> statuses) {
  std::uint64_t newest = 0;
  for (const MemberStatus& s : statuses) newest = std::max({newest, s.saved_step == never_saved ? 0 : s.saved_step, s.remembered_step});
  return newest;
}

/// The newest generation in which a member that has a state was, or in which its last step was decided; number 0: in none.
Generation newest_generation_before(std::span<const MemberStatus> statuses) {
  Generation newest;
  for (const MemberStatus& s : statuses)
    for (const Generation& g : {s.before.generation, s.knowledge.decided_in})
      if (s.has_state && g.number > newest.number) newest = g;
  return newest;
}

std::vector<DecidedState> states_of(std::span<const MemberStatus> statuses, Sums sums) {
  std::vector<Knowledge> known;
  for (const MemberStatus& s : statuses)
    if (s.has_state) known.push_back(s.knowledge);
  std::vector<DecidedState> states = decided_states(known, sums);
  if (states.empty()) states.emplace_back();  // nobody has one: all begin
  return states;
}

struct MemoryCheckpoint {
  CompleteCheckpoint parts;
  bool missed_none = false;    // one of its holders did
  bool is_everywhere = false;  // all who hold parts of any hold parts of this one
};

/// All in-memory checkpoints of `least` steps or more of which members hold all parts, the newest first.
std::vector<MemoryCheckpoint> whole_in_memory(const Layout& layout, std::span<const MemberStatus> statuses, std::uint64_t least) {
  std::vector<MemoryCheckpoint> all;
  for (const MemberStatus& s : statuses)
    for (const HeldCheckpoint& held : s.checkpoints)
      if (held.step >= least &&
          std::ranges::none_of(all, [&](const auto& c) { return c.parts.step == held.step && c.parts.taken_in == held.taken_in; }))
        all.push_back({{held.step, held.taken_in, {}}});
  for (MemoryCheckpoint& one : all) {
    one.is_everywhere = true;
    for (const MemberStatus& s : statuses) {
      const auto held = std::ranges::find_if(
          s.checkpoints, [&](const HeldCheckpoint& h) { return h.step == one.parts.step && h.taken_in == one.parts.taken_in; });
      one.parts.held.push_back(held == s.checkpoints.end() ? std::nullopt : std::optional{held->cut});
      one.missed_none |= s.missed_none && one.parts.held.back();
      one.is_everywhere &= s.checkpoints.empty() || one.parts.held.back();
    }
  }
  std::erase_if(all, [&](const MemoryCheckpoint& one) { return !share_out(layout, one.parts.held); });
  std::ranges::stable_sort(all, std::greater{}, [](const MemoryCheckpoint& c) { return std::pair{c.parts.step, c.parts.taken_in.number}; });
  return all;
}

}  // namespace

bool may_have_missed_saves(std::span<const MemberStatus> statuses) {
  return std::ranges::any_of(statuses, &MemberStatus::has_state) &&
         std::ranges::none_of(statuses, [](const MemberStatus& s) { return s.has_state && s.missed_none; });
}

bool may_have_missed_saves_of_another_coordinator(std::span<const MemberStatus> statuses) {
  const auto knows = [](const MemberStatus& s) { return (s.has_state || !s.checkpoints.empty()) && s.missed_none; };
  return std::ranges::any_of(statuses, knows) &&
         std::ranges::none_of(statuses, [&](const MemberStatus& s) { return knows(s) && !s.coordinator_changed; });
}

bool is_newer(const SavedCheckpoint& saved, std::span<const MemberStatus> statuses, Sums sums) {
  const Generation before = newest_generation_before(statuses);
  // Numbers of two lineages do not compare, and a checkpoint that was passed over is on no timeline that another lineage goes on from.
  const bool is_later = saved.saved_in.number > before.number || saved.saved_in.lineage != before.lineage;
  return saved.step > states_of(statuses, sums).front().steps && is_later;
}

std::optional<std::uint64_t> may_be_saved_beyond(const Layout& layout, std::span<const MemberStatus> statuses, Sums sums) {
  std::uint64_t newest = 0;
  for (const MemberStatus& s : statuses)
    for (const HeldCheckpoint& held : s.checkpoints) newest = std::max(newest, held.step);
  if (newest == 0) return std::nullopt;
  const auto with = [&](bool is_newest) {
    std::vector<MemberStatus> after{statuses.begin(), statuses.end()};
    return settle(layout, after, sums, {.is_newest = is_newest});
  };
  const Settled at_best = with(true);
  if (!at_best.goes_to_memory) return std::nullopt;
  const Settled by_themselves = with(false);
  const bool can_tell = by_themselves.goes_to_memory && by_themselves.in_memory->step == newest;
  return can_tell ? std::nullopt : std::optional{at_best.in_memory->step};
}

Settled settle(const Layout& layout, std::span<MemberStatus> statuses, Sums sums, const SavedCheckpoint& saved_checkpoint) {
  std::vector<Generation> finished;
  for (const MemberStatus& s : statuses) finished.push_back(s.held.recut_in);
  for (MemberStatus& s : statuses)
    if (has_next(s) && std::ranges::find(finished, s.held.next_in) != finished.end()) keep_new(s.held);
  std::vector<DecidedState> states = states_of(statuses, sums);
  const std::uint64_t known_step = states.front().steps, saved = newest_saved(statuses);
  const bool goes_to_newer = is_newer(saved_checkpoint, statuses, sums);
  if (goes_to_newer) {
    for (MemberStatus& s : statuses) s.has_state = false;
    states.assign(1, {});
  }

  Settled out = settled_at(statuses, sums, states.front());
  Keep keep = complete_with(layout, statuses, out);
  auto in_memory = whole_in_memory(layout, statuses, std::max(saved, saved_checkpoint.step));
  if (!saved_checkpoint.is_newest) std::erase_if(in_memory, [](const MemoryCheckpoint& one) { return !one.missed_none; });
  const std::uint64_t least = in_memory.empty() ? saved : in_memory.front().parts.step;
  for (auto older = states.begin() + 1; keep == Keep::none && older != states.end() && older->steps >= least; ++older) {
    if (ELRUN_PLANTED(settle_takes_the_newest)) break;
    Settled at = settled_at(statuses, sums, *older);
    keep = complete_with(layout, statuses, at);
    if (keep != Keep::none) out = std::move(at);
  }
  out.known_step = known_step;
  if (goes_to_newer && in_memory.empty()) out.newer_checkpoint = saved_checkpoint.step;
  out.goes_to_memory = keep == Keep::none && !in_memory.empty();
  if (!in_memory.empty()) {
    const auto everywhere = std::ranges::find_if(in_memory, &MemoryCheckpoint::is_everywhere);
    out.in_memory = (out.goes_to_memory || everywhere == in_memory.end() ? in_memory.front() : *everywhere).parts;
  }
  for (std::uint32_t r = 0; r < statuses.size(); ++r) {
    MemberStatus& s = statuses[r];
    if (has_next(s) && ((keep == Keep::new_shards && brings(s, out, r)) || applies_to_new(s, out, r))) keep_new(s.held);
    s.held.next = {}, s.held.next_in = {};
  }
  const auto there_before = std::ranges::find_if(statuses, [](const MemberStatus& s) { return s.is_past_restore || s.keeps_position; });
  out.printer = there_before == statuses.end() ? 0 : static_cast<std::uint32_t>(there_before - statuses.begin());
  return out;
}

std::vector<bool> have_parameters_of(const CompleteCheckpoint& checkpoint, std::span<const MemberStatus> statuses, Sums sums) {
  std::vector<bool> out;
  for (const MemberStatus& s : statuses) {
    const bool is_there = s.knowledge.applied == checkpoint.step || ELRUN_PLANTED(parameters_of_another_step_stay);
    out.push_back(sums == Sums::alike && s.has_state && s.whole_parameters && is_there);
  }
  return out;
}

std::optional<std::string> going_back_line(std::span<const MemberStatus> statuses, const Settled& settled) {
  if (settled.known_step == settled.newest_step || settled.newer_checkpoint > 0) return std::nullopt;
  std::vector<std::string> who;
  for (std::uint32_t r = 0; r < statuses.size(); ++r)
    if (statuses[r].has_state && statuses[r].knowledge.decided == settled.known_step)
      who.push_back(fmt::format("rank {} (node {})", r, statuses[r].node));
  constexpr std::size_t most = 8;
  const std::string more = who.size() > most ? fmt::format(" and {} more", who.size() - most) : "";
  who.resize(std::min(who.size(), most));
  const std::uint64_t again = settled.known_step - settled.newest_step;
  return fmt::format(
      "{}{} {} at step {}, but parts of that state were lost with other workers. All continue from step {}, the newest complete state. {} repeated",
      fmt::join(who, ", "), more, who.size() == 1 ? "is" : "are", settled.known_step, settled.newest_step,
      again == 1 ? "1 step is" : fmt::format("{} steps are", again));
}

std::optional<std::string> newer_checkpoint_line(const Settled& settled) {
  if (settled.newer_checkpoint == 0) return std::nullopt;
  return fmt::format(
      "the workers here are at step {}. While they had no place in the world, others saved the checkpoint of step {}: all go on from the newest checkpoint",
      settled.known_step, settled.newer_checkpoint);
}

std::optional<std::string> missed_steps_line(std::span<const MemberStatus> statuses, const Settled& settled) {
  if (!may_have_missed_saves(statuses) || settled.newer_checkpoint > 0) return std::nullopt;
  std::uint64_t decided = 0;
  for (const MemberStatus& s : statuses) decided = std::max(decided, s.remembered_decided);
  if (decided <= settled.newest_step) return std::nullopt;
  const std::uint64_t again = decided - settled.newest_step;
  return fmt::format(
      "the workers here are at step {}. While they had no place in the world, others came to step {}. No worker has that state any more, and no checkpoint of it was found. {} repeated",
      settled.newest_step, decided, again == 1 ? "1 step is" : fmt::format("{} steps are", again));
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
