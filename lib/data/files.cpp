// The readers that users see: the shell around the formats.

#include <elrun/data.hpp>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/data/gzip.hpp"
#include "lib/data/idx.hpp"
#include "lib/data/mapped_file.hpp"

namespace elrun::inline v0 {
namespace {

std::span<const unsigned char> as_chars(ByteSpan bytes) { return {reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}; }

std::uint64_t hash_of(ByteSpan bytes) { return mix_sum(bytes, 0, 0) + Mix{}(bytes.size(), ~std::uint64_t{0}); }

}  // namespace

// ---- idx

struct IdxFile::Impl {
  MappedFile file;      // of a plain file
  ByteVector unpacked;  // or its content
  ByteSpan content;
  IdxHeader header;
};

Result<IdxFile> IdxFile::open(const std::string& path) {
  const std::string remedy = "name an idx file that this user can read, plain or .gz, on every node";
  bool packed = path.ends_with(".gz");
  std::string name = path;
  auto file = MappedFile::open(name, remedy);
  if (!file.ok() && !packed && file.failure().code == Code::not_found) {
    auto beside = MappedFile::open(path + ".gz", remedy);
    if (!beside.ok() && beside.failure().code == Code::not_found) {
      Failure neither = file.failure();
      neither.what = fmt::format("neither '{0}' nor '{0}.gz' is there; {1}", path, remedy);
      return neither;
    }
    name += ".gz", packed = true;
    file = std::move(beside);
  }
  if (!file.ok()) return std::move(file).failure();
  auto impl = std::make_unique<Impl>(Impl{std::move(file).value(), {}, {}, {}});
  if (packed) {
    ELRUN_TRY_ASSIGN(const ByteVector head, gunzip_head(impl->file.bytes(), idx_header_max, name));
    ELRUN_TRY_ASSIGN(const IdxHeader promised, parse_idx_header(head, name));
    ELRUN_TRY_ASSIGN(impl->unpacked, gunzip(impl->file.bytes(), promised.size + promised.content, name));
  }
  const ByteSpan all = packed ? ByteSpan{impl->unpacked} : impl->file.bytes();
  ELRUN_TRY_ASSIGN(impl->header, parse_idx(all, name));
  impl->content = all.subspan(impl->header.size);
  return IdxFile{std::move(impl)};
}

IdxFile::IdxFile(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
IdxFile::IdxFile(IdxFile&&) noexcept = default;
IdxFile& IdxFile::operator=(IdxFile&&) noexcept = default;
IdxFile::~IdxFile() = default;

const Shape& IdxFile::shape() const { return impl_->header.shape; }
std::uint64_t IdxFile::item_bytes() const { return impl_->header.content / items(); }
std::span<const unsigned char> IdxFile::item(std::uint64_t index) const {
  ELRUN_ASSERT(index < items());
  return as_chars(impl_->content.subspan(index * item_bytes(), item_bytes()));
}
std::uint64_t IdxFile::hash() const {
  std::uint64_t hash = hash_of(impl_->content);
  for (const std::uint64_t extent : shape()) hash = Mix{}(extent, hash);
  return hash;
}

// ---- text

struct TextFile::Impl {
  MappedFile file;
};

Result<TextFile> TextFile::open(const std::string& path, std::uint64_t context) {
  if (context == 0) return invalid("a context of 0: a sample of a text has at least one byte to look at");
  ELRUN_TRY_ASSIGN(MappedFile file, MappedFile::open(path, "name a text that this user can read, on every node"));
  if (file.bytes().size() <= context)
    return invalid(
        fmt::format("'{}' has {} bytes: one sample with a context of {} needs at least {}; name a longer text or "
                    "take a shorter context",
                    path, file.bytes().size(), context, context + 1));
  return TextFile{std::make_unique<Impl>(Impl{std::move(file)}), context};
}

TextFile::TextFile(std::unique_ptr<Impl> impl, std::uint64_t context) : impl_{std::move(impl)}, context_{context} {}
TextFile::TextFile(TextFile&&) noexcept = default;
TextFile& TextFile::operator=(TextFile&&) noexcept = default;
TextFile::~TextFile() = default;

std::span<const unsigned char> TextFile::bytes() const { return as_chars(impl_->file.bytes()); }
std::uint64_t TextFile::hash() const { return hash_of(impl_->file.bytes()); }

}  // namespace elrun::inline v0
