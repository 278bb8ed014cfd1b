#pragma once
/// \file RoundsMemory: the Memory in whose order exchange rounds work. It is the job's on the host, and without overlap. With overlap on a device it has a stream of its own,
/// so that what ranks do for each other runs beside the kernels of the program, which the job's stream may have before it. Marks say what of the job's work a round
/// comes after.
///
/// `overlap`, `mark`: the job's thread, `overlap` while no round is under way. All else: the thread of a round. A mark that is set again while a round begins to wait for it
/// means the older or the newer point.

#include <memory>

#include "lib/device/handles.hpp"
#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

class RoundsMemory {
 public:
  /// A point in the work of the job's stream; before it is set, its beginning.
  class Mark {
   public:
    Mark() = default;

   private:
    friend class RoundsMemory;
    OwnedEvent at_;
  };

  /// `jobs` outlives it.
  explicit RoundsMemory(Memory& jobs) : jobs_{jobs} {}
  /// From now on rounds work beside the job's stream, where this is a device. Throws Error.
  void overlap() {
    if (beside_ == nullptr) beside_ = jobs_.beside();
    if (beside_ != nullptr && done_.view().handle() == nullptr) done_ = OwnedEvent{jobs_.device()}, seen_ = OwnedEvent{jobs_.device()};
  }

  /// What the job's stream was given so far. Throws Error.
  void mark(Mark& mark);

  /// For what a round does with arrays of the job. All of these are allocated by the job's own memory, which waits for what was freed before it says that there is none.
  [[nodiscard]] Memory& get() const { return beside_ != nullptr ? *beside_ : jobs_; }
  /// What rounds are given from now on comes after that; their device stays the calling thread's current one. A round begins with it. Throws Error.
  void wait_for(const Mark& mark);
  /// What rounds are given from now on comes after all that the job's stream was given so far, kernels of the program too. Throws Error.
  void wait_for_job();
  /// What the job's stream is given from now on comes after what rounds were given so far. Throws Error.
  void show_to_job();

 private:
  Memory& jobs_;
  std::unique_ptr<Memory> beside_;  // none: the job's
  OwnedEvent done_, seen_;
};

}  // namespace elrun::inline v0
