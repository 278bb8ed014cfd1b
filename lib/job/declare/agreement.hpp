#pragma once
/// \file What all members of a world must have alike before they train together, and how two that differ are told apart.

#include <string>
#include <string_view>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

/// One `name: value` or one tensor per line.
struct Agreement {
  std::string_view name;  ///< "plan"
  std::string text;
  std::string_view remedy = "start all workers with the same program and flags";  ///< Where they differ.
};
[[nodiscard]] std::vector<Agreement> agreements(const Plan& plan, const CheckpointOptions& checkpoint, const std::vector<UnitSpec>& units);

/// What a worker's checkpoint directory is. `whole`: its absolute path here. Records of checkpoints, and the keys under which asynchronous saves meet, have that text, so it is the same on all ranks.
[[nodiscard]] Agreement directory_agreement(const std::string& whole);

/// The lines that only one of two texts has, with whose they are; the first few of each. "rank 0: seed: 1\nrank 2: seed: 3"
[[nodiscard]] std::string difference(std::string_view whose_a, std::string_view a, std::string_view whose_b, std::string_view b);

}  // namespace elrun::inline v0
