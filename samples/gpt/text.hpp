#pragma once
/// \file A text of bytes, cut into samples.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <elrun/result.hpp>

namespace gpt {

/// Sample k is bytes [k · context, k · context + context], both ends included: all but its last byte are inputs, all
/// but its first are what to predict. Move-only; the file is mapped, and must not change while it is.
class Text {
 public:
  /// Fails with `not_found`, `not_permitted`, `io`, or `invalid_argument` when not even one sample fits.
  static elrun::Result<Text> open(const std::string& path, std::uint64_t context);
  Text(Text&& other) noexcept;
  Text& operator=(Text&&) = delete;
  ~Text();

  [[nodiscard]] std::span<const unsigned char> bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t samples() const { return (bytes_.size() - 1) / context_; }
  /// Of the content and its length; another text has another one, but for chance.
  [[nodiscard]] std::uint64_t hash() const;
  /// Both have samples.size() · context elements.
  void fetch(std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs,
             std::span<std::int32_t> targets) const;

 private:
  Text(std::span<const unsigned char> bytes, std::uint64_t context) : bytes_{bytes}, context_{context} {}
  std::span<const unsigned char> bytes_;
  std::uint64_t context_;
};

/// Text for a terminal, in lines: what does not print becomes \xNN.
[[nodiscard]] std::string printable(std::span<const unsigned char> bytes);

}  // namespace gpt
