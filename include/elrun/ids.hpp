#pragma once
/// \file Who is who: ranks, nodes, and the generation that everything belongs to.

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include <elrun/export.hpp>
#include <elrun/strong.hpp>

namespace elrun::inline v0 {

using Rank = Strong<struct RankTag, std::uint32_t>;              ///< Of a worker in its world: 0 .. world size - 1.
using WorldSize = Strong<struct WorldSizeTag, std::uint32_t>;    ///< Number of workers in a world.
using LocalRank = Strong<struct LocalRankTag, std::uint32_t>;    ///< Of a worker on its node: 0 .. workers of the node - 1.
using GroupRank = Strong<struct GroupRankTag, std::uint32_t>;    ///< Of a node in its world.
using NodeId = Strong<struct NodeIdTag, std::string>;            ///< Of a node, for people and for the coordinator.
using RunId = Strong<struct RunIdTag, std::string>;              ///< Of a job (`--rdzv_id`).
using StepNumber = Strong<struct StepNumberTag, std::uint64_t>;  ///< Decided steps so far.

/// 128 random bits, drawn at each start of a coordinator: two coordinators never share one.
struct Lineage {
  std::array<std::uint64_t, 2> bits{};
  friend constexpr auto operator<=>(const Lineage&, const Lineage&) = default;
};

/// One membership of the world. The number only grows; a message is valid for exactly one (number, lineage).
struct Generation {
  std::uint64_t number = 0;
  Lineage lineage{};
  friend constexpr bool operator==(const Generation&, const Generation&) = default;
};

/// `12@89ab0123`: the number and the first half word of the lineage, enough for a person to tell two apart.
[[nodiscard]] ELRUN_API std::string to_string(const Generation& generation);

/// One worker's place in one generation.
struct Membership {
  Generation generation{};
  Rank rank{};
  WorldSize world{1};
  friend constexpr bool operator==(const Membership&, const Membership&) = default;
};

}  // namespace elrun::inline v0
