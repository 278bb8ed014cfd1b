#pragma once
/// \file PeerLane: the two lanes between this rank and one peer of its host. It posts chunks to the peer, and judges and takes those of the peer.

#include <atomic>
#include <cstdint>
#include <span>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/comm/cursor.hpp"
#include "lib/comm/label.hpp"
#include "lib/comm/shm/buffer_registry.hpp"
#include "lib/comm/shm/peer_region.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/shared_memory.hpp"

namespace elrun::inline v0 {

/// One class for both directions: what is posted to the peer and what is taken from it count the same calls. `lose` and `is_lost` from any thread, all else from the thread that makes the calls. Until
/// `attach` succeeded, only these two, `rank`, `is_attached`, `open_post` and `its_post`.
class PeerLane {
 public:
  /// `out`: the lane for that peer in this rank's region.
  void place(Rank rank, Lane* out) { rank_ = rank, out_ = out; }
  [[nodiscard]] Rank rank() const { return rank_; }

  /// The socket through which the peer is shown shared buffers.
  Result<void> open_post();
  [[nodiscard]] int its_post() const { return its_end_.get(); }
  Result<void> show(std::span<const std::byte> words, int file) const;
  /// What the peer has shown until now.
  void take_shown() { buffers_.take_all(); }

  /// `index`: of this rank among the `local` ranks of the host. Everything that the peer says is checked.
  Result<void> attach(const Membership& me, std::size_t index, std::size_t local, Fd file, Bytes size, Fd doorbell, Fd post);
  [[nodiscard]] bool is_attached() const { return region_.is_attached(); }
  /// Before the first call.
  void detach() { region_ = {}, buffers_ = {}; }
  /// After the last call: lets go of all but the peer's buffers that are mapped. A child that is forked from now on does not have those.
  void close() noexcept { region_ = {}, to_it_ = Fd{}, its_end_ = Fd{}, buffers_.close(); }
  /// Bytes of the peer's buffers.
  [[nodiscard]] Bytes mapped() const { return buffers_.mapped(); }

  void lose() { lost_.store(true); }
  [[nodiscard]] bool is_lost() const { return lost_.load(); }

  /// The next call between the two. From the peer come `total` bytes.
  void begin_call(std::uint64_t total) { ++call_, total_ = total; }
  [[nodiscard]] std::uint64_t total() const { return total_; }

  // --- posting ---

  /// Chunks that the peer has not taken yet.
  [[nodiscard]] std::uint64_t in_flight() const { return posted_ - region_.lane().taken.load(); }
  [[nodiscard]] std::uint64_t posted() const { return posted_; }
  [[nodiscard]] bool has_taken(std::uint64_t chunks) const { return region_.lane().taken.load() >= chunks; }
  /// There is room. `where`: offset, length, and the buffer if the bytes lie in a shared one; the rest is filled in here.
  void post(Chunk where, std::uint64_t total, const CallLabel& label) {
    where.call = call_word(call_, label);
    where.total = total;
    out_->chunks[posted_ % chunks_max] = where;
    out_->posted.store(++posted_);
    if (where.buffer != 0) shared_until_ = posted_;
    region_.wake();
  }
  /// The peer may still read a shared buffer that was posted.
  [[nodiscard]] bool reads_shared() const { return !has_taken(shared_until_); }

  // --- receiving ---

  [[nodiscard]] bool is_available() const { return region_.lane().posted.load() != taken_; }
  /// The bytes of the next chunk, which is available. Nothing that the peer wrote is believed.
  Result<std::span<const std::byte>> head(const CallLabel& label);
  /// The next chunk, after `head` accepted it, lies in a shared buffer of the peer.
  [[nodiscard]] bool head_is_shared() const { return region_.lane().chunks[taken_ % chunks_max].buffer != 0; }
  /// The same, but as many bytes as `size`, of which the chunk shows the beginning: a shared buffer has them.
  Result<const std::byte*> head_of(std::size_t size, const CallLabel& label);
  /// After the peer's memory was read, and before anything is done with it: was it valid until now? What lies in slots always is.
  [[nodiscard]] Result<void> still_valid() const;
  void took() {
    out_->taken.store(++taken_);
    region_.wake();
  }
  /// What is wrong with a chunk that is none of this call.
  [[nodiscard]] Failure not_of_call(const Chunk& chunk, const CallLabel& label) const;
  /// The ranks make different calls: `sent` bytes came where `total` belong.
  [[nodiscard]] Failure differing(std::uint64_t sent, std::uint64_t in_call) const;
  [[nodiscard]] Failure differing(std::uint64_t sent) const { return differing(sent, call_); }

  /// What is still to be copied from this peer in the call at hand, and how many bytes of the next chunk were copied already.
  Cursor<std::span<std::byte>> pending;
  std::uint64_t used = 0;

 private:
  Rank rank_{};
  Lane* out_ = nullptr;  // in this rank's region
  PeerRegion region_;
  std::atomic<bool> lost_{false};
  Fd to_it_, its_end_;  // through which it is shown buffers
  PeerBuffers buffers_;
  std::uint64_t call_ = 0, total_ = 0;  // the latest call, and how many bytes come from the peer in it
  std::uint64_t posted_ = 0, taken_ = 0;
  std::uint64_t shared_until_ = 0;  // of what was posted, the last chunk that lies in a shared buffer
  bool reads_in_place_ = false;     // the chunk that `head` judged last lies in a shared buffer
};

}  // namespace elrun::inline v0
