#pragma once
/// \file Memory of one process that others of its host may read.

#include <sys/mman.h>

#include <cstddef>
#include <span>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// A file of memory and this process's mapping of it. Move-only; the mapping ends with it.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Zeroed memory. All of its pages are allocated now, so no later access finds that the system has no memory left (SIGBUS). The file can neither shrink nor
  /// grow, and only this mapping can write to it (the last on kernels from 5.1).
  static Result<SharedMemory> make(Bytes size);
  /// The same, but its pages can be given back while others still map them. For this the file has to be writable by everybody who has its
  /// descriptor, so others get `for_reading`.
  static Result<SharedMemory> make_returnable(Bytes size);
  /// A descriptor by which nobody can write.
  [[nodiscard]] Result<Fd> for_reading() const;
  /// Only of returnable memory: its pages go back to the system, also those that others map. A process that reads there afterwards reads zeros.
  void give_back() noexcept;
  /// The mapping stays until the process ends. For a forked child: where its parent's memory is not in it (MADV_DONTFORK), something else may lie at that address by now.
  void leave_mapped() noexcept { bytes_ = {}; }
  /// Children that are forked from now on do not have the mapping. For memory that no code of a child will unmap.
  void leave_out_of_children() const noexcept { (void)::madvise(bytes_.data(), bytes_.size(), MADV_DONTFORK); }
  /// A peer's memory, for reading. Refused if the file is not sealed against shrinking, or has another size. `when_read` reserves addresses
  /// only: touching a page that was given back would allocate it again, for as long as it is mapped.
  enum class Pages : bool { when_read, now };
  static Result<SharedMemory> view(Fd file, Bytes size, Pages pages = Pages::now);

  SharedMemory(SharedMemory&& other) noexcept : file_{std::move(other.file_)}, bytes_{std::exchange(other.bytes_, {})} {}
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory() { unmap(); }

  /// Read-only for a view: a write ends the process.
  [[nodiscard]] std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] int file() const { return file_.get(); }
  explicit operator bool() const { return !bytes_.empty(); }

 private:
  SharedMemory(Fd file, std::span<std::byte> bytes) : file_{std::move(file)}, bytes_{bytes} {}
  static Result<SharedMemory> make(Bytes size, bool returnable);
  void unmap() noexcept;
  Fd file_;
  std::span<std::byte> bytes_;
};

}  // namespace elrun::inline v0
