#pragma once
/// \file MappedFile: the bytes of a regular file, for reading.

#include <string>
#include <utility>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

class MappedFile {
 public:
  /// `remedy` ends the sentence when the file cannot be had: "name a text that this user can read".
  static Result<MappedFile> open(const std::string& path, const std::string& remedy);
  MappedFile(MappedFile&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();
  [[nodiscard]] ByteSpan bytes() const { return bytes_; }

 private:
  explicit MappedFile(ByteSpan bytes) : bytes_{bytes} {}
  ByteSpan bytes_;  // empty: nothing is mapped
};

}  // namespace elrun::inline v0
