#pragma once
/// \file Arena: memory that is allocated once, by seal(), zeroed, on page borders.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

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
  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::span<T> span() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<T> span(std::uint64_t begin, std::uint64_t count) const {
    return span().subspan(begin, count);
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::uint64_t size_ = 0;
};

}  // namespace elrun::inline v0
