#pragma once
/// \file Every operation that has run: who it was, for reports, and where it stands in the vector clocks, for the checker.
///
/// Stamps number the moments of the process: each turn of an operation begins at a new one, each block and barrier of a kernel at one of
/// its own. A stamp in a shadow cell so leads to the operation that made the access.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fakegpu/runtime/clock.hpp"
#include "tests/fakegpu/runtime/shadow.hpp"

namespace fakegpu {

struct PastOperation {
  Actor actor = 0;
  std::uint32_t epoch = 0;  ///< Its number among the operations of its actor.
  std::uint32_t name = 0;
  std::uint64_t number = 0;  ///< Among all operations, as enqueued.
  std::uint64_t stream = 0;
  int device = 0;
  bool given_up = false;  ///< What it wrote is garbage.
  bool over = false;
};

class History {
 public:
  History();
  using Index = std::uint32_t;
  /// A new operation, whose first turn begins now.
  Index begin(const PastOperation& operation, const std::string& name);
  /// A further turn of an operation that had begun before.
  void go_on(Index operation);
  /// The next moment.
  Stamp tick() { return ++now_ == 0 ? overflow() : now_; }
  [[nodiscard]] Stamp now() const { return now_; }

  [[nodiscard]] PastOperation& at(Index operation) { return operations_[operation]; }
  struct Turn {
    Stamp begin, end;  ///< [begin, end)
    Index operation;
  };
  /// The turn in which `stamp` lies.
  [[nodiscard]] Turn turn_of(Stamp stamp) const;
  /// "operation 12, for_each_kernel<AdamWFour>, on stream 1 (device 0)".
  [[nodiscard]] std::string describe(Index operation) const;

 private:
  [[noreturn]] static Stamp overflow();
  struct Begun {
    Stamp first;
    Index operation;
  };
  Stamp now_ = 0;
  std::vector<PastOperation> operations_;
  std::vector<Begun> turns_;
  std::vector<std::string> names_;
};

}  // namespace fakegpu
