#include "lib/job/arrays/rounds_memory.hpp"

namespace elrun::inline v0 {

void RoundsMemory::mark(Mark& mark) {
  if (beside_ == nullptr) return;
  if (mark.at_.view().handle() == nullptr) mark.at_ = OwnedEvent{jobs_.device()};
  mark.at_.record(jobs_.stream());
}

void RoundsMemory::wait_for(const Mark& mark) {
  if (beside_ != nullptr && mark.at_.view().handle() != nullptr) wait_in(beside_->stream(), mark.at_.view());
}

void RoundsMemory::show_to_job() {
  if (beside_ == nullptr) return;
  done_.record(beside_->stream());
  wait_in(jobs_.stream(), done_.view());
}

}  // namespace elrun::inline v0
