#include "rendezvous/round/verdict_delivery.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

bool only_own_node_is_here(const NodeTable& nodes) {
  return std::all_of(nodes.all().begin(), nodes.all().end(), [&](const auto& entry) { return nodes.is_in_process(entry.second); });
}

}  // namespace

bool VerdictDelivery::end_of_stream_confirms(const Join& join, bool in_process) const {
  return !join.confirms_verdict || in_process || ELRUN_PLANTED(verdict_is_not_confirmed);
}

std::optional<Instant> VerdictDelivery::lingers_until(const NodeTable& nodes, std::uint32_t nodes_max) const {
  if (verdict_->exit_code != 0 || confirmed_.size() + nodes.all().size() >= nodes_max) return {};
  return given_at_ + late_linger;
}

bool VerdictDelivery::may_end(const NodeTable& nodes, std::uint32_t nodes_max, Duration linger, Instant now) const {
  if (!verdict_) return false;
  if (const auto until = lingers_until(nodes, nodes_max); until && now < *until) return false;
  return now >= waits_until(linger) || only_own_node_is_here(nodes);
}

std::optional<std::string> VerdictDelivery::linger_text(const NodeTable& nodes, std::uint32_t nodes_max, Instant now) {
  if (linger_told_) return {};
  const auto until = lingers_until(nodes, nodes_max);
  if (!until || now >= *until || !only_own_node_is_here(nodes)) return {};
  linger_told_ = true;
  const std::size_t more = nodes_max - confirmed_.size() - nodes.all().size();
  return fmt::format(
      "the job is done; the coordinator stays for another {:.0f} s: {} more may come (--nnodes), and would begin the job again if nobody told them",
      std::ceil(seconds(*until - now)), count_of(more, "node"));
}

}  // namespace elrun::inline v0
