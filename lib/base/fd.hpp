#pragma once
/// \file Fd: a file descriptor with one owner.

#include "lib/base/owned.hpp"

namespace elrun::inline v0 {

/// Closes; an error is logged to standard error, for there is nobody left to tell.
void close_or_log(int fd) noexcept;

using Fd = Owned<int, -1, close_or_log>;

}  // namespace elrun::inline v0
