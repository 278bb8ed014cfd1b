#include "lib/data/gzip.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <zlib.h>

namespace elrun::inline v0 {
namespace {

constexpr std::size_t ratio_max = 1032;  // of deflate: no input unpacks to more than this times its size
constexpr int with_gzip_header = 16 + MAX_WBITS;

Failure damaged(std::string_view name, std::string_view why) {
  return {Code::corrupt, Remedy::fix_config, fmt::format("'{}' {}; get the file again", name, why)};
}

/// zlib's state for one input, freed with it.
class Inflate {
 public:
  explicit Inflate(ByteSpan packed) : rest_{packed} { ready_ = inflateInit2(&stream_, with_gzip_header) == Z_OK; }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  ~Inflate() {
    if (ready_) inflateEnd(&stream_);
  }

  enum class End { full, input, broken };
  /// Fills `out` from `done` on, over as many members as the input has.
  End fill(std::span<std::byte> out, std::size_t& done) {
    if (!ready_) return End::broken;
    constexpr std::size_t at_once = std::numeric_limits<uInt>::max();
    while (done < out.size()) {
      const std::size_t in = std::min(rest_.size(), at_once), room = std::min(out.size() - done, at_once);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      rest_ = rest_.subspan(in - stream_.avail_in);
      done += room - stream_.avail_out;
      if (status == Z_STREAM_END) {
        complete_ = true;
        // As gzip(1): zeros are no member, but what tapes and copies by blocks put behind the last one.
        if (std::ranges::all_of(rest_, [](std::byte b) { return b == std::byte{0}; })) rest_ = {};
        if (rest_.empty()) return done < out.size() ? End::input : End::full;
        if (inflateReset(&stream_) != Z_OK) return End::broken;  // another member follows
        complete_ = false;
      } else if (status == Z_BUF_ERROR && rest_.empty()) {
        return End::input;
      } else if (status != Z_OK) {
        return End::broken;
      }
    }
    return End::full;
  }
  /// The input ended where a member did.
  [[nodiscard]] bool complete() const { return complete_ && rest_.empty(); }

 private:
  z_stream stream_{};
  ByteSpan rest_;
  bool ready_ = false, complete_ = false;
};

}  // namespace

Result<ByteVector> gunzip_head(ByteSpan packed, std::size_t count, std::string_view name) {
  ByteVector out(count);
  std::size_t done = 0;
  if (Inflate{packed}.fill(out, done) == Inflate::End::broken) return damaged(name, "is no gzip file, or a damaged one");
  out.resize(done);
  return out;
}

Result<ByteVector> gunzip(ByteSpan packed, std::size_t size, std::string_view name) {
  if (size / ratio_max > packed.size()) return damaged(name, fmt::format("cannot hold the {} bytes that its header speaks of", size));
  ByteVector out(size + 1);  // one more, to see what is too much and to read the checksum at the end
  std::size_t done = 0;
  Inflate inflate{packed};
  if (inflate.fill(out, done) == Inflate::End::broken) return damaged(name, "is no gzip file, or a damaged one");
  if (done > size) return damaged(name, fmt::format("unpacks to more than the {} bytes that its header speaks of", size));
  if (done < size || !inflate.complete()) return damaged(name, fmt::format("is cut short: {} of {} bytes can be unpacked", done, size));
  out.resize(size);
  return out;
}

}  // namespace elrun::inline v0
