#include "tests/fakegpu/runtime/checker.hpp"

#include <algorithm>

#include "tests/fakegpu/runtime/reports.hpp"

namespace fakegpu {
namespace {

constexpr unsigned warp_shift = 5;
constexpr ThreadMark threads_of_block = 0x400;

const char* verb(Access access) { return access == Access::read ? "reads" : access == Access::write ? "writes" : "changes atomically"; }

std::string bytes_at(std::size_t offset, std::size_t bytes) {
  return bytes == 1 ? "byte " + std::to_string(offset) : "bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes - 1);
}

std::string thread_name(ThreadMark mark) {
  if (mark < threads_of_block) return "thread " + std::to_string(mark);
  if (mark < several_of_block) return "threads of warp " + std::to_string(mark - several_of_warp);
  if (mark == atomic_access) return "atomic operations";
  return mark == whole_operation ? "the operation" : "several threads";
}

/// A read by `later` too: which threads have read then.
ThreadMark both(ThreadMark earlier, ThreadMark later, bool same_block) {
  if (earlier == later && same_block) return earlier;
  if (!same_block || earlier == several_of_grid) return several_of_grid;
  const auto warp = [](ThreadMark m) { return m < threads_of_block ? m >> warp_shift : m - several_of_warp; };
  if (earlier < several_of_block && later < several_of_block && warp(earlier) == warp(later))
    return static_cast<ThreadMark>(several_of_warp + warp(later));
  return several_of_block;
}

}  // namespace

void Checker::begin(History::Index operation, const Clock& clock, std::uint32_t peers) {
  operation_ = operation;
  clock_ = &clock;
  peers_ = peers;
  turn_begin_ = history_.now();
  thread_ = RunningThread{};
  known_in_order_.fill({0, 0});
}

void Checker::end() {
  operation_ = 0;
  clock_ = nullptr;
}

std::string Checker::who() const {
  std::string text = history_.describe(operation_);
  if (thread_.thread != whole_operation) text += ", block " + std::to_string(thread_.block) + ", thread " + std::to_string(thread_.thread);
  return text;
}

// Defined before its callers, for this is what every access of a kernel asks, several times.
inline bool Checker::in_order(Stamp stamp, ThreadMark mark) const {
  if (mark == several_operations) return false;
  if (stamp < turn_begin_) {  // of another operation, or of an earlier turn of this one
    for (const Turns& t : known_in_order_)
      if (stamp - t.begin < t.end - t.begin) return true;
    return false;
  }
  if (mark == whole_operation || thread_.thread == whole_operation) return true;
  if (stamp < thread_.block_begin) return false;
  if (mark == thread_.thread || stamp < thread_.barrier) return true;
  const unsigned warp = thread_.thread >> warp_shift;
  const bool same_warp = mark < threads_of_block ? mark >> warp_shift == warp : mark == several_of_warp + warp;
  return same_warp && stamp < thread_.warp_barrier[warp];
}

inline void Checker::note_read(Cell& cell) {
  const Stamp now = history_.now();
  if (cell.read == 0 || in_order(cell.read, cell.reader)) {
    cell.read = now;
    cell.reader = thread_.thread;
  } else if (cell.reader == several_operations || (cell.read < turn_begin_ && !turn_in_order(cell.read))) {
    read_beside_others(cell);
  } else {
    cell.reader = cell.read < turn_begin_ ? thread_.thread : both(cell.reader, thread_.thread, cell.read >= thread_.block_begin);
    cell.read = now;
  }
}

inline void Checker::check_cell(Cell& cell, Access access, const Place& place) {
  if (cell.written != 0) {
    const bool both_atomic = access == Access::atomic && cell.writer == atomic_access && cell.written >= turn_begin_;
    if (!both_atomic && !in_order(cell.written, cell.writer)) check_after(cell.written, cell.writer, true, access, place);
  } else if (access != Access::write && (place.allocation->kind == MemoryKind::device || place.allocation->kind == MemoryKind::shared)) {
    unwritten(place);
    cell = {history_.now(), 0, whole_operation, 0};  // told once
  }
  if (access == Access::read) return note_read(cell);
  if (cell.read != 0 && !in_order(cell.read, cell.reader)) check_after_reads(cell, access, place);
  cell = {history_.now(), 0, access == Access::atomic ? atomic_access : thread_.thread, 0};
}

inline void Checker::check_cells(Allocation& a, std::size_t offset, std::size_t bytes, Access access) {
  while (bytes > 0) {
    const std::size_t within = offset % Shadow::chunk_bytes, here = std::min(bytes, Shadow::chunk_bytes - within);
    Shadow::Chunk& chunk = a.shadow.fine_enough(offset, here);
    const std::size_t first = within >> chunk.shift, end = first + (here >> chunk.shift);
    for (std::size_t i = first; i < end; ++i) {
      Cell& cell = chunk.cells[i];
      if (a.kind == MemoryKind::shared) {  // what another block left there
        if (cell.written < thread_.block_begin) cell.written = 0;
        if (cell.read < thread_.block_begin) cell.read = 0;
      }
      check_cell(cell, access, {&a, offset - within + (i << chunk.shift), std::size_t{1} << chunk.shift});
    }
    offset += here;
    bytes -= here;
  }
}

inline Allocation* Checker::usable(const void* p, std::size_t bytes, Access access) {
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(p) >> 12;
  Allocation*& recent = recent_[page % recent_.size()];
  if (recent != nullptr && recent->open && recent->contains(p, bytes)) [[likely]]
    return recent;
  return recent = found(p, bytes, access);
}

Allocation* Checker::found(const void* p, std::size_t bytes, Access access) {
  Allocation* const a = memory_.near(p);
  const auto bad = [&](const std::string& what) {
    if (reported_.insert(std::to_string(operation_) + what).second)
      report(who() + " " + verb(access) + " " + std::to_string(bytes) + " bytes " + what);
    return nullptr;
  };
  if (a == nullptr) return bad("where no allocation is near");
  if (a->freed) return bad("of " + a->name());
  if (!a->contains(p, bytes)) {
    const auto offset = static_cast<const std::byte*>(p) - a->base;
    return bad("outside of " + a->name() + ", at offset " + std::to_string(offset));
  }
  if (a->kind != MemoryKind::pinned && (peers_ >> a->device & 1) == 0)
    return bad("of " + a->name() + ", which is another device, and peer access to it is not enabled");
  memory_.open(*a);
  return a;
}

bool Checker::touch(const void* p, std::size_t bytes, Access access) {
  if (operation_ == 0 || !Memory::in_range(p)) return true;
  Allocation* const a = usable(p, bytes, access);
  if (a == nullptr) return false;
  if (!checks_) return true;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - a->base);
  check_cells(*a, offset, bytes, access);
  return true;
}

