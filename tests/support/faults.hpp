#pragma once
/// \file Faults of a storage, whatever it is: one operation fails or is the process's last, or another party acts before it. Several threads may use it, one at a time.

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include <elrun/result.hpp>

#include "lib/base/files.hpp"

namespace elrun::test {

/// Thrown out of an operation: the process died in it.
struct Killed {};

class Faults {
 public:
  /// What happens at one operation, counted from the last `arm`.
  struct Fault {
    std::uint64_t at = 0;
    int error = 0;           ///< An errno; 0: the process dies.
    bool sticky = false;     ///< The error stays for all that could meet it (ENOSPC: whatever takes space).
    bool half_done = false;  ///< A kill: the operation took effect before it. A failed write: half of it did.
  };
  void arm(std::optional<Fault> fault);
  [[nodiscard]] std::uint64_t operations() const { return operations_; }  ///< Since the last `arm`.
  [[nodiscard]] bool fired() const { return fired_; }
  /// Called before each operation with its number, except for operations inside the call itself.
  std::function<void(std::uint64_t)> before;

  /// The errno with which every operation on a path fails; 0: it does not.
  std::function<int(const Path&)> broken;

 protected:
  /// Counts an operation, then runs `effect` unless a fault says otherwise.
  Result<void> operation(const char* verb, const Path& path, bool takes_space, const std::function<Result<void>(bool half)>& effect);
  void mark_fired() { fired_ = true; }

 private:
  std::recursive_mutex mutex_;  // `before` comes back
  std::optional<Fault> fault_;
  std::uint64_t operations_ = 0;
  bool fired_ = false;
  bool inside_ = false;
};

}  // namespace elrun::test
