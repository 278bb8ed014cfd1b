#pragma once
/// \file Whose a group is: the process that made it. A forked child has a copy of its memory, and none of its threads.

#include <unistd.h>

#include <fmt/format.h>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// `owner`: the process that made the group. Looks at no lock, which a thread of that process may have held at the fork.
[[nodiscard]] inline Result<void> check_owner(int owner) {
  if (::getpid() == owner) return {};
  return Failure{.code = Code::refused,
                 .remedy = Remedy::exit_process,
                 .what = fmt::format("this process was forked from worker {} and has no process group", owner)};
}

}  // namespace elrun::inline v0
