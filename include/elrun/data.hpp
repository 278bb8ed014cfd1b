#pragma once
/// \file Data sets in files: idx files (MNIST and its kin) and texts. Readers are values without threads; after `open`
/// any number of threads may read at once. A plain file is mapped, and must not change while it is open.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <elrun/export.hpp>
#include <elrun/result.hpp>
#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

/// An idx file of unsigned bytes, as MNIST and Fashion-MNIST come in (LeCun, Cortes, Burges, "The MNIST database of
/// handwritten digits"): a header with the extents, big-endian, then the items. Move-only.
class ELRUN_API IdxFile {
 public:
  /// Opens `path`, or `path`.gz where there is only that one; names that end in .gz are taken as they are. A compressed
  /// file is unpacked into memory. Fails with `not_found`, `not_permitted`, `io`, or with `corrupt` when the file is
  /// not what its header says, to the byte.
  static Result<IdxFile> open(const std::string& path);
  IdxFile(IdxFile&&) noexcept;
  IdxFile& operator=(IdxFile&&) noexcept;
  ~IdxFile();

  [[nodiscard]] const Shape& shape() const;  ///< The number of items comes first.
  [[nodiscard]] std::uint64_t items() const { return shape()[0]; }
  [[nodiscard]] std::uint64_t item_bytes() const;  ///< Product of the other extents; 1 for labels.
  /// `item_bytes()` of them, row after row. `index` is below `items()`, or the process ends. Valid as long as the file.
  [[nodiscard]] std::span<const unsigned char> item(std::uint64_t index) const;
  /// Of the extents and the content, plain or compressed alike; for Plan::data_hash. One pass over the file.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct Impl;
  explicit IdxFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A text of bytes. Sample k is bytes [k * context, k * context + context], both ends included: all but its last byte
/// are inputs, all but its first are what to predict. Move-only.
class ELRUN_API TextFile {
 public:
  /// Fails with `not_found`, `not_permitted`, `io`, or `invalid_argument` when not even one sample fits.
  static Result<TextFile> open(const std::string& path, std::uint64_t context);
  TextFile(TextFile&&) noexcept;
  TextFile& operator=(TextFile&&) noexcept;
  ~TextFile();

  [[nodiscard]] std::span<const unsigned char> bytes() const;
  [[nodiscard]] std::uint64_t context() const { return context_; }
  [[nodiscard]] std::uint64_t samples() const { return (bytes().size() - 1) / context_; }
  /// Context + 1 bytes, valid as long as the file. `id` is below `samples()`; nobody checks that.
  [[nodiscard]] std::span<const unsigned char> sample(std::uint64_t id) const { return bytes().subspan(id * context_, context_ + 1); }
  /// Of the content and its length, for Plan::data_hash; another text has another one, but for chance. One pass over the
  /// file.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct Impl;
  TextFile(std::unique_ptr<Impl> impl, std::uint64_t context);
  std::unique_ptr<Impl> impl_;
  std::uint64_t context_;
};

}  // namespace elrun::inline v0
