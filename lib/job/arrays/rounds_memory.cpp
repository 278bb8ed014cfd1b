#include "lib/job/arrays/rounds_memory.hpp"

#include "lib/device/current_device.hpp"

namespace elrun::inline v0 {

void RoundsMemory::mark(Mark& mark) {
  if (beside_ == nullptr) return;
  if (mark.at_.view().handle() == nullptr) mark.at_ = OwnedEvent{jobs_.device()};
  mark.at_.record(jobs_.stream());
}

void RoundsMemory::wait_for(const Mark& mark) {
  if (beside_ == nullptr) return;
  keep_current(beside_->device());  // the communication thread has no other; putting back device 0 would make a context there
  if (mark.at_.view().handle() != nullptr) wait_in(beside_->stream(), mark.at_.view());
}

void RoundsMemory::wait_for_job() {
  if (beside_ == nullptr) return;
  seen_.record(jobs_.stream());
  wait_in(beside_->stream(), seen_.view());
}

void RoundsMemory::show_to_job() {
  if (beside_ == nullptr) return;
  done_.record(beside_->stream());
  wait_in(jobs_.stream(), done_.view());
}

}  // namespace elrun::inline v0
