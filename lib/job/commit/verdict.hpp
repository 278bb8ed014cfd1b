#pragma once
/// \file Who is wrong, where several should have the same number.

#include <cstdint>
#include <optional>
#include <span>

namespace elrun::inline v0 {

/// One of several that should agree.
struct Mismatch {
  std::size_t index = 0;
  bool outvoted = false;  ///< The others' number has more voices than any other; else nobody can tell who is right.
  friend constexpr bool operator==(const Mismatch&, const Mismatch&) = default;
};
/// The first who differs from what most have, or from the first where no number has most voices; nothing when all agree.
[[nodiscard]] std::optional<Mismatch> find_mismatch(std::span<const std::uint64_t> numbers);

}  // namespace elrun::inline v0
