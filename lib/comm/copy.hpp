#pragma once
/// \file Copies within this process.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <elrun/process_group.hpp>

namespace elrun::inline v0 {

/// A call that fills this many bytes fills more than stays in the cache of one core until it is used.
constexpr std::uint64_t streamed_least = 8 << 20;

/// As memcpy, but `to` does not pass through the caches: its old contents are not read, and what is useful in the caches
/// stays there. For large copies, where reading the old contents would cost most of the time.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t size);

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t size, bool streaming) {
  if (streaming) copy_streaming(to, from, size);
  else std::memcpy(to, from, size);
}

/// The bytes of one list to the places of the other, which is as long. They may overlap where a piece goes.
void copy_lists(const SendList& from, const ReceiveList& to);

}  // namespace elrun::inline v0
