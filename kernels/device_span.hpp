#pragma once
/// \file DeviceSpan: a run of elements in a device's memory. A type of its own, so that no host loop gets one.

#include <concepts>
#include <cstdint>

namespace elrun::inline v0 {

template <class T>
struct DeviceSpan {
  T* data = nullptr;
  std::uint64_t size = 0;

  constexpr DeviceSpan() = default;
  constexpr DeviceSpan(T* first, std::uint64_t count) : data{first}, size{count} {}
  /// As std::span: what may be written may be read.
  template <std::same_as<std::remove_const_t<T>> U>
  requires std::is_const_v<T>
  constexpr DeviceSpan(DeviceSpan<U> other) : data{other.data}, size{other.size} {}  // NOLINT: meant to convert
};

}  // namespace elrun::inline v0
