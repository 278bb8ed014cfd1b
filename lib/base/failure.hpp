#pragma once
/// \file The one translation from errno, and small helpers for making failures.

#include <string>
#include <string_view>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>

namespace elrun::inline v0 {

/// `what` says what was tried on what ("create /ckpt/RUN.json"); the text and code of `error` are added.
[[nodiscard]] Failure from_errno(int error, std::string_view what);
[[nodiscard]] Failure invalid(std::string what);  ///< invalid_argument, fix_config
/// All problems in one failure, one per line when there are several.
[[nodiscard]] Failure invalid(const std::vector<std::string>& problems);
/// The failure of this rank, in the group of this name if it has one.
[[nodiscard]] Failure located(Failure failure, const Membership& me, std::string_view group);

}  // namespace elrun::inline v0
