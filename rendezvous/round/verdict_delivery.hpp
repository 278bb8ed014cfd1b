#pragma once
/// \file VerdictDelivery: the job's verdict, which nodes have heard it, and how long the coordinator stays for those that have not. Pure.
///
/// A node is here until it has heard the verdict. After success others may come late, or thaw, and would begin the job again if nobody told
/// them; so the coordinator stays for them as well, unless as many nodes as there is room for have heard it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/node_table.hpp"

namespace elrun::inline v0 {

/// Once the job has succeeded, its coordinator stays this long for nodes that come late or thaw: they hear that it is over, and do not
/// begin it again. Not where as many nodes as there is room for have heard it.
constexpr Duration late_linger = 10s;

class VerdictDelivery {
 public:
  [[nodiscard]] bool is_given() const { return verdict_.has_value(); }
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  void give(Verdict verdict, Instant now) { verdict_ = std::move(verdict), given_at_ = now; }

  /// The node has read it, and is about to go.
  void confirmed(const NodeId& node) { confirmed_.insert(node); }
  /// The end of the node's stream means that it has read it. A node that confirms it would have said so: it comes again.
  [[nodiscard]] bool end_of_stream_confirms(const Join& join, bool in_process) const;

  // `nodes`: those that have not heard it; `nodes_max`: as many as the job has room for, 0: no node has said.
  /// Every node that is here has it, or they had long enough, and nobody else is waited for.
  [[nodiscard]] bool may_end(const NodeTable& nodes, std::uint32_t nodes_max, Duration linger, Instant now) const;
  /// Nodes that have not been here may come until then, and are waited for.
  [[nodiscard]] std::optional<Instant> lingers_until(const NodeTable& nodes, std::uint32_t nodes_max) const;
  /// Until then nodes that are here are waited for.
  [[nodiscard]] Instant waits_until(Duration linger) const { return given_at_ + linger; }
  /// Why this process does not end yet, for whoever watches it; once, when nobody but its own node is here.
  [[nodiscard]] std::optional<std::string> linger_text(const NodeTable& nodes, std::uint32_t nodes_max, Instant now);

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Verdict> verdict_;
  Instant given_at_{};
  std::set<NodeId> confirmed_;
  bool linger_told_ = false;
};

}  // namespace elrun::inline v0
