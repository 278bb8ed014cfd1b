#include "tests/fakegpu/simt/interpreter.hpp"

#include <numeric>

#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"
#include "tests/fakegpu/simt/access.hpp"
#include "tests/fakegpu/simt/block.hpp"
#include "tests/fakegpu/simt/device_side.hpp"
#include "tests/fakegpu/simt/shared_memory.hpp"

namespace fakegpu {

Position position;

bool run_grid(Runtime& runtime, const GridRun& run) {
  set_shared_memory(run.body, run.shared_bytes);
  position.grid_dim = {run.grid.x, run.grid.y, run.grid.z};
  position.block_dim = {run.block.x, run.block.y, run.block.z};
  const std::uint64_t blocks = std::uint64_t{run.grid.x} * run.grid.y * run.grid.z;
  Random& random = runtime.scheduler.random();
  const std::uint64_t step = 1 + random.below(blocks), first = random.below(blocks);
  const std::uint64_t stride = std::gcd(step, blocks) == 1 ? step : 1;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const auto b = static_cast<std::uint64_t>((first + static_cast<unsigned __int128>(i) * stride) % blocks);
    const Index index{static_cast<unsigned>(b % run.grid.x), static_cast<unsigned>(b / run.grid.x % run.grid.y),
                      static_cast<unsigned>(b / run.grid.x / run.grid.y)};
    if (!block.run(runtime, run, static_cast<std::uint32_t>(b), index)) return false;
  }
  return true;
}

void block_barrier() { block.barrier(); }
unsigned block_count(bool value) { return block.count(value); }
unsigned lane() { return block.current() % warp_lanes; }

std::uint64_t warp_exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from) {
  return block.exchange(call, mask, value, from);
}

unsigned warp_ballot(unsigned mask, bool value) { return block.ballot(mask, value); }

bool is_made_at_once(const AsyncCopy& copy) { return block.is_made_at_once(copy); }
void end_group_of_copies() { block.end_group_of_copies(); }
AsyncCopy next_copy(unsigned left) { return block.next_copy(left); }

void access_to(const void* p, std::size_t bytes, Access access) {
  if (!block.is_running()) return;
  Checker& checker = block.runtime().checker;
  bool allowed = true;
  if (Memory::in_range(p)) allowed = checker.touch(p, bytes, access);
  else if (const SharedPlace place = shared_place_of(p); place.memory != nullptr)
    allowed = checker.touch_shared(*place.memory, place.offset, bytes, access);
  if (!allowed) block.stop();
}

void atomic_access_to(const void* p, std::size_t bytes) { access_to(p, bytes, Access::atomic); }

void misaligned_access(const void* p, std::size_t alignment, const std::string& type, const std::string& where) {
  if (!block.is_running()) return;
  Runtime& runtime = block.runtime();
  const Allocation* const a = Memory::in_range(p) ? runtime.memory.find(p) : nullptr;
  report(runtime.checker.who() + " uses a misaligned pointer at " + where + ": " + type + " needs " + std::to_string(alignment) + " bytes" +
         (a != nullptr ? ", offset " + std::to_string(static_cast<const std::byte*>(p) - a->base) + " of " + a->name() : std::string{}));
  block.stop();
}

}  // namespace fakegpu
