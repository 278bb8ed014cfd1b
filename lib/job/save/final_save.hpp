#pragma once
/// \file Core: when a save that failed is tried again: at once, and the final one, whose state exists in memory alone, for longer.

#include <optional>
#include <string>

#include <elrun/failure.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Whether a save that failed `tries` times is tried again at once, under another name: twice, where the next moment may be a better one. What is
/// full, forbidden, gone or hangs stays so.
[[nodiscard]] bool is_tried_at_once(Code why, unsigned tries);

/// What follows a try of the final save that failed.
struct FinalSave {
  Duration wait{};     ///< As the job was told: so long after the first failure it is tried again.
  Instant begun{};     ///< The first failure.
  unsigned tries = 0;  ///< So far, all of them failed.
};

/// The pause before the next try: 1 s, then twice as much, up to 30 s. Nothing: it is over, for the time is, or because time heals no
/// such failure.
[[nodiscard]] std::optional<Duration> pause_before_next(const FinalSave& save, const Failure& why, Instant now);

/// For the person who can free space, mount, or allow: what failed, and how long there is time for it.
[[nodiscard]] std::string told(const FinalSave& save, std::uint64_t step, const Failure& why, Duration pause, Instant now);

}  // namespace elrun::inline v0
