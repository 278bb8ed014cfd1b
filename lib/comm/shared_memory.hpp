#pragma once
/// \file Memory of one process that others of its host may read, the bell by which they wake it, and how both are handed over.

#include <sys/mman.h>

#include <array>
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
  /// Zeroed memory of its own. All of it is there from the beginning, so that no later access can meet a full machine; the
  /// file can neither shrink nor grow, and only this mapping can write to it (the last on kernels from 5.1).
  static Result<SharedMemory> make(Bytes size);
  /// The same, but its pages can be given back while others still map them. That takes a file which whoever has this descriptor
  /// can write to: others get `for_reading`.
  static Result<SharedMemory> make_returnable(Bytes size);
  /// A descriptor by which nobody can write.
  [[nodiscard]] Result<Fd> for_reading() const;
  /// Takes the pages away from everybody; who reads there afterwards reads zeros. Of a returnable one.
  void give_back() noexcept;
  /// Somebody else's, for reading. Refused when the file is not sealed against shrinking, or has another size. Of what may never
  /// be read only the addresses are taken: to touch a page that was given back is to get it again, for as long as it is mapped.
  enum class Pages : bool { when_read, now };
  static Result<SharedMemory> view(Fd file, Bytes size, Pages pages = Pages::now);

  SharedMemory(SharedMemory&& other) noexcept : file_{std::move(other.file_)}, bytes_{std::exchange(other.bytes_, {})} {}
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory() { unmap(); }

  /// Of a view it is read-only: a write ends the process.
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

/// What one thread waits for and anybody rings. A ring is never lost: one that comes before the wait ends it at once.
/// It is a file (eventfd) and no word in memory, so that one wait serves all peers, and peers need to write nowhere.
class Bell {
 public:
  static Result<Bell> make();
  /// Somebody else's, for ringing.
  explicit Bell(Fd file) : file_{std::move(file)} {}
  void ring() const noexcept;
  /// Until it was rung since the last wait, at most this long.
  void wait(Duration most) const noexcept;
  [[nodiscard]] int file() const { return file_.get(); }

 private:
  Fd file_;
};

/// Sends `bytes` with the descriptors over a Unix socket whose buffer has room for them.
[[nodiscard]] Result<void> send_with(int socket, std::span<const std::byte> bytes, std::span<const int> files);
/// Receives exactly as many bytes, with `files.size()` descriptors or none at all.
[[nodiscard]] Result<void> receive_with(int socket, std::span<std::byte> bytes, std::span<Fd> files);

}  // namespace elrun::inline v0
