#pragma once
/// \file Host: whether an endpoint leads to this machine, and where a coordinator here listens.

#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// What is known of the endpoint's name and of this machine.
struct HostFacts {
  std::string host_name;                   ///< Of this machine.
  std::vector<std::string> own_addresses;  ///< As text.
  std::vector<std::string> leads_to;       ///< What the endpoint's name resolves to; empty: it does not.
};

/// What this machine would be as the coordinator's host.
struct HostPlace {
  std::string listen;   ///< Loopback alone for a loopback endpoint, else all interfaces.
  std::string address;  ///< Of this node for its peers.
  friend bool operator==(const HostPlace&, const HostPlace&) = default;
};

[[nodiscard]] bool is_loopback(const std::string& address);

/// Nothing when the coordinator is elsewhere.
[[nodiscard]] std::optional<HostPlace> host_place(const Endpoint& endpoint, HostRule rule, const HostFacts& here);

/// What the agents that are started one after the other for one node of a job have in common.
struct AgentPlace {
  RunId run;
  std::string boot;             ///< The kernel's number of this boot; empty: it gives none
  std::string host;             ///< Of a container its own, which outlives its restarts
  std::int32_t node_rank = -1;  ///< Tells agents on one host apart, where they have one
};
/// A digest that includes the kernel's boot id, which other hosts do not know, so no other host can send it. Empty where there is no boot id.
[[nodiscard]] std::string place_of_agent(const AgentPlace& place);

}  // namespace elrun::inline v0::launcher
