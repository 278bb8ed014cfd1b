#pragma once
/// \file How long a rank keeps what peers of its host showed a group, after the group has ended.

#include <cstdint>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// By then the next generation has connected and begun its step, as a rule. Unmapping at once would take processors from it, and the lock without which
/// a process maps nothing.
constexpr Duration unmap_delay = 100ms;

/// The pages of a dead peer are free only when the last survivor has unmapped them. The ranks of a host make at most about as much anew for the next
/// generation as they had shown to this one; twice, for they make memory as well that they show nobody.
constexpr std::uint64_t left_for_delay = 2;

/// `shown`: by all ranks of this host, at most what unmapping frees. `left`: bytes that this process may still take. Where they might not do for
/// the next generation, there is no delay.
[[nodiscard]] constexpr Duration delay_before_unmapping(Bytes shown, std::uint64_t left) {
  return left / left_for_delay >= shown.value() ? unmap_delay : Duration{};
}

}  // namespace elrun::inline v0
