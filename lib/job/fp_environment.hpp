#pragma once
/// \file Whether the calling thread rounds to nearest and keeps small numbers: a library that was loaded with fast-math
/// turns the latter off for everybody, and the bits with it. And how the job's own sums are made the same in any mode.

#include <cfenv>
#include <optional>
#include <string>

namespace elrun::inline v0 {

/// What is wrong with the calling thread's floating-point modes, with the remedy; nothing when they are right.
[[nodiscard]] std::optional<std::string> fp_environment_problem();

/// While this is there, the calling thread has the default floating-point environment; afterwards it has its own again. For what the job adds up while the program
/// may be in a mode of its own. The arithmetic has to be behind a call that is not inlined: the compiler may move other arithmetic over the change of the mode.
class DefaultFpEnvironment {
 public:
  DefaultFpEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  DefaultFpEnvironment(const DefaultFpEnvironment&) = delete;
  DefaultFpEnvironment& operator=(const DefaultFpEnvironment&) = delete;
  ~DefaultFpEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
};

}  // namespace elrun::inline v0