bool Checker::touch_shared(SharedMemory& shared, std::size_t offset, std::size_t bytes, Access access) {
  if (offset + bytes > shared.place.size) [[unlikely]] {
    report(who() + " " + verb(access) + " " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of " +
           shared.place.name());
    return false;
  }
  if (checks_) check_cells(shared.place, offset, bytes, access);
  return true;
}

bool Checker::touch_range(const Range& range, Access access) {
  if (operation_ == 0 || range.bytes == 0 || !Memory::in_range(range.begin)) return true;
  thread_.thread = whole_operation;
  Allocation* const a = usable(range.begin, range.bytes, access);
  if (a != nullptr && checks_)
    check_cells(*a, static_cast<std::size_t>(static_cast<const std::byte*>(range.begin) - a->base), range.bytes, access);
  return a != nullptr;
}

// Where in_order() does not know at once.
void Checker::check_after(Stamp stamp, ThreadMark mark, bool earlier_wrote, Access access, const Place& place) {
  if (stamp >= turn_begin_ || !turn_in_order(stamp)) return conflict(stamp, mark, earlier_wrote, access, place);
  if (earlier_wrote && access != Access::write && history_.at(history_.turn_of(stamp).operation).given_up)
    conflict(stamp, mark, earlier_wrote, access, place);
}

