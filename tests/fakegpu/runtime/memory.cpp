#include "tests/fakegpu/runtime/memory.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace fakegpu {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t alignment = 256;  // what cudaMalloc promises

std::size_t rounded(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

[[noreturn]] void give_in(const char* what) {
  std::fprintf(stderr, "fakegpu: %s: %s\n", what, std::strerror(errno));
  std::abort();
}

}  // namespace

std::uintptr_t Memory::reserved_begin = 0;

std::string Allocation::name() const {
  if (kind == MemoryKind::shared) return "the block's shared memory";
  const std::string where = kind == MemoryKind::pinned     ? "of pinned memory"
                            : kind == MemoryKind::imported ? "of another process on device " + std::to_string(device)
                                                           : "on device " + std::to_string(device);
  return (freed ? "freed allocation " : "allocation ") + std::to_string(number) + " (" + std::to_string(size) + " bytes " + where + ")";
}

Memory::Memory() {
  void* range = mmap(nullptr, slot_bytes * slot_count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) give_in("no room for the addresses of the fake devices");
  reserved_begin = reinterpret_cast<std::uintptr_t>(range);
  for (int& file : files_) file = -1;
}

Allocation* Memory::place(MemoryKind kind, int device, std::size_t size, std::size_t page_bytes, int fd, std::size_t offset) {
  const int index = kind == MemoryKind::device ? device : kind == MemoryKind::pinned ? pinned_slot : imported_slot;
  std::byte* const pages = slot(index) + next_[index] + page;  // a guard before
  next_[index] += page + page_bytes + page;                    // and one behind
  if (next_[index] > slot_bytes) give_in("the addresses of a fake device are used up");
  const int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  if (mmap(pages, page_bytes, PROT_NONE, flags, fd, static_cast<off_t>(offset)) == MAP_FAILED) give_in("mmap");
  auto allocation = std::make_unique<Allocation>();
  allocation->base = pages + page_bytes - rounded(size, alignment);  // flush with the guard behind it
  allocation->size = size;
  allocation->kind = kind;
  allocation->device = device;
  allocation->number = ++numbered_;
  allocation->pages = pages;
  allocation->page_bytes = page_bytes;
  Allocation* const kept = allocation.get();
  by_end_.emplace(kept->base + size, std::move(allocation));
  ++counts_[static_cast<int>(kind)];
  return kept;
}

Allocation* Memory::allocate(MemoryKind kind, int device, std::size_t size) {
  const std::size_t page_bytes = rounded(rounded(size, alignment), page);
  int fd = -1;
  std::size_t offset = 0;
  if (kind == MemoryKind::device) {
    if (page_bytes > settings().memory || used_[device] > settings().memory - page_bytes) return nullptr;
    if (files_[device] < 0) files_[device] = memfd_create("fakegpu", MFD_CLOEXEC);
    fd = files_[device];
    offset = next_[device] + page;
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(offset + page_bytes + page)) != 0) give_in("the memory file of a fake device");
    used_[device] += page_bytes;
  }
  Allocation* const a = place(kind, device, size, page_bytes, fd, offset);
  protect(*a, PROT_READ | PROT_WRITE);
  std::memset(a->pages, 0xff, page_bytes);
  if (kind == MemoryKind::device) protect(*a, PROT_NONE);
  else a->open = true;
  return a;
}

Allocation* Memory::import(int fd, std::size_t offset, std::size_t size, std::size_t page_bytes, int device) {
  return place(MemoryKind::imported, device, size, page_bytes, fd, offset);
}

void Memory::free(Allocation& a) {
  if (mmap(a.pages, a.page_bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) give_in("mmap");
  if (a.kind == MemoryKind::device) {
    fallocate(files_[a.device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_in_file(a)),
              static_cast<off_t>(a.page_bytes));
    used_[a.device] -= a.page_bytes;
  }
  a.freed = true;
  a.open = false;
  a.shadow = Shadow{};
  opened_.erase(a.base);
  --counts_[static_cast<int>(a.kind)];
}

void Memory::free_all_of(int device) {
  for (auto& [end, a] : by_end_)
    if (!a->freed && a->kind != MemoryKind::pinned && a->device == device) free(*a);
}

Allocation* Memory::near(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  const auto next = by_end_.upper_bound(at);  // the first that ends behind `at`
  if (next != by_end_.end() && at >= next->second->pages - page) return next->second.get();
  if (next == by_end_.begin()) return nullptr;
  Allocation* const before = std::prev(next)->second.get();
  return at < before->pages + before->page_bytes + page ? before : nullptr;
}

Allocation* Memory::find(const void* p) {
  Allocation* const a = near(p);
  return a != nullptr && !a->freed && a->contains(p, 1) ? a : nullptr;
}

void Memory::protect(Allocation& a, int protection) {
  if (mprotect(a.pages, a.page_bytes, protection) != 0) give_in("mprotect");
}

void Memory::open(Allocation& a) {
  if (a.open) return;
  protect(a, PROT_READ | PROT_WRITE);
  a.open = true;
  opened_.emplace(a.base, &a);
}

void Memory::close_all() {
  for (auto& [base, a] : opened_) {
    protect(*a, PROT_NONE);
    a->open = false;
  }
  opened_.clear();
}

std::size_t Memory::offset_in_file(const Allocation& a) const { return static_cast<std::size_t>(a.pages - slot(a.device)); }

}  // namespace fakegpu
