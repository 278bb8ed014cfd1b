#include "lib/job/arrays/pinned_blocks.hpp"

#include <algorithm>
#include <exception>

#include "lib/device/wait.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration last_wait = 2s;  // as that of device_memory.hpp

}  // namespace

std::span<std::byte> PinnedBlocks::take(std::size_t most) {
  if (block_ < blocks_.size() && offset_ == block_bytes) ++block_, offset_ = 0;
  if (block_ == blocks_.size()) blocks_.emplace_back(device_, block_bytes);
  const std::span<std::byte> left = blocks_[block_].span().subspan(offset_);
  const std::span<std::byte> taken = left.first(std::min(most, left.size()));
  offset_ += taken.size();
  return taken;
}

PinnedBlocks::~PinnedBlocks() {
  if (blocks_.empty()) return;
  try {
    const EventWait its_end{.what = "the last copy of pinned memory", .deadline = Deadline::after(clock_->now(), last_wait)};
    const auto done = wait_for(used(), its_end, *clock_);
    if (done.ok() || done.failure().code != Code::deadline_passed) return;  // a device that is lost has nothing under way
    for (PinnedBuffer& block : blocks_) new PinnedBuffer{std::move(block)};
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as a device that is lost
  }
}

}  // namespace elrun::inline v0
