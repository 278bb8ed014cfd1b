#include "checkpoint/staging/slot.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/memory_file.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t huge_page = 2u << 20;

std::uint64_t padded(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

Result<Mapping> map_slot(int file, std::uint64_t bytes, int protection, int flags) {
  void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED | flags, file, 0);
  if (at == MAP_FAILED) return from_errno(errno, fmt::format("map a staging slot of {} bytes", bytes));
  return Mapping{{static_cast<std::byte*>(at), bytes}};
}

/// The state's word, which the other process reads while it is written.
std::atomic_ref<std::uint32_t> state_of(std::span<std::byte> page) {
  return std::atomic_ref<std::uint32_t>{*reinterpret_cast<std::uint32_t*>(page.data() + 8)};
}

}  // namespace

Mapping::~Mapping() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
}

Result<StagingSlot> StagingSlot::make(std::uint64_t record_bytes, std::uint64_t data_bytes) {
  StagingSlot slot;
  slot.data_offset_ = padded(slot_page + record_bytes, slot_page);
  const std::uint64_t bytes = padded(slot.data_offset_ + std::max<std::uint64_t>(data_bytes, 1), slot_page);
  if (bytes > slot_bytes_max) return Failure{Code::exhausted, Remedy::fix_config, fmt::format("a staging slot of {} bytes", bytes)};
  ELRUN_TRY_ASSIGN(slot.file_, memory_file("elrun-slot", Bytes{bytes}));
  if (::ftruncate(slot.file(), static_cast<off_t>(bytes)) != 0)
    return from_errno(errno, fmt::format("make a memory file of {} bytes", bytes));
  ELRUN_TRY_ASSIGN(slot.memory_, map_slot(slot.file(), bytes, PROT_READ | PROT_WRITE, 0));
  if (bytes >= huge_page) (void)::madvise(slot.memory_.bytes().data(), bytes, MADV_HUGEPAGE);  // a hint: not all systems allow it
  int got = 0;
  do got = ::fallocate(slot.file(), 0, 0, static_cast<off_t>(bytes));
  while (got != 0 && errno == EINTR);
  if (got != 0) {
    Failure no_memory = from_errno(errno, fmt::format("take {} bytes of memory for a staging slot", bytes));
    no_memory.code = Code::exhausted;
    return no_memory;
  }
  for (std::uint64_t at = 0; at < bytes; at += slot_page) slot.memory_.bytes()[at] = std::byte{0};  // and its page tables
  if (::fcntl(slot.file(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return from_errno(errno, "seal a memory file");
  return slot;
}

bool StagingSlot::has_room(std::uint64_t record_bytes, std::uint64_t data_bytes) const {
  return slot_page + record_bytes <= data_offset_ && data_offset_ <= bytes() && data_bytes <= bytes() - data_offset_;
}

std::span<std::byte> StagingSlot::begin(ByteSpan record, std::uint64_t data_bytes) {
  ELRUN_ASSERT(has_room(record.size(), data_bytes));
  const std::span<std::byte> all = memory_.bytes();
  withdraw();
  std::memcpy(all.data() + slot_page, record.data(), record.size());
  put_head({SlotState::empty, crc32c(record), record.size(), data_offset_, data_bytes});
  state_of(all).store(static_cast<std::uint32_t>(SlotState::filling), std::memory_order_release);
  return all.subspan(data_offset_, data_bytes);
}

void StagingSlot::put_head(const SlotPrefix& head) {
  const ByteVector page = encode(head);
  std::memcpy(memory_.bytes().data(), page.data(), page.size());
}

void StagingSlot::promise(const SlotOwner& owner) {
  withdraw();
  put_head({.state = SlotState::empty, .data_offset = data_offset_, .owner = owner});
  state_of(memory_.bytes()).store(static_cast<std::uint32_t>(SlotState::promised), std::memory_order_release);
}

void StagingSlot::withdraw() { state_of(memory_.bytes()).store(static_cast<std::uint32_t>(SlotState::empty), std::memory_order_release); }

void StagingSlot::seal() { state_of(memory_.bytes()).store(static_cast<std::uint32_t>(SlotState::sealed), std::memory_order_release); }

Result<SlotView> SlotView::open(Fd file) {
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return corrupt("a staging slot that is no memory file, or may shrink while it is read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return from_errno(errno, "look at a staging slot");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes < slot_page || bytes > slot_bytes_max) return corrupt(fmt::format("a staging slot of {} bytes", bytes));
  ELRUN_TRY_ASSIGN(Mapping memory, map_slot(file.get(), bytes, PROT_READ, 0));
  return SlotView{std::move(memory)};
}

Result<SlotPrefix> SlotView::prefix() const {
  ByteVector page(slot_page);  // a copy: its writer may still be at it
  const std::uint32_t state = state_of(memory_.bytes()).load(std::memory_order_acquire);
  std::memcpy(page.data(), memory_.bytes().data(), page.size());
  std::memcpy(page.data() + 8, &state, sizeof state);
  return decode_slot_prefix(page, memory_.bytes().size());
}

Result<SlotRecord> SlotView::record(SlotState state) const {
  ELRUN_TRY_ASSIGN(const SlotPrefix head, prefix());
  if (head.state != state)
    return corrupt(state == SlotState::sealed ? "a staging slot that is not sealed" : "a staging slot that nobody fills");
  const ByteSpan there = ByteSpan{memory_.bytes()}.subspan(slot_page, head.record_bytes);
  const ByteVector copy(there.begin(), there.end());
  if (crc32c(copy) != head.record_crc) return corrupt("the record of a staging slot does not match its checksum");
  return decode_slot_record(copy, head.data_bytes);
}

Result<std::vector<Fragment>> SlotView::fragments(const SlotRecord& record) const {
  ELRUN_TRY_ASSIGN(const SlotPrefix head, prefix());
  const std::span<std::byte> data = memory_.bytes().subspan(head.data_offset, head.data_bytes);
  std::vector<Fragment> out;
  for (const SlotFragment& f : record.fragments) {
    if (f.bytes > data.size() || f.offset > data.size() - f.bytes) return corrupt("a staging slot whose head has changed");
    out.push_back({f.kind, f.unit, f.begin, f.end, data.subspan(f.offset, f.bytes), false});
  }
  return out;
}

}  // namespace elrun::inline v0
