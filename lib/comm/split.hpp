#pragma once
/// \file Who belongs to which group when a group is split. Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <elrun/ids.hpp>

namespace elrun::inline v0 {

/// What one rank passed to ProcessGroup::split.
struct SplitRequest {
  std::uint32_t joins = 0;  ///< 0: it passed no color.
  std::uint32_t color = 0;
  std::int32_t key = 0;
};

/// The members of the group that rank `me` comes to, as ranks of the group that is split, in their new order: by key,
/// then by rank. Empty when it comes to none.
[[nodiscard]] std::vector<Rank> members_of_split(std::span<const SplitRequest> requests, Rank me);

}  // namespace elrun::inline v0
