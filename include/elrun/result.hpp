#pragma once
/// \file Result<T>: a value, or the Failure that took its place.

#include <cstdlib>
#include <type_traits>
#include <utility>
#include <variant>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

/// What happens in a healthy cluster (a peer lost, a deadline passed, a torn shard) comes back as a Result.
/// `value()` of a failure throws `Error`: ask first, or let ELRUN_TRY pass the failure on.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_{std::in_place_index<0>, std::move(value)} {}            // NOLINT: meant to convert
  Result(Failure failure) : state_{std::in_place_index<1>, std::move(failure)} {}  // NOLINT: meant to convert

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] T& value() & { return check(), *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return check(), *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return check(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// The failure; only after `ok()` said false.
  [[nodiscard]] const Failure& failure() const& {
    if (ok()) std::abort();
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] Failure&& failure() && {
    if (ok()) std::abort();
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  void check() const {
    if (!ok()) throw Error{*std::get_if<1>(&state_)};
  }
  std::variant<T, Failure> state_;
};

/// Success without a value, or a Failure. Default-constructed it is success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : failure_{std::move(failure)}, ok_{false} {}  // NOLINT: meant to convert
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  explicit operator bool() const noexcept { return ok_; }
  void value() const {
    if (!ok_) throw Error{failure_};
  }
  [[nodiscard]] const Failure& failure() const& {
    if (ok_) std::abort();
    return failure_;
  }
  [[nodiscard]] Failure&& failure() && {
    if (ok_) std::abort();
    return std::move(failure_);
  }

 private:
  Failure failure_{};
  bool ok_ = true;
};

}  // namespace elrun::inline v0

#define ELRUN_CONCAT_(a, b) a##b
#define ELRUN_CONCAT(a, b) ELRUN_CONCAT_(a, b)

/// Returns the failure of `expression` from the enclosing function, or goes on.
#define ELRUN_TRY(expression)                                                                     \
  do {                                                                                            \
    if (auto elrun_try_ = (expression); !elrun_try_.ok()) return std::move(elrun_try_).failure(); \
  } while (false)

/// `ELRUN_TRY_ASSIGN(auto size, file.size());` declares `size`, or returns the failure.
#define ELRUN_TRY_ASSIGN(declaration, expression)                                                                     \
  auto ELRUN_CONCAT(elrun_result_, __LINE__) = (expression);                                                          \
  if (!ELRUN_CONCAT(elrun_result_, __LINE__).ok()) return std::move(ELRUN_CONCAT(elrun_result_, __LINE__)).failure(); \
  declaration = std::move(ELRUN_CONCAT(elrun_result_, __LINE__)).value()
