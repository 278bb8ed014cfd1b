#pragma once
/// \file Core: when what failed on the storage is tried again. Any save at once; for longer the final one, whose state exists in memory alone, and a start, which
/// restarts would not help.

#include <optional>
#include <string>

#include <elrun/failure.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Whether a save that failed `tries` times is tried again at once, under another name: twice, where the next moment may be a better one. What is
/// full, forbidden, gone or hangs stays so.
[[nodiscard]] bool is_tried_at_once(Code why, unsigned tries);

/// Tries that failed, of the final save or of a start.
struct StorageWait {
  Duration wait{};                 ///< As the job was told: so long after `begun` it is tried again.
  std::optional<Instant> begun{};  ///< The first failure, or an earlier time that counts in its place; nothing: none has failed yet.
  unsigned tries = 0;              ///< So far, all of them failed.
};

/// Longer than this nobody waits: a year is for ever, and what is added to it is still a time.
constexpr Duration wait_max = std::chrono::hours{24 * 365};

/// The pause before the next try: 1 s, then twice as much, up to 30 s. Nothing: it is over, for the time is, or because time heals no
/// such failure.
[[nodiscard]] std::optional<Duration> pause_before_next(const StorageWait& wait, const Failure& why, Instant now);
/// Whether the next try of a save needs a fence of its own: a step has so many names under one.
[[nodiscard]] bool needs_another_fence(const StorageWait& wait);
/// Whether a start that failed so waits for the storage: it hangs, cannot be reached or cannot be read, or rank 0 does not see yet what others see. What a person has to change or to decide ends the job
/// at once.
[[nodiscard]] bool may_pass(const Failure& why);

/// For the person who can free space, mount, or allow: what failed, and how long there is time for it.
[[nodiscard]] std::string final_save_failed(const StorageWait& wait, std::uint64_t step, const Failure& why, Duration pause, Instant now);
[[nodiscard]] std::string start_failed(const StorageWait& wait, const Failure& why, Duration pause, Instant now);

}  // namespace elrun::inline v0
