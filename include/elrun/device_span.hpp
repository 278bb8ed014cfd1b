#pragma once
/// \file DeviceSpan: a run of elements in a device's memory. A type of its own, so that no host loop gets one.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// The bytes of a run, for calls that move and do not count.
template <class T>
[[nodiscard]] DeviceSpan<const std::byte> as_bytes(DeviceSpan<T> run) {
  return {reinterpret_cast<const std::byte*>(run.data), run.size * sizeof(T)};
}
template <class T>
[[nodiscard]] DeviceSpan<std::byte> as_writable_bytes(DeviceSpan<T> run) {
  return {reinterpret_cast<std::byte*>(run.data), run.size * sizeof(T)};
}

}  // namespace elrun::inline v0