void Checker::unwritten(const Place& place) {
  if (reported_.insert(std::to_string(operation_) + "unwritten" + std::to_string(place.allocation->number)).second)
    report(who() + " reads what nothing has written: " + bytes_at(place.offset, place.bytes) + " of " + place.allocation->name());
}

void Checker::check_after_reads(const Cell& cell, Access access, const Place& place) {
  if (cell.reader != several_operations) return check_after(cell.read, cell.reader, false, access, place);
  for (const Stamp stamp : readers_.at(cell.read))
    if (stamp != turn_begin_) check_after(stamp, whole_operation, false, access, place);
}

bool Checker::turn_in_order(Stamp stamp) {
  const History::Turn turn = history_.turn_of(stamp);
  const PastOperation& past = history_.at(turn.operation);
  if (turn.operation != operation_ && past.epoch > clock_->at(past.actor)) return false;
  if (!past.given_up) known_in_order_[known_next_++ % known_in_order_.size()] = {turn.begin, turn.end};
  return true;
}

// Streams that nothing orders read at a time: a later write has to come behind all of them.
void Checker::read_beside_others(Cell& cell) {
  std::vector<Stamp> stamps;
  if (cell.reader == several_operations) stamps = readers_.at(cell.read);
  else stamps = {history_.turn_of(cell.read).begin};
  std::erase_if(stamps, [&](Stamp s) { return s == turn_begin_ || turn_in_order(s); });
  if (stamps.empty()) {
    cell.read = history_.now();
    cell.reader = thread_.thread;
    return;
  }
  stamps.push_back(turn_begin_);
  cell.read = readers_.index_of(stamps);
  cell.reader = several_operations;
}

std::uint32_t ReaderSets::index_of(const std::vector<Stamp>& stamps) {
  const auto [found, is_new] = index_.try_emplace(stamps, static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(stamps);
  return found->second;
}

void Checker::conflict(Stamp stamp, ThreadMark mark, bool earlier_wrote, Access access, const Place& place) {
  const History::Turn turn = history_.turn_of(stamp);
  const std::string where = bytes_at(place.offset, place.bytes) + " of " + place.allocation->name();
  const char* did = earlier_wrote ? (mark == atomic_access ? "changed atomically" : "wrote") : "read";
  const std::string key =
      std::to_string(turn.operation) + did + std::to_string(operation_) + verb(access) + std::to_string(place.allocation->number);
  if (!reported_.insert(key).second) return;
  if (turn.operation == operation_)
    return report("race inside one launch: " + who() + " " + verb(access) + " " + where + ", which " + thread_name(mark) +
                  (stamp < thread_.block_begin ? " of another block " : " ") + did + ", and no barrier is between them");
  if (history_.at(turn.operation).given_up)
    return report(who() + " reads garbage that " + history_.describe(turn.operation) + " left behind when it was given up: " + where);
  report("race: " + who() + " " + verb(access) + " " + where + ", which " + history_.describe(turn.operation) + " " + did +
         ", and no event, stream or wait of the host puts one before the other");
}

void Checker::check_free(const Allocation& a, const Clock& host) {
  if (!checks_) return;
  std::array<Turns, 2> ended{};  // for writes and for reads: neighbours mostly have the same
  const auto has_ended = [&](Stamp stamp, Turns& known) {
    if (stamp == 0 || stamp - known.begin < known.end - known.begin) return true;
    const History::Turn turn = history_.turn_of(stamp);
    const PastOperation& past = history_.at(turn.operation);
    if (past.epoch > host.at(past.actor)) {
      report("the host frees " + a.name() + ", and has not waited for " + history_.describe(turn.operation) + ", which uses it");
      return false;
    }
    known = {turn.begin, turn.end};
    return true;
  };
  for (const auto& chunk : a.shadow.chunks()) {
    if (chunk == nullptr) continue;
    for (const Cell& cell : chunk->cells) {
      const Stamp read = cell.reader == several_operations ? readers_.at(cell.read).back() : cell.read;
      if (!has_ended(cell.written, ended[0]) || !has_ended(read, ended[1])) return;
    }
  }
}

}  // namespace fakegpu
