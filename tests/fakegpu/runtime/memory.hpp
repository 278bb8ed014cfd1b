#pragma once
/// \file Memory of the fake devices: where it lies, and who may touch it.
///
/// One range of addresses is reserved for the whole process, a slot of it per device, one for pinned memory, one for memory of other
/// processes. An allocation ends at a guard page. An address is never given out twice, so a stale pointer is always known as such.
/// Device memory is closed to the process while no operation runs that uses it: a host that touches it is found (fault_handler.cpp).

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/fakegpu/runtime/settings.hpp"
#include "tests/fakegpu/runtime/shadow.hpp"

namespace fakegpu {

enum class MemoryKind : std::uint8_t { device, pinned, imported, shared };

struct Allocation {
  std::byte* base = nullptr;
  std::size_t size = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  std::uint64_t number = 0;    ///< In order of allocation, for reports.
  std::byte* pages = nullptr;  ///< Whole pages, without the guards.
  std::size_t page_bytes = 0;
  bool open = false;   ///< Whether the process may touch it now.
  bool freed = false;  ///< Kept, closed, to name who touches it afterwards.
  Shadow shadow;

  [[nodiscard]] bool contains(const void* p, std::size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(p);
    return at >= base && bytes <= size && static_cast<std::size_t>(at - base) <= size - bytes;
  }
  /// "allocation 3 (4096 bytes on device 0)".
  [[nodiscard]] std::string name() const;
};

inline constexpr std::size_t slot_bytes = std::size_t{1} << 40;
inline constexpr int pinned_slot = devices_max;
inline constexpr int imported_slot = devices_max + 1;
inline constexpr int slot_count = devices_max + 2;

/// Under the runtime's lock, except in_range.
class Memory {
 public:
  Memory();

  /// Poisoned with 0xff: NaN as float and bf16. Null where the device has no room left.
  Allocation* allocate(MemoryKind kind, int device, std::size_t size);
  /// Memory of another process: `fd` at `offset`, whose allocation has `size` bytes and its pages `page_bytes`.
  Allocation* import(int fd, std::size_t offset, std::size_t size, std::size_t page_bytes, int device);
  /// Nobody may touch it any more. The memory itself goes back to the system.
  void free(Allocation& allocation);
  /// As after cudaDeviceReset.
  void free_all_of(int device);

  /// The allocation around `p`, or the one that ends closest before it, or begins right behind it; null when none is near. Freed ones too.
  [[nodiscard]] Allocation* near(const void* p);
  /// The live allocation that holds `p`; null otherwise.
  [[nodiscard]] Allocation* find(const void* p);

  void open(Allocation& allocation);
  /// Closes all that was opened and is no pinned memory.
  void close_all();

  /// The memory file of a device and where an allocation lies in it, for IPC.
  [[nodiscard]] int file_of(int device) const { return files_[device]; }
  [[nodiscard]] std::size_t offset_in_file(const Allocation& a) const;

  [[nodiscard]] std::size_t used(int device) const { return used_[device]; }
  [[nodiscard]] std::size_t count(MemoryKind kind) const { return counts_[static_cast<int>(kind)]; }

  /// Whether this address is in the reserved range at all: cheap, for every access of a kernel.
  [[nodiscard]] static bool in_range(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) - reserved_begin < slot_bytes * slot_count;
  }
  /// Calls `visit` for each live allocation.
  template <class Visit>
  void for_each(const Visit& visit) {
    for (auto& [end, allocation] : by_end_)
      if (!allocation->freed) visit(*allocation);
  }

 private:
  static std::uintptr_t reserved_begin;
  [[nodiscard]] static std::byte* slot(int index) {
    return reinterpret_cast<std::byte*>(reserved_begin) + slot_bytes * static_cast<std::size_t>(index);
  }
  Allocation* place(MemoryKind kind, int device, std::size_t size, std::size_t page_bytes, int fd, std::size_t offset);
  void protect(Allocation& allocation, int protection);

  int files_[devices_max];
  std::size_t next_[slot_count] = {};  ///< Where the next allocation of a slot may begin.
  std::size_t used_[devices_max] = {};
  std::size_t counts_[3] = {};
  std::uint64_t numbered_ = 0;
  std::map<const std::byte*, std::unique_ptr<Allocation>> by_end_;  ///< By the address behind the last byte.
  std::map<const std::byte*, Allocation*> opened_;
};

}  // namespace fakegpu
