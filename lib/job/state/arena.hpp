#pragma once
/// \file Arena: memory that is allocated once, by seal(), zeroed, on page borders. It may lie where peers of this host read it.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include <elrun/process_group.hpp>

namespace elrun::inline v0 {

template <class T>
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::uint64_t count) : size_{count} {
    constexpr std::size_t page = 4096;
    if (count == 0) return;
    const std::size_t bytes = (count * sizeof(T) + page - 1) / page * page;
    data_.reset(static_cast<T*>(std::aligned_alloc(page, bytes)));
    if (data_ == nullptr) throw std::bad_alloc{};
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }
  /// In that memory, which is as large, where there is some.
  Arena(std::uint64_t count, std::optional<SharedBuffer> shared) {
    if (!shared) {
      *this = Arena{count};
      return;
    }
    data_ = {shared->as<T>().data(), Free{false}};
    size_ = count;
    shared_ = std::move(shared);
  }
  /// What peers may be shown of it: all, or nothing.
  [[nodiscard]] const std::optional<SharedBuffer>& shared() const { return shared_; }
  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::span<T> span() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<T> span(std::uint64_t begin, std::uint64_t count) const { return span().subspan(begin, count); }

 private:
  struct Free {
    bool is_own = true;  // and not the shared buffer's
    void operator()(T* p) const {
      if (is_own) std::free(p);
    }
  };
  std::optional<SharedBuffer> shared_;
  std::unique_ptr<T[], Free> data_;
  std::uint64_t size_ = 0;
};

}  // namespace elrun::inline v0
