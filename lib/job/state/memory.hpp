#pragma once
/// \file Memory: where the arrays of a job lie, and what is done to whole runs of them: allocate, fill, copy, hash. The host's is here;
/// a device's implements the same calls. Each call is for a run of many elements, so that none costs a virtual call per element.

#include <cstddef>
#include <cstdint>
#include <span>

namespace elrun::inline v0 {

class Memory {
 public:
  virtual ~Memory() = default;
  /// Page-aligned and filled with zeros. Throws std::bad_alloc. Given back by `free`.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  virtual void fill_with_zeros(std::span<std::byte> run) = 0;
  /// Both runs are of this memory, have the same size and do not overlap.
  virtual void copy(std::span<const std::byte> from, std::span<std::byte> to) = 0;
  /// The sum of the mixed words of `run` (kernels/state_hash.hpp). The first of them counts as word `first_word`.
  [[nodiscard]] virtual std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) = 0;
};

/// One object for the whole process; it has no state.
[[nodiscard]] Memory& host_memory();

}  // namespace elrun::inline v0
