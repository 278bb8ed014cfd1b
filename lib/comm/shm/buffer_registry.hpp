#pragma once
/// \file Shared buffers that peers read in place: those that this rank has shown its peers, and those that a peer has shown it.
///
/// A buffer is shown once, by its descriptor; from then on a chunk names it by its number. When it is looked for, it may be gone, and its addresses
/// may belong to other memory. So its owner is asked each time whether it still lives. A peer keeps what it has mapped.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/comm/shm/shared_memory.hpp"

namespace elrun::inline v0 {

/// Where peers find bytes: in the shared buffer of this number.
struct BufferPlace {
  std::uint64_t buffer = 0, offset = 0;
  [[nodiscard]] BufferPlace after(std::uint64_t bytes) const { return {buffer, offset + bytes}; }
};

/// The shared buffers of this rank.
class OwnBuffers {
 public:
  /// `show` hands these words and this descriptor to every peer. Does nothing for a buffer that was shared before.
  Result<void> share(const std::shared_ptr<const void>& owner, const SharedMemory& memory,
                     const std::function<Result<void>(std::span<const std::byte> words, int file)>& show);
  [[nodiscard]] bool empty() const { return buffers_.empty(); }
  /// Of all that were shown to this group.
  [[nodiscard]] Bytes shown() const { return shown_bytes_; }
  /// Nothing where the piece does not lie in a buffer that is still there, or is too small to be worth it.
  [[nodiscard]] std::optional<BufferPlace> place_of(std::span<const std::byte> piece) const;

 private:
  struct Buffer {
    std::uint64_t number = 0;
    const std::byte* begin = nullptr;
    std::size_t size = 0;
    std::weak_ptr<const void> owner;
  };
  std::vector<Buffer> buffers_;
  std::uint64_t shown_ = 0;  // the number of the last of them
  Bytes shown_bytes_{};
};

/// The shared buffers of one peer.
class PeerBuffers {
 public:
  PeerBuffers() = default;
  /// `post`: through which they come.
  PeerBuffers(Rank whose, Fd post) : whose_{whose}, post_{std::move(post)} {}
  /// The buffer of this number, mapped when it is first used. A number that the peer has not shown is its mistake; that this process has no
  /// descriptor free is not.
  Result<const SharedMemory*> find(std::uint64_t number);
  /// Maps those that have come, whose descriptors would count against the limit of this user as long as they are under way. One that cannot be
  /// had is missed when it is looked for.
  void take_all();
  /// Bytes of all that are mapped.
  [[nodiscard]] Bytes mapped() const;
  /// No more can come, and what is mapped is in no child that is forked from now on.
  void close() noexcept;

 private:
  /// The next one that came; false: none, or this process can take no more.
  bool take();

  struct View {
    std::uint64_t number = 0;
    SharedMemory memory;
  };
  Rank whose_{};
  Fd post_;
  std::vector<View> views_;      // in the order in which they came
  std::optional<Failure> lost_;  // why one that came, the last of those, is not there
};

}  // namespace elrun::inline v0
