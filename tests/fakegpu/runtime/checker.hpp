#pragma once
/// \file Compares each access to memory of the devices with the accesses before it.
///
/// Two accesses of the same bytes, one of them a write, need an order: the same stream, an event, a wait of the host between them; inside
/// one launch the same thread, or a barrier of the block. What the seed made of the order does not matter: an order that is only luck is
/// found in every run. Reported as well: reads of what nothing has written, or what an operation that was given up left behind; accesses
/// outside of an allocation, to freed memory, to another device's, and misaligned ones.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/fakegpu/runtime/clock.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/fakegpu/runtime/history.hpp"
#include "tests/fakegpu/runtime/memory.hpp"

namespace fakegpu {

enum class Access : std::uint8_t { read, write, atomic };

/// Which thread of a kernel runs now, and since when its block and its warp are in step. The interpreter keeps it.
struct RunningThread {
  std::uint32_t block = 0;  ///< For reports: the block's number in the grid.
  ThreadMark thread = whole_operation;
  Stamp block_begin = 0;  ///< When the block began.
  Stamp barrier = 0;      ///< The block's last barrier.
  std::array<Stamp, 32> warp_barrier{};
};

/// The shared memory of the block that runs: `place.size` bytes, of which nothing is written when a block begins.
struct SharedMemory {
  Allocation place;
};

/// Sets of turns that read the same bytes with no order between them. A cell holds the index of one.
class ReaderSets {
 public:
  std::uint32_t index_of(const std::vector<Stamp>& stamps);
  [[nodiscard]] const std::vector<Stamp>& at(std::uint32_t index) const { return sets_[index]; }

 private:
  std::vector<std::vector<Stamp>> sets_{{}};  // 0 is none
  std::map<std::vector<Stamp>, std::uint32_t> index_;
};

class Checker {
 public:
  Checker(Memory& memory, History& history) : memory_{memory}, history_{history} {}

  /// A turn of `operation` begins. `peers` has a bit for each device whose memory it may use.
  void begin(History::Index operation, const Clock& clock, std::uint32_t peers);
  void end();

  /// An access by the running thread of the running kernel. False: it must not be made (it would leave the memory that may be used).
  bool touch(const void* p, std::size_t bytes, Access access);
  /// An access of a whole range by the running operation: a copy, for example. False: it must not be made.
  bool touch_range(const Range& range, Access access);
  /// Nobody may use `a` any more: whoever used it has to have ended, as far as the host knows.
  void check_free(const Allocation& a, const Clock& host);

  /// As touch, in the shared memory of the block.
  bool touch_shared(SharedMemory& shared, std::size_t offset, std::size_t bytes, Access access);

  [[nodiscard]] RunningThread& thread() { return thread_; }
  /// "operation 12, name, on stream 1 (device 0), block 3, thread 17" while a kernel runs.
  [[nodiscard]] std::string who() const;

 private:
  struct Place {  ///< What a piece is part of, for reports.
    const Allocation* allocation;
    std::size_t offset;
    std::size_t bytes;
  };
  void check_cells(Allocation& a, std::size_t offset, std::size_t bytes, Access access);
  void check_cell(Cell& cell, Access access, const Place& place);
  [[gnu::noinline]] void check_after(Stamp stamp, ThreadMark mark, bool earlier_wrote, Access access, const Place& place);
  void note_read(Cell& cell);
  [[gnu::noinline]] void read_beside_others(Cell& cell);
  [[nodiscard]] bool in_order(Stamp stamp, ThreadMark mark) const;
  [[nodiscard]] bool turn_in_order(Stamp stamp);
  void conflict(Stamp stamp, ThreadMark mark, bool earlier_wrote, Access access, const Place& place);
  [[nodiscard]] Allocation* usable(const void* p, std::size_t bytes, Access access);
  // What few accesses come to, apart from what all of them do: a call, and no code in between.
  [[gnu::noinline]] Allocation* found(const void* p, std::size_t bytes, Access access);
  [[gnu::noinline]] void unwritten(const Place& place);
  [[gnu::noinline]] void check_after_reads(const Cell& cell, Access access, const Place& place);

  Memory& memory_;
  History& history_;
  bool checks_ = settings().check;
  RunningThread thread_;
  History::Index operation_ = 0;
  const Clock* clock_ = nullptr;
  std::uint32_t peers_ = 0;
  Stamp turn_begin_ = 0;
  struct Turns {
    Stamp begin, end;
  };
  std::array<Turns, 8> known_in_order_{};  ///< Turns that ended before this operation began, lately asked for.
  unsigned known_next_ = 0;
  ReaderSets readers_;
  std::array<Allocation*, 64> recent_{};      ///< By the number of the page.
  std::unordered_set<std::string> reported_;  ///< One report per pair of operations and allocation.
};

}  // namespace fakegpu
