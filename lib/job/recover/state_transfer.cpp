#include "lib/job/recover/state_transfer.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/planted.hpp"
#include "lib/job/declare/assign.hpp"
#include "lib/job/gradients/summands.hpp"
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
    out.recuts |= brings && s.held.cut != cuts[r];
  }
  out.complete = out.found && share_out(layout, out.held).has_value();
  return out;
}

std::vector<bool> StateTransfer::computes() const {
  std::vector<bool> out;
  for (const std::optional<Cut>& brings : held) out.push_back(!beside || brings.has_value());
  return out;
}

namespace {

std::uint64_t most_of(std::uint64_t slots, std::uint64_t ranks) { return (slots + ranks - 1) / ranks; }

Duration longest_slot(const StateTransfer& transfer, std::span<const MemberStatus> statuses) {
  Duration slot{0};
  for (std::uint32_t r = 0; r < statuses.size(); ++r)
    if (transfer.held[r]) slot = std::max(slot, statuses[r].slot);
  return slot;
}

std::uint64_t givers(const StateTransfer& transfer) {
  return static_cast<std::uint64_t>(std::ranges::count_if(transfer.held, [](const auto& brings) { return brings.has_value(); }));
}

/// Of those who lack all of the state: those of one node share its line.
std::uint64_t most_on_one_node(const StateTransfer& transfer, std::span<const MemberStatus> statuses) {
  std::map<std::string_view, std::uint64_t> on_node;
  for (std::uint32_t r = 0; r < statuses.size(); ++r)
    if (!transfer.held[r]) ++on_node[statuses[r].node];
  std::uint64_t most = 0;
  for (const auto& [node, count] : on_node) most = std::max(most, count);
  return most;
}

/// Whole gradients that a rank of so many keeps, at most.
std::uint32_t gradient_buffers(std::uint64_t slots, std::uint64_t ranks, Reduce reduce) {
  std::uint32_t most = 1;
  for (const FoldSchedule& schedule :
       summands(assign_slots(static_cast<std::uint32_t>(slots), static_cast<std::uint32_t>(ranks)), reduce).schedules)
    most = std::max(most, schedule.depth);
  return most;
}

/// In the world with fewest of them from which a giver comes, and in that of these members.
std::uint32_t buffers_there(const StateTransfer& transfer, std::span<const MemberStatus> statuses, const TransferFacts& facts) {
  std::uint64_t ranks = 0;
  for (std::uint32_t r = 0; r < statuses.size(); ++r)
    if (transfer.held[r])
      ranks = std::max<std::uint64_t>(ranks, statuses[r].before.world == 0 ? statuses.size() : statuses[r].before.world);
  return std::max(gradient_buffers(facts.slots_left, ranks, facts.reduce),
                  gradient_buffers(facts.slots_left, statuses.size(), facts.reduce));
}

}  // namespace

bool goes_beside(const StateTransfer& transfer, std::span<const MemberStatus> statuses, std::uint64_t step, const TransferFacts& facts) {
  constexpr double margin = 1.5;   // what is expected may be wrong
  constexpr double least = 0.001;  // seconds: a thread is not worth less
  const std::uint64_t computing = givers(transfer);
  if (!transfer.complete || step == 0 || facts.slots_left == 0 || facts.rate == 0 || !facts.ranks_compute_apart) return false;
  if (facts.is_saved_by_number && statuses[transfer.giver].saved_step != step) return false;
  for (std::uint32_t r = 0; r < statuses.size(); ++r)
    if (transfer.held[r] && !statuses[r].whole_parameters) return false;
  const auto seconds = [&](std::uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(facts.rate); };
  if (computing == statuses.size()) return transfer.recuts && seconds(facts.shard_bytes) >= least;
  const std::uint64_t more = most_of(facts.slots_left, computing) - most_of(facts.slots_left, statuses.size());
  const double travels = seconds(facts.state_bytes * most_on_one_node(transfer, statuses));
  if (travels <= margin * static_cast<double>(more) * std::chrono::duration<double>{longest_slot(transfer, statuses)}.count()) return false;
  return gradient_buffers(facts.slots_left, computing, facts.reduce) <= buffers_there(transfer, statuses, facts);
}

Duration slots_beside(const StateTransfer& transfer, std::span<const MemberStatus> statuses, std::uint64_t slots) {
  return longest_slot(transfer, statuses) * static_cast<std::int64_t>(most_of(slots, std::max<std::uint64_t>(givers(transfer), 1)));
}

Duration time_for(const StateTransfer& transfer, std::uint64_t state_bytes) {
  const auto get_all = std::ranges::count_if(transfer.held, [](const std::optional<Cut>& held) { return !held.has_value(); });
  return time_for(state_bytes) * std::max<std::int64_t>(get_all, 1);
}

Duration time_for(std::uint64_t bytes) {
  constexpr std::uint64_t bytes_per_second = 100'000'000;
  return std::chrono::seconds{static_cast<std::int64_t>(bytes / bytes_per_second)};
}

LostMembers lost_members(std::span<const MemberStatus> statuses) {
  LostMembers out;
  std::vector<bool> here;
  for (std::uint32_t r = 0; r < statuses.size(); ++r) {
    const PlaceBefore& was = statuses[r].before;
    if (was.world == 0) continue;
    if (here.empty() || is_newer(was.generation, out.generation)) {
      out.generation = was.generation, out.teller = r;
      here.assign(was.world, false);
    }
    if (was.generation == out.generation && was.rank < here.size()) here[was.rank] = true;
  }
  for (std::uint32_t r = 0; r < here.size(); ++r)
    if (!here[r]) out.ranks.push_back(r);
  return out;
}

std::optional<std::string> lost_state_line(std::span<const MemberStatus> statuses, std::uint64_t step, const StateTransfer& transfer,
                                           const LostMembers& lost, const PreviousNodes& known, std::optional<std::uint64_t> in_memory) {
  if (transfer.complete || std::ranges::none_of(statuses, &MemberStatus::has_state)) return std::nullopt;
  // A member that knows of a step has its state, or has voted for it and applied it by now. So without `found` host state alone is missing.
  constexpr std::size_t most = 8;
  const bool knows_nodes = known.generation == lost.generation;
  std::vector<std::string> who;
  for (std::size_t i = 0; i < std::min(most, lost.ranks.size()); ++i) {
    const std::uint32_t r = lost.ranks[i];
    who.push_back(knows_nodes && r < known.names.size() ? fmt::format("rank {} (node {})", r, known.names[r]) : fmt::format("rank {}", r));
  }
  if (lost.ranks.size() > most) who.push_back(fmt::format("{} more", lost.ranks.size() - most));
  const std::string with =
      who.empty() ? "a worker" : fmt::format("{} of generation {}", fmt::join(who, " and "), to_string(lost.generation));
  const std::uint64_t again = in_memory ? step - std::min(step, *in_memory) : 0;
  const std::string where = !in_memory ? "the newest checkpoint, or to the beginning"
                                       : fmt::format("the in-memory checkpoint of step {}. {} repeated", *in_memory,
                                                     again == 1 ? "1 step is" : fmt::format("{} steps are", again));
  return fmt::format("{} step {} was lost with {}: all go back to {}",
                     transfer.found ? "part of the state of" : "the host state (what the program registered with job.state) of", step, with,
                     where);
}

}  // namespace elrun::inline v0
