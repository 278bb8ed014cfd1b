#pragma once
/// \file What lies in the region of a rank: its header, a lane for each rank of the host, then slots. Whoever maps a peer's reads
/// the same words there.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace elrun::inline v0 {

constexpr std::uint64_t region_magic = 0x3230'454e'414c'4c45;  // "ELLANE02": the last two digits are the version
constexpr std::size_t cache_line = 64;                         // words of two writers, or of two readers, share none
constexpr std::size_t page = 4096;
constexpr std::size_t chunks_max = 16;  // under way in one lane

struct Chunk {
  std::uint64_t call = 0, total = 0;     // which call between the two, and how many bytes its payload has
  std::uint64_t offset = 0, length = 0;  // in the writer's region,
  std::uint64_t buffer = 0;              // or in the buffer that it shared under this number
};
struct alignas(cache_line) Lane {
  alignas(cache_line) std::atomic<std::uint64_t> posted{0};  // chunks for that peer
  alignas(cache_line) std::atomic<std::uint64_t> taken{0};   // of that peer's chunks for this rank
  alignas(cache_line) std::array<Chunk, chunks_max> chunks{};
};
struct alignas(page) RegionHeader {
  std::uint64_t magic = 0, size = 0, generation = 0;
  std::array<std::uint64_t, 2> lineage{};
  std::uint32_t rank = 0, world = 0, local = 0;
  alignas(cache_line) std::atomic<std::uint32_t> asleep{0};     // it waits for its doorbell
  alignas(cache_line) std::atomic<std::uint32_t> withdrawn{0};  // its shared buffers are written again
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

inline std::size_t slots_offset(std::size_t local) { return (sizeof(RegionHeader) + local * sizeof(Lane) + page - 1) / page * page; }
inline Lane* lane_at(std::byte* region, std::size_t index) {
  return reinterpret_cast<Lane*>(region + sizeof(RegionHeader) + index * sizeof(Lane));
}

/// What stands before it is read and written before what follows, for other processes too. (The language's own fence is not known
/// to the thread sanitizer, and this one is asked for rarely.)
inline void fence() {
#if defined(__x86_64__)
  asm volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dmb ish" ::: "memory");
#else
  __sync_synchronize();
#endif
}

}  // namespace elrun::inline v0
