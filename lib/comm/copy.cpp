#include "lib/comm/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "lib/base/assert.hpp"
#include "lib/comm/tcp/frame.hpp"

namespace elrun::inline v0 {

void copy_streaming(std::byte* to, const std::byte* from, std::size_t size) {
#if defined(__SSE2__)
  constexpr std::size_t line = 64;    // is written as a whole, or it is read first
  constexpr std::size_t page = 4096;  // where the processor's own reading ahead ends: four pages are read at the same time
  constexpr std::size_t pages = 4;
  const std::size_t head = std::min(size, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  std::memcpy(to, from, head);
  const auto copy_line = [&](std::size_t at) {
    const auto part = [&](std::size_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 16 * i)); };
    const __m128i first = part(0), second = part(1), third = part(2), fourth = part(3);
    auto* const place = reinterpret_cast<__m128i*>(to + at);
    _mm_stream_si128(place, first);
    _mm_stream_si128(place + 1, second);
    _mm_stream_si128(place + 2, third);
    _mm_stream_si128(place + 3, fourth);
  };
  std::size_t at = head;
  for (; at + pages * page <= size; at += pages * page) {
    for (std::size_t in_page = 0; in_page < page; in_page += line) {
      for (std::size_t i = 0; i < pages; ++i) copy_line(at + i * page + in_page);
    }
  }
  for (; at + line <= size; at += line) copy_line(at);
  _mm_sfence();  // such stores keep no order with others by themselves
  std::memcpy(to + at, from + at, size - at);
#else
  std::memcpy(to, from, size);
#endif
}

void copy_lists(const SendList& from, const ReceiveList& to) {
  Cursor<std::span<const std::byte>> source{from};
  Cursor<std::span<std::byte>> target{to};
  ELRUN_ASSERT(source.left() == target.left());
  const bool streaming = target.left() >= streamed_least;
  while (!target.done()) {
    std::span<std::byte> into;
    (void)target.take(call_payload_max, std::span{&into, 1});
    while (!into.empty()) {
      std::span<const std::byte> piece;
      (void)source.take(into.size(), std::span{&piece, 1});
      const bool apart = piece.data() + piece.size() <= into.data() || into.data() + piece.size() <= piece.data();
      if (apart) copy_bytes(into.data(), piece.data(), piece.size(), streaming);
      else std::memmove(into.data(), piece.data(), piece.size());
      into = into.subspan(piece.size());
    }
  }
}

}  // namespace elrun::inline v0
