#pragma once
/// \file Memory: where the arrays of a job lie, and what is done to whole runs of them: allocate, fill, copy, hash; and addresses whose pages come
/// and go. The host's is here; a device's implements the same calls. Each call is for a run of many elements, so that none costs a virtual
/// call per element. All calls are thread-safe for runs that do not overlap.

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

  // ---- addresses without memory. `pages`: begins and ends where a page does

  [[nodiscard]] virtual std::size_t page_bytes() const = 0;
  /// Whether pages of a reservation are given back one by one, or all are held for good.
  enum class Paging : std::uint8_t { comes_and_goes, stays };
  /// Addresses of whole pages, of which none is held: who touches it ends the process. Throws std::bad_alloc; and Error (`not_permitted`) where
  /// pages could not be given back later. Given back by `unreserve`, whole.
  [[nodiscard]] virtual void* reserve(std::size_t bytes, Paging paging) = 0;
  virtual void unreserve(void* memory, std::size_t bytes) noexcept = 0;
  /// Gives memory to pages: zeros where none was held. Throws std::bad_alloc.
  virtual void hold(std::span<std::byte> pages) = 0;
  /// Takes it away again, with its contents.
  virtual void give_back(std::span<std::byte> pages) = 0;
};

/// One object for the whole process; it has no state.
[[nodiscard]] Memory& host_memory();

}  // namespace elrun::inline v0
