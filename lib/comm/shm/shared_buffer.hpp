#pragma once
/// \file What a SharedBuffer is made of.

#include <unistd.h>

#include <elrun/process_group.hpp>

#include "lib/comm/shm/shared_memory.hpp"

namespace elrun::inline v0 {

/// Its pages go with it, although peers may map them until their group ends. Not in a forked child: they are its parent's too.
class SharedBuffer::State {
 public:
  explicit State(SharedMemory memory) : memory_{std::move(memory)} {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (::getpid() == owner_) memory_.give_back();
    else memory_.leave_mapped();
  }
  [[nodiscard]] const SharedMemory& memory() const { return memory_; }

 private:
  SharedMemory memory_;
  const int owner_ = ::getpid();
};

}  // namespace elrun::inline v0
