#pragma once
/// \file What the plan means to a checkpoint: the lines that make two jobs the same job, and their hash.

#include <optional>
#include <string>
#include <vector>

#include <elrun/plan.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

constexpr std::uint64_t slots_max = 1 << 16;  ///< Slots per step; also a bound on what is kept per slot.
constexpr std::uint32_t numeric_version = 1;  ///< Raised when libelrun's own arithmetic gives other bits.

/// Everything that fixes the bits, one `name: value` per line; `placement`, `memory_per_rank` and `steps` do not.
[[nodiscard]] PlanIdentity identity(const Plan& plan);
/// With what the declarations add to it: units whose weights are bf16.
[[nodiscard]] PlanIdentity identity(const Plan& plan, const std::vector<UnitSpec>& units);

/// Null for none that is known.
[[nodiscard]] const char* name_of(Reduce reduce);
/// Of `Plan::leaves`; null for what no leaf can be.
[[nodiscard]] const char* name_of(DType leaves);
/// "zero(2)", "hybrid(zero(2))" or "mirrored(zero(2))", whenever gradients travel; nothing for what is none of them.
[[nodiscard]] std::optional<std::string> name_of(const Placement& placement);
/// What `Exchange::automatic` means where memory is no question; where it is, see choose_exchange.
[[nodiscard]] bool exchanges_per_slot(const Placement& placement);

/// Problems of plan and options together.
[[nodiscard]] std::vector<std::string> problems(const Plan& plan, const CheckpointOptions& checkpoint);

}  // namespace elrun::inline v0
