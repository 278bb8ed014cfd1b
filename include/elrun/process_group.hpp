#pragma once
/// \file ProcessGroup: collectives over the workers of one generation.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/session.hpp>
#include <elrun/tensor.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

enum class ReduceOp : std::uint8_t { sum, min, max, avg };

/// How bytes travel between two ranks.
enum class Transport : std::uint8_t {
  automatic,  ///< Through memory between processes of one host, over TCP between others. ELRUN_TRANSPORT may decide otherwise.
  tcp,        ///< Over TCP, also within a host.
  shm,        ///< Through memory; a rank that cannot be reached so is a failure.
};

struct GroupOptions {
  Duration connect = std::chrono::seconds{60};      ///< All peers are connected within this, or the missing ones are named.
  Duration collective = std::chrono::seconds{600};  ///< Default deadline of a call.
  Transport transport = Transport::automatic;
};

/// Pieces of memory that travel to, or come from, one peer, in this order. Borrowed until the call returns.
using SendList = std::vector<std::span<const std::byte>>;
using ReceiveList = std::vector<std::span<std::byte>>;

/// One rank's hold on one generation. When that generation ends, or `revoke` is called, every call, also one that
/// waits, fails with `generation_over`; a peer that goes away is `peer_lost`, and the group is over. After a failure
/// the contents of the buffers are unspecified and all later calls fail the same way.
/// Calls come from one thread, in the same order on all ranks; `revoke` from any. Buffers are host memory, borrowed
/// until the call returns. Every wait ends by its deadline and names the ranks that are missing.
class ELRUN_API ProcessGroup {
 public:
  /// Connects to all peers of the session's generation. Every pair proves the generation's key to each other.
  static Result<ProcessGroup> join(Session& session, const GroupOptions& options = {});

  [[nodiscard]] const Membership& membership() const;

  /// Reduces element by element over all ranks, in rank order, so that all ranks get the same bits. In place.
  template <class T>
  Result<void> all_reduce(std::span<T> data, ReduceOp op = ReduceOp::sum) {
    return all_reduce(data.data(), data.size(), DTypeOf<T>::value, op);
  }
  /// `in` has world size x n elements, `out` n: the reduced part of this rank.
  template <class T>
  Result<void> reduce_scatter(std::span<const T> in, std::span<T> out, ReduceOp op = ReduceOp::sum) {
    return reduce_scatter(in.data(), in.size(), out.data(), out.size(), DTypeOf<T>::value, op);
  }
  /// `out` has world size x n elements: everybody's `in`, in rank order.
  Result<void> all_gather(std::span<const std::byte> in, std::span<std::byte> out);
  Result<void> broadcast(std::span<std::byte> data, Rank root);
  /// `in` and `out` have world size equal parts: part r goes to rank r, part r of `out` came from rank r.
  Result<void> all_to_all(std::span<const std::byte> in, std::span<std::byte> out);
  Result<void> send(std::span<const std::byte> data, Rank to);
  Result<void> receive(std::span<std::byte> data, Rank from);
  Result<void> barrier();

  /// The call that all others are made of: list r of `sends` goes to rank r, list r of `receives` comes from rank r.
  /// Both have one list per rank; the lengths on both sides agree (checked: `protocol`). This rank's own lists are
  /// copied. Nothing is allocated in proportion to the data.
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives);

  /// Ends every call now, with this reason. Thread-safe; never waits.
  void revoke(const Failure& why);

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();  ///< Closes the connections at once; waits for no peer.

 private:
  class Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  Result<void> all_reduce(void* data, std::size_t count, DType type, ReduceOp op);
  Result<void> reduce_scatter(const void* in, std::size_t in_count, void* out, std::size_t out_count, DType type, ReduceOp op);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elrun::inline v0
