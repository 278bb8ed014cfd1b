#pragma once
/// \file A place in a list of pieces of memory. Transports cut the lists of a call with it. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace elrun::inline v0 {

constexpr std::uint64_t call_payload_max = std::uint64_t{1} << 48;  ///< Bytes for one peer in one call.

/// A place in a list of pieces. `Piece` is a span of bytes, constant or not. Holds views; allocates nothing.
template <class Piece>
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(std::span<const Piece> pieces) : pieces_{pieces} {
    for (const Piece& piece : pieces) left_ += piece.size();
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }
  [[nodiscard]] bool done() const { return left_ == 0; }

  /// The next pieces, `bytes_max` bytes and as many pieces as `out` holds at most; moves on. Returns those in use.
  std::span<Piece> take(std::uint64_t bytes_max, std::span<Piece> out) {
    std::size_t used = 0;
    while (used < out.size() && bytes_max > 0 && left_ > 0) {
      const Piece rest = pieces_.front().subspan(offset_);
      const Piece head = rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), bytes_max)));
      if (head.size() == rest.size()) {
        pieces_ = pieces_.subspan(1);
        offset_ = 0;
      } else {
        offset_ += head.size();
      }
      if (head.empty()) continue;  // an empty piece takes no place
      out[used++] = head;
      bytes_max -= head.size();
      left_ -= head.size();
    }
    return out.first(used);
  }

 private:
  std::span<const Piece> pieces_;
  std::size_t offset_ = 0;  // in the first of them
  std::uint64_t left_ = 0;
};

}  // namespace elrun::inline v0
