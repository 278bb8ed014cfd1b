#pragma once
/// \file Shell: a change of one key of the job's store that depends on what the key holds.

#include <functional>
#include <optional>
#include <string_view>

#include <elrun/result.hpp>
#include <elrun/store.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Puts under `key` what `next` makes of what it holds (empty: nothing). `next` says nothing where it stays as it is, and is asked again where somebody else changed it meanwhile.
/// All calls of the store end by `deadline`. May be called again after a failure.
Result<void> change_key(Store& store, std::string_view key, const std::function<std::optional<ByteVector>(ByteSpan held)>& next,
                        Deadline deadline);

}  // namespace elrun::inline v0
