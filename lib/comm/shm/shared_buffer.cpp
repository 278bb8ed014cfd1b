#include "lib/comm/shm/shared_buffer.hpp"

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

SharedBuffer::SharedBuffer(std::shared_ptr<State> state) : state_{std::move(state)} {}

Result<SharedBuffer> SharedBuffer::make(Bytes size) {
  if (size == 0_B) return invalid("a shared buffer of no bytes");
  ELRUN_TRY_ASSIGN(SharedMemory memory, SharedMemory::make_returnable(size));
  return SharedBuffer{std::make_shared<State>(std::move(memory))};
}

std::span<std::byte> SharedBuffer::bytes() const { return {state_->memory().data(), state_->memory().size()}; }

}  // namespace elrun::inline v0
