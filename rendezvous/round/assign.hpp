#pragma once
/// \file Which node gets which place in a world: ranks that are dense, and stable where they can be.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

/// node2 before node10: runs of digits are compared as numbers, all else by character.
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

/// A node that will be in the next world.
struct Candidate {
  NodeId node;
  std::string address;
  std::uint32_t workers = 1;
  std::uint16_t master_port = 0;
  std::int32_t hint = -1;
  std::string topology;  ///< "zone/rack/host"
  std::string role;
};

/// In group-rank order with base ranks, also among those of one role. Survivors of `before` keep their relative order and come first; newcomers follow
/// by hint, then by natural name. Nodes that share topology labels are then put side by side, each group where the first of
/// it stood. A fixed world (`fixed`) whose nodes all gave different hints is as given instead.
[[nodiscard]] std::vector<Member> assign(std::vector<Candidate> candidates, const std::vector<Member>& before, bool fixed);

/// Says that two nodes gave the same hint, if two did.
[[nodiscard]] std::optional<std::string> same_hints(const std::vector<Candidate>& candidates);

/// A hash of the members in their order. Stable between versions of elrun of one major version.
[[nodiscard]] std::uint64_t roster_hash(const std::vector<Member>& members);

}  // namespace elrun::inline v0
