#pragma once
/// \file Turns: code that waits in the middle, such as a training program, in a world where events come one after the other.
/// It has a stack of its own on the thread of whoever gives it the turn, and runs only while that one waits. A thread of its own would
/// do the same, and take a processor as much time for each turn as the simulated step does.

#include <ucontext.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/support/sim/planted_bugs.hpp"

namespace elrun::sim {

/// Comes out of `Turns::wait`: the process is gone, and what it was doing is not done.
struct Ended {};

/// Used from one thread.
class Turns {
 public:
  /// `body` begins with the first turn. It lets `Ended` through, and nothing else out.
  explicit Turns(std::function<void()> body);
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns();

  /// The body's turn, until it waits or is over.
  void give();
  /// By the body: back to whoever gave the turn.
  void wait();
  /// Unwinds a body that waits. By the body itself, nothing: it throws `Ended` on its own.
  void end();
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool ending() const { return ending_; }

 private:
  class Stack;
  /// What is of a thread, and each body has for itself: the exceptions of the C++ runtime, for a body may wait in a handler, and `last_assertion`.
  struct OfThread {
    void* caught = nullptr;
    unsigned uncaught = 0;
    std::string last_assertion{};
  };
  static void run(unsigned high, unsigned low);
  void hand_over(ucontext_t& from, const ucontext_t& to);
  std::function<void()> body_;
  std::unique_ptr<Stack> stack_;  ///< Null before the first turn, and once the body is over.
  ucontext_t giver_{}, waiting_{};
  OfThread others_;  ///< Of whoever stands still: the giver while the body runs, else the body.
  bool over_ = false, ending_ = false;
};

}  // namespace elrun::sim
