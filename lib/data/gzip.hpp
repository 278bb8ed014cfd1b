#pragma once
/// \file Unpacking gzip, with the size known before: nothing in the input makes it take more memory than that.

#include <string_view>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// The first bytes of what is packed, at most `count`.
[[nodiscard]] Result<ByteVector> gunzip_head(ByteSpan packed, std::size_t count, std::string_view name);
/// All of it, which must be `size` bytes: fewer or more are `corrupt`, and so is a `size` that the input cannot hold.
[[nodiscard]] Result<ByteVector> gunzip(ByteSpan packed, std::size_t size, std::string_view name);

}  // namespace elrun::inline v0
