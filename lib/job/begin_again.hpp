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

}  // namespace elrun::inline v0
