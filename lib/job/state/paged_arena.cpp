#include "lib/job/state/paged_arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include <fmt/format.h>

#include <elrun/result.hpp>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Takes the memory of pages away, and their contents with it. What is locked (mlockall) takes another advice, which Linux has
/// since 5.18, and the headers of some systems have not.
bool give_back(void* pages, std::size_t bytes) {
  constexpr int dontneed_locked = 24;
  return madvise(pages, bytes, MADV_DONTNEED) == 0 || (errno == EINVAL && madvise(pages, bytes, dontneed_locked) == 0);
}

}  // namespace

void PagedArena::Unmap::operator()(float* p) const { ELRUN_ASSERT(bytes == 0 || munmap(p, bytes) == 0); }

PagedArena::PagedArena(std::uint64_t count) : PagedArena{count, Pages::small} {}

PagedArena PagedArena::whole(std::uint64_t count, std::optional<SharedBuffer> shared) {
  PagedArena out;
  if (shared) {
    out.size_ = count;
    out.data_ = {shared->as<float>().data(), Unmap{0}};
    out.held_.resize((count * sizeof(float) + page_bytes() - 1) / page_bytes());
    out.shared_ = std::move(shared);
  } else {
    out = PagedArena{count, Pages::any};
  }
  out.hold(0, count);
  return out;
}

PagedArena::PagedArena(std::uint64_t count, Pages kind) : size_{count} {
  if (count == 0) return;
  const std::size_t pages = (count * sizeof(float) + page_bytes() - 1) / page_bytes(), bytes = pages * page_bytes();
  void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc{};
  data_ = std::unique_ptr<float[], Unmap>{static_cast<float*>(at), Unmap{bytes}};
  // Asked here, where it can be told: a scope's end could only end the process.
  if (kind == Pages::small && !give_back(at, bytes))
    throw Error{
        Failure{Code::not_permitted, Remedy::fix_config,
                fmt::format("memory that is not in use cannot be given back ({}): this process has locked its memory (mlockall), and Linux "
                            "gives locked pages back since 5.18 alone; do not lock it, or use zero(0) or zero(1) with Exchange::per_step",
                            std::generic_category().message(errno))}};
  // One element of a huge page would bring memory for all of it. A kernel that has none refuses the advice, rightly.
  if (kind == Pages::small) (void)madvise(at, bytes, MADV_NOHUGEPAGE);
  held_.resize(pages);
}

void PagedArena::hold(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::size_t page = page_bytes(), first = begin * sizeof(float) / page, last = (end * sizeof(float) + page - 1) / page;
  if (mprotect(reinterpret_cast<std::byte*>(data()) + first * page, (last - first) * page, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc{};
  mark(first, last, true);
}

void PagedArena::release(std::uint64_t begin, std::uint64_t end) {
  const std::size_t page = page_bytes(), first = (begin * sizeof(float) + page - 1) / page, last = end * sizeof(float) / page;
  if (begin >= end || first >= last) return;
  ELRUN_ASSERT(!shared_);
  std::byte* const at = reinterpret_cast<std::byte*>(data()) + first * page;
  ELRUN_ASSERT(give_back(at, (last - first) * page));
  ELRUN_ASSERT(mprotect(at, (last - first) * page, PROT_NONE) == 0);
  mark(first, last, false);
}

void PagedArena::mark(std::size_t first, std::size_t last, bool held) {
  for (std::size_t i = first; i < last; ++i) {
    if (held_[i] == held) continue;
    held_[i] = held;
    held_bytes_ = held ? held_bytes_ + page_bytes() : held_bytes_ - page_bytes();
  }
  held_bytes_max_ = std::max(held_bytes_max_, held_bytes_);
}

}  // namespace elrun::inline v0
