#pragma once
/// \file Turns: code that waits in the middle, such as a training program, in a world where events come one after the other.
/// It has a thread of its own, and runs only while whoever gave it the turn waits: two threads of which one stands still.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/support/sim/planted_bugs.hpp"

namespace elrun::sim {

/// Comes out of `Turns::wait`: the process is gone, and what it was doing is not done.
struct Ended {};

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
  void hand_over(bool to_body);
  std::function<void()> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool bodys_turn_ = false, over_ = false, ending_ = false;
  std::thread thread_;
};

}  // namespace elrun::sim
