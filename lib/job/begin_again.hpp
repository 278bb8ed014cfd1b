#pragma once
/// \file BeginAgain: how the program is left where it has to run again from its beginning.

#include <exception>

namespace elrun::inline v0 {

/// The state is gone, and there is no checkpoint: all members run the program from its beginning, in the same process. It goes through the program's own code, so it says what it is.
class BeginAgain final : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override {
    return "the state was lost with a worker and there is no checkpoint, so the program runs again in this process: let this exception out of it";
  }
};

/// The same, to a program that caught that many times in a row what it was to let out, as a loop does that skips what fails. No std::exception, so such a loop is left by it.
struct BeginAgainNow {};

}  // namespace elrun::inline v0
