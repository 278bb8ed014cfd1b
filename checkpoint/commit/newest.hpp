#pragma once
/// \file Shell: the newest acknowledgement of a job, as its store remembers it.

#include <string>
#include <string_view>

#include <elrun/result.hpp>
#include <elrun/store.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

constexpr std::string_view newest_checkpoint_key = "job/elrun/checkpoint";  ///< Of the job's store.

/// Puts `acknowledgement` under that key, unless the store holds one of the same root that was made after it: a leader that was frozen tells its own late.
/// All its calls of the store end by `deadline`. May be called again after a failure.
Result<void> tell_newest(Store& store, const std::string& acknowledgement, Deadline deadline);

/// What the store has under that key; empty where it has nothing. Asks by `deadline`.
[[nodiscard]] Result<std::string> newest_told(Store& store, Deadline deadline);

}  // namespace elrun::inline v0
