#pragma once
/// \file Doorbell: how the processes of one host wake each other.

#include <utility>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// A wake-up that one thread waits for and any process can ring. No ring is lost: one that comes before the wait ends it at once.
/// It is a file (eventfd), not a word in memory: one wait serves all peers, and peers write to nobody's memory.
class Doorbell {
 public:
  static Result<Doorbell> make();
  /// A peer's doorbell, to ring it.
  explicit Doorbell(Fd file) : file_{std::move(file)} {}
  void ring() const noexcept;
  /// Returns once it was rung since the last wait, or after `most`.
  void wait(Duration most) const noexcept;
  [[nodiscard]] int file() const { return file_.get(); }

 private:
  Fd file_;
};

}  // namespace elrun::inline v0
