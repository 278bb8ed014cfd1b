#pragma once
/// \file Owned: one owner for one handle. Release never throws and never waits.

#include <utility>

namespace elrun::inline v0 {

template <class Handle, Handle none, auto release>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) noexcept : handle_{handle} {}
  Owned(Owned&& other) noexcept : handle_{std::exchange(other.handle_, none)} {}
  Owned& operator=(Owned other) noexcept {  // by value: the old handle goes now, not later
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != none) release(handle_);
  }
  [[nodiscard]] Handle get() const noexcept { return handle_; }
  /// Gives the handle away; the caller owns it now.
  [[nodiscard]] Handle give_up() noexcept { return std::exchange(handle_, none); }
  explicit operator bool() const noexcept { return handle_ != none; }

 private:
  Handle handle_ = none;
};

}  // namespace elrun::inline v0
