#include "lib/job/state/paged_arena.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

std::size_t pages_of(std::uint64_t count, const Memory& memory) {
  return (count * sizeof(float) + memory.page_bytes() - 1) / memory.page_bytes();
}

}  // namespace

PagedArena::PagedArena(std::uint64_t count, Memory& memory) : PagedArena{count, memory, Memory::Paging::comes_and_goes} {}

PagedArena PagedArena::whole(std::uint64_t count, std::optional<SharedBuffer> shared, Memory& memory) {
  PagedArena out;
  if (shared) {
    out.memory_ = &memory;
    out.size_ = count;
    out.data_ = {shared->as<float>().data(), Unreserve{nullptr, 0}};
    out.held_.resize(pages_of(count, memory));
    out.shared_ = std::move(shared);
  } else {
    out = PagedArena{count, memory, Memory::Paging::stays};
  }
  out.hold(0, count);
  return out;
}

PagedArena::PagedArena(std::uint64_t count, Memory& memory, Memory::Paging paging) : memory_{&memory}, size_{count} {
  if (count == 0) return;
  const std::size_t pages = pages_of(count, memory), bytes = pages * memory.page_bytes();
  data_ = {static_cast<float*>(memory.reserve(bytes, paging)), Unreserve{&memory, bytes}};
  held_.resize(pages);
}

std::span<std::byte> PagedArena::pages(std::size_t first, std::size_t last) const {
  const std::size_t page = memory_->page_bytes();
  return {reinterpret_cast<std::byte*>(data()) + first * page, (last - first) * page};
}

void PagedArena::hold(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::size_t page = memory_->page_bytes(), first = begin * sizeof(float) / page, last = (end * sizeof(float) + page - 1) / page;
  memory_->hold(pages(first, last));
  mark(first, last, true);
}

void PagedArena::release(std::uint64_t begin, std::uint64_t end) {
  const std::size_t page = memory_->page_bytes(), first = (begin * sizeof(float) + page - 1) / page, last = end * sizeof(float) / page;
  if (begin >= end || first >= last) return;
  ELRUN_ASSERT(!shared_);
  memory_->give_back(pages(first, last));
  mark(first, last, false);
}

void PagedArena::make_resident() {
  for (std::size_t first = 0; first < held_.size();) {
    std::size_t last = first;
    while (last < held_.size() && held_[last]) ++last;
    if (first < last) memory_->make_resident(pages(first, last));
    first = last + 1;
  }
}

void PagedArena::mark(std::size_t first, std::size_t last, bool held) {
  for (std::size_t i = first; i < last; ++i) {
    if (held_[i] == held) continue;
    held_[i] = held;
    held_bytes_ = held ? held_bytes_ + memory_->page_bytes() : held_bytes_ - memory_->page_bytes();
  }
  held_bytes_max_ = std::max(held_bytes_max_, held_bytes_);
}

}  // namespace elrun::inline v0
