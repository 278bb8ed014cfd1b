#pragma once
/// \file Memory: where the arrays of a job lie, and what is done to whole runs of them: allocate, fill, copy, hash, add, update, to and from the
/// program; and addresses whose pages come and go. The host's is host_memory(), a device's device_memory.hpp. Each call is for a run of many elements, so that none
/// costs a virtual call per element. All calls are thread-safe for runs that do not overlap.
///
/// A run is given by its addresses. Those of a device are for the calls of its Memory alone: no loop of the host may touch them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <elrun/device.hpp>

#include "kernels/convert.hpp"
#include "kernels/reduce.hpp"
#include "kernels/update.hpp"

namespace elrun::inline v0 {

class Memory {
 public:
  virtual ~Memory() = default;
  /// The order in which `fill_with_zeros`, `copy`, `hash`, `write` and `read` work: each sees what those before it did. On the host each is done when
  /// it returns; on a device `hash` and `read` are.
  [[nodiscard]] virtual Stream stream() const = 0;
  [[nodiscard]] Device device() const { return stream().device(); }
  /// Another Memory of the same device, for the same runs, whose work is in an order of its own: events say what comes after what (handles.hpp). What it allocates is freed
  /// by it. Destroyed before this one. Null on the host, where there is one order. Throws Error.
  [[nodiscard]] virtual std::unique_ptr<Memory> beside() = 0;

  /// Filled with zeros; begins on a page on the host, on a border of 256 bytes on a device. Throws std::bad_alloc on the host, Error (`exhausted`) on a
  /// device. Given back by `free`.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  virtual void fill_with_zeros(std::span<std::byte> run) = 0;
  /// Both runs are of this memory, have the same size and do not overlap.
  virtual void copy(std::span<const std::byte> from, std::span<std::byte> to) = 0;
  /// The sum of the mixed words of `run` (kernels/state_hash.hpp), which begins on a border of 8 bytes. The first of them counts as word `first_word`.
  [[nodiscard]] virtual std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) = 0;
  /// From any memory of the host into `run`, of the same size. `from` may change as soon as it returns.
  virtual void write(std::span<const std::byte> from, std::span<std::byte> run) = 0;
  /// From `run` into any memory of the host.
  virtual void read(std::span<const std::byte> run, std::span<std::byte> to) = 0;
  /// The same in no order with `stream()`, and beside its work: it sees what was done when it was called. What the stream is given before it returns
  /// must not change `run`. It waits for no other call of this memory than one like it.
  virtual void read_beside(std::span<const std::byte> run, std::span<std::byte> to) = 0;

  // ---- arithmetic: the same bits wherever it runs. Runs of one call have the same size and do not overlap

  /// left = left + right (kernels/fold.hpp).
  virtual void add_into(std::span<float> left, std::span<const float> right) = 0;
  virtual void add_into(std::span<float> left, std::span<const bf16> right) = 0;
  /// Each element becomes the bf16 that is nearest to it (kernels/convert.hpp), and stays a float.
  virtual void round_to_bf16(std::span<float> run) = 0;
  /// The same, and packed: it takes the first half of the run. What is in the other half is not specified then.
  virtual void pack_to_bf16(std::span<float> run) = 0;
  virtual void to_bf16(std::span<const float> from, std::span<bf16> to) = 0;
  virtual void to_float(std::span<const bf16> from, std::span<float> to) = 0;
  /// One sum for each granule of `data` (kernels/granule.hpp), into `sums` of this memory.
  virtual void sums_of_squares(std::span<const float> data, std::span<float> sums) = 0;
  /// What is left of a tree of additions, into `result`, and the sum of squares of each granule of it into `sums` where that is not null
  /// (kernels/reduce.hpp). All lies in this memory.
  virtual void reduce(const ReduceTable& table, float* result, float* sums) = 0;
  /// One pass of an optimizer over a table of runs (kernels/update.hpp). Arrays and table lie in this memory.
  virtual void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step) = 0;

  // ---- addresses without memory. `pages`: begins and ends where a page does

  [[nodiscard]] virtual std::size_t page_bytes() const = 0;
  /// Whether pages of a reservation are given back one by one, or all are held for good.
  enum class Paging : std::uint8_t { comes_and_goes, stays };
  /// Addresses of whole pages, of which none is held: who touches it ends the process. Throws std::bad_alloc; and Error (`not_permitted`) where
  /// pages could not be given back later. Given back by `unreserve`, whole. On a device all is held from here on, and `comes_and_goes` is refused.
  [[nodiscard]] virtual void* reserve(std::size_t bytes, Paging paging) = 0;
  virtual void unreserve(void* memory, std::size_t bytes) noexcept = 0;
  /// Gives memory to pages: zeros where none was held. Throws Error (`exhausted`) where there is none, or no room for another mapping.
  virtual void hold(std::span<std::byte> pages) = 0;
  /// Pages that are held are there from now on, with their contents: the first touch of each costs nothing more. On a device they always are.
  virtual void make_resident(std::span<std::byte> pages) = 0;
  /// Takes it away again, with its contents.
  virtual void give_back(std::span<std::byte> pages) = 0;
};

/// One object for the whole process; it has no state.
[[nodiscard]] Memory& host_memory();
/// As host_memory().allocate, but contents are not specified, and a page comes when it is touched.
[[nodiscard]] void* allocate_untouched(std::size_t bytes);

}  // namespace elrun::inline v0
