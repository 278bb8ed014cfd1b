#pragma once
/// \file Arena: an array in a Memory: page-aligned, filled with zeros when it is made unless it is `untouched`. It may be a shared buffer, which peers on this host
/// read in place.

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/assert.hpp"
#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

template <class T>
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::uint64_t count, Memory& memory = host_memory()) : size_{count}, capacity_{count} {
    if (count > 0) data_ = {static_cast<T*>(memory.allocate(count * sizeof(T))), Free{&memory}};
  }
  /// In `shared`, which is as large, where there is some.
  Arena(std::uint64_t count, std::optional<SharedBuffer> shared, Memory& memory = host_memory()) {
    if (!shared) {
      *this = Arena{count, memory};
      return;
    }
    data_ = {shared->as<T>().data(), Free{}};
    size_ = capacity_ = count;
    shared_ = std::move(shared);
  }
  /// In the host's memory. Contents are not specified, and a page comes when it is touched.
  [[nodiscard]] static Arena untouched(std::uint64_t count) {
    Arena out;
    out.size_ = out.capacity_ = count;
    if (count > 0) out.data_ = {static_cast<T*>(allocate_untouched(count * sizeof(T))), Free{&host_memory()}};
    return out;
  }
  /// What peers may be shown of it: all, or nothing.
  [[nodiscard]] const std::optional<SharedBuffer>& shared() const { return shared_; }
  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// It is of so many elements from now on, `capacity()` at most. Contents are not specified.
  void resize(std::uint64_t count) {
    ELRUN_ASSERT(count <= capacity_);
    size_ = count;
  }
  /// Elements for which there is memory.
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] std::span<T> span() const { return {data_.get(), size_}; }
  [[nodiscard]] std::uint64_t bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] std::span<T> span(std::uint64_t begin, std::uint64_t count) const { return span().subspan(begin, count); }

 private:
  struct Free {
    Memory* memory = nullptr;  // none: it is the shared buffer's
    void operator()(T* p) const {
      if (memory != nullptr) memory->free(p);
    }
  };
  std::optional<SharedBuffer> shared_;
  std::unique_ptr<T[], Free> data_;
  std::uint64_t size_ = 0, capacity_ = 0;
};

/// The smallest of `arenas` that has room for `count` elements, which are not specified, and no more than `most`. It is no longer one of them.
template <class T>
[[nodiscard]] std::optional<Arena<T>> take_fitting(std::vector<Arena<T>>& arenas, std::uint64_t count, std::uint64_t most) {
  auto best = arenas.end();
  for (auto it = arenas.begin(); it != arenas.end(); ++it)
    if (it->capacity() >= count && it->capacity() <= most && (best == arenas.end() || it->capacity() < best->capacity())) best = it;
  if (best == arenas.end()) return std::nullopt;
  Arena<T> out = std::move(*best);
  arenas.erase(best);
  out.resize(count);
  return out;
}

}  // namespace elrun::inline v0
