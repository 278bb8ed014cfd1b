#pragma once
/// \file Bytes in, values out, with every read bounded. Little-endian, the order of everything on wire and disk.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

using ByteSpan = std::span<const std::byte>;
using ByteVector = std::vector<std::byte>;

/// The bytes of a value that has no pointers and no padding.
template <class T>
[[nodiscard]] ByteVector bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span{&value, 1});
  return {bytes.begin(), bytes.end()};
}
[[nodiscard]] inline ByteSpan as_bytes(std::string_view text) { return std::as_bytes(std::span{text.data(), text.size()}); }
[[nodiscard]] inline std::string_view as_text(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// Appends values to a vector of bytes.
class ByteWriter {
 public:
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void put(T value) {
    static_assert(std::endian::native == std::endian::little);
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), p, p + sizeof value);
  }
  void put_bytes(ByteSpan bytes) {  ///< u32 length, then the bytes
    put(static_cast<std::uint32_t>(bytes.size()));
    put_raw(bytes);
  }
  void put_raw(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void put_text(std::string_view text) { put_bytes(as_bytes(text)); }
  [[nodiscard]] ByteVector take() { return std::move(out_); }
  [[nodiscard]] const ByteVector& bytes() const { return out_; }

 private:
  ByteVector out_;
};

/// Reads values from bytes that may come from anybody. After the first read past the end all reads give zeros, and
/// `finish` says what was wrong: a parser reads all fields, then asks once.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : rest_{bytes} {}
  template <class T>
  requires std::is_integral_v<T>
  [[nodiscard]] T get() {
    T value{};
    if (const ByteSpan raw = get_raw(sizeof(T)); raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  /// Exactly `count` bytes, or none when there are fewer.
  [[nodiscard]] ByteSpan get_raw(std::size_t count) {
    if (broken_ || count > rest_.size()) return broken_ = true, ByteSpan{};
    const ByteSpan head = rest_.first(count);
    rest_ = rest_.subspan(count);
    return head;
  }
  /// A length and as many bytes; longer than `max` is an error before anything is copied.
  [[nodiscard]] ByteSpan get_bytes(std::size_t max) {
    const auto length = get<std::uint32_t>();
    if (length > max) return broken_ = true, ByteSpan{};
    return get_raw(length);
  }
  [[nodiscard]] std::string get_text(std::size_t max) { return std::string{as_text(get_bytes(max))}; }
  [[nodiscard]] bool broken() const { return broken_; }
  void mark_broken() { broken_ = true; }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }
  /// Success if all was there and nothing is left over.
  [[nodiscard]] Result<void> finish(std::string_view of_what) const {
    if (!broken_ && rest_.empty()) return {};
    return Failure{Code::protocol, Remedy::abort_group,
                   std::string{of_what} + (broken_ ? " is cut short or out of bounds" : " has bytes left over")};
  }

 private:
  ByteSpan rest_;
  bool broken_ = false;
};

}  // namespace elrun::inline v0
