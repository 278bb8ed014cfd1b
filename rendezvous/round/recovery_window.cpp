#include "rendezvous/round/recovery_window.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/assign.hpp"

namespace elrun::inline v0 {

RecoveryWindow::RecoveryWindow(const Join& resuming, Duration wait, Instant now)
    : generation_{resuming.last},
      shape_{resuming.seat.value_or(Seat{})},
      wait_{wait},
      until_{now + wait},
      why_{fmt::format("for {:.3g} s none of the others came", seconds(wait))} {
  ELRUN_ASSERT(resuming.seat.has_value());
}

RecoveryWindow::Taken RecoveryWindow::take(const Join& resuming, Instant now) {
  Seat expected = shape_;
  expected.group_rank = resuming.seat->group_rank;
  expected.base_rank = resuming.seat->base_rank;
  if (expected != *resuming.seat) return Taken::no;
  const auto [seat, is_new] = seats_.try_emplace(resuming.seat->group_rank, resuming.who.node);
  if (seat->second != resuming.who.node) return Taken::no;
  if (seats_.size() >= shape_.nodes) return Taken::complete;
  if (const Instant soon = now + reconnect_window; resuming.broken && soon < until_) {
    until_ = soon;  // whoever is on its way back may still be in the next one
    why_ = fmt::format("a worker of node {} has failed or lost a peer", resuming.who.node.value());
    is_hopeless_ = true;
  }
  // As long as members arrive, the others may only be waiting for their turn: there may be 100,000 of them.
  if (is_new && !is_hopeless_) until_ = now + wait_;
  return Taken::yes;
}

void RecoveryWindow::remove(const NodeId& node) {
  std::erase_if(seats_, [&](const auto& seat) { return seat.second == node; });
}

bool RecoveryWindow::only_its_coordinator_is_missing(bool elected, const JoinOf& join_of) const {
  if (seats_.size() + 1 != shape_.nodes && !ELRUN_PLANTED(others_are_not_waited_for)) return false;
  const bool fell_silent =
      std::all_of(seats_.begin(), seats_.end(), [&](const auto& seat) { return join_of(seat.second).coordinator_fell_silent; });
  if (elected && !is_hopeless_ && !fell_silent && !ELRUN_PLANTED(stepped_down_is_not_waited_for)) return false;
  return std::all_of(seats_.begin(), seats_.end(), [&](const auto& seat) {
    const std::optional<std::uint32_t>& place = join_of(seat.second).coordinated_by;
    return place && *place < shape_.nodes && !seats_.contains(*place);
  });
}

std::optional<std::vector<Member>> RecoveryWindow::all_members(const JoinOf& join_of) const {
  std::vector<Member> members;
  std::uint32_t base_rank = 0;
  bool fits = true;
  for (const auto& [rank, id] : seats_) {
    const Join& join = join_of(id);
    fits = fits && join.seat && join.seat->base_rank == base_rank;
    members.push_back({id, join.address, join.workers, base_rank, join.master_port});
    base_rank += join.workers;
  }
  if (!fits || base_rank != shape_.world_size || roster_hash(members) != shape_.roster) return {};
  return members;
}

std::vector<Member> RecoveryWindow::present_members(const JoinOf& join_of) const {
  std::vector<Member> members;
  for (const auto& [rank, id] : seats_) {
    const Join& join = join_of(id);
    members.push_back({id, join.address, join.workers, 0, join.master_port});
  }
  return members;
}

}  // namespace elrun::inline v0
