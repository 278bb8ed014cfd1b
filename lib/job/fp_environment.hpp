#pragma once
/// \file Whether the calling thread rounds to nearest and keeps small numbers: a library that was loaded with fast-math
/// turns the latter off for everybody, and the bits with it.

#include <optional>
#include <string>

namespace elrun::inline v0 {

/// What is wrong with the calling thread's floating-point modes, with the remedy; nothing when they are right.
[[nodiscard]] std::optional<std::string> fp_environment_problem();

}  // namespace elrun::inline v0
