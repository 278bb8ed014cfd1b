#pragma once
/// \file ELRUN_ASSERT: on in every build. A bug ends the process before it can spoil anybody's state.

#include <cstdio>
#include <cstdlib>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {
[[noreturn]] inline void assert_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "elrun: assertion failed: %s (%s:%d); this is a bug in elrun or in the program that uses it\n", expression, file,
               line);
  std::abort();
}
}  // namespace elrun::inline v0

#ifndef ELRUN_ASSERTION_FAILED  // the simulator's copy of the cores reports it with the seed that replays it
#define ELRUN_ASSERTION_FAILED ::elrun::assert_failed
#endif

#define ELRUN_ASSERT(expression) (static_cast<bool>(expression) ? void(0) : ELRUN_ASSERTION_FAILED(#expression, __FILE__, __LINE__))
