#pragma once
/// \file Core: what a rank needs of new memory in the worlds that one loss may leave.

#include <cstdint>
#include <span>

#include <elrun/plan.hpp>

#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

/// The most of each in any of these worlds.
struct LossNeeds {
  std::uint64_t whole_gradients = 0;  ///< Buffers; 0 where gradients are exchanged per slot.
  std::uint64_t received =
      0;  ///< Elements of other ranks' sums, once per step. 0 where leaves are bf16, for what arrives then is of two types.
  std::uint64_t moments = 0;  ///< Elements of each of the optimizer's kinds; 0 where this rank's shard stays as it is.
  friend bool operator==(const LossNeeds&, const LossNeeds&) = default;
};

/// Worlds without the first or the last one of the other ranks, of those of this rank's node, and of the other nodes. Arrays lie on the host. `nodes`: by rank.
[[nodiscard]] LossNeeds needs_after_a_loss(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes,
                                           std::uint32_t rank);

/// The elements of this rank's part of an in-memory checkpoint in the worlds without one worker, the most of them. 0: none is made there.
[[nodiscard]] std::uint64_t checkpoint_after_a_loss(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes,
                                                    std::uint32_t rank);

}  // namespace elrun::inline v0
