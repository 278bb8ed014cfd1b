#pragma once
/// \file ProcessGroup: collectives over the workers of one generation.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>
#include <elrun/export.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/session.hpp>
#include <elrun/tensor.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// What a reduction does element by element. `avg` is the sum divided by the world size, for floating types.
enum class ReduceOp : std::uint8_t { sum, min, max, avg };

/// How bytes travel between two ranks.
enum class Transport : std::uint8_t {
  automatic,  ///< Shared memory between processes of one host, TCP between others. ELRUN_TRANSPORT may decide otherwise.
  tcp,        ///< Over TCP, also within a host.
  shm,        ///< Shared memory; a rank that cannot be reached through it is a failure.
};

struct GroupOptions {
  Duration connect = std::chrono::seconds{60};      ///< All peers are connected within this, or the missing ones are named.
  Duration collective = std::chrono::seconds{600};  ///< Default deadline of a call.
  Transport transport = Transport::automatic;
  std::string name{};  ///< Tells apart several groups of one generation: the same on all ranks of one, used once.
  /// The device whose memory `ProcessGroup::on` takes, one of its own for each rank; the host: none. All ranks name one, or none does.
  Device device{};
  /// With a device: all pairs of ranks are connected when the group is made, within `connect` once more. Otherwise the first `send` from one rank to another connects the two, and returns
  /// only when the other has come to its end of it. The same on all ranks, and in groups that are split off. Each pair takes memory of its two devices (with NVLink some 200 to 400 MiB of each)
  /// and time, again in each generation. Collectives need none of it, and an `exchange` of a byte in both directions connects just the pairs that a program wants.
  bool connect_pairs = false;
};

/// Pieces of memory that travel to, or come from, one peer, in this order. Borrowed until the call returns.
using SendList = std::vector<std::span<const std::byte>>;
using ReceiveList = std::vector<std::span<std::byte>>;
/// The same in device memory. Piece k that one rank sends is piece k that the other receives, of the same length.
using DeviceSendList = std::vector<DeviceSpan<const std::byte>>;
using DeviceReceiveList = std::vector<DeviceSpan<std::byte>>;

/// Memory of this process that the other workers of its host can read in place. All of its pages are there from the
/// beginning, zeroed; only this process writes to it (a forked child too: it is not copied by fork). It goes back to the
/// system with the last copy of this value, or with the process, and no generation's end touches it.
/// Copies share ownership of the same memory. Thread-safe as a shared_ptr is.
class ELRUN_API SharedBuffer {
 public:
  /// `invalid_argument` for no bytes; the system's failure where it has no memory or no descriptor left.
  static Result<SharedBuffer> make(Bytes size);
  /// Page-aligned.
  [[nodiscard]] std::span<std::byte> bytes() const;
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    return {reinterpret_cast<T*>(bytes().data()), bytes().size() / sizeof(T)};
  }

 private:
  friend class ProcessGroup;
  friend class Lanes;
  class State;
  explicit SharedBuffer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// An asynchronous call, which runs on the group's own thread. Copies refer to the same call. Thread-safe.
class ELRUN_API Work {
 public:
  /// Waits until the call is over, and returns what it returned. When `deadline` passes first, that is `deadline_passed`
  /// with the remedy `retry`: the call goes on (until its own deadline), and may be waited for again.
  Result<void> wait(Deadline deadline) const;
  [[nodiscard]] bool done() const;

 private:
  friend class CallQueue;
  friend class WorkPromise;
  struct State;
  explicit Work(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

class ProcessGroup;

/// The calls of a group on device memory, in the order of one stream (`ProcessGroup::on`). A value; group and stream outlive it.
///
/// A call returns once it is in the stream, or has failed. What the stream is given afterwards runs behind it. Its Work ends when the call is
/// over on the device; buffers belong to the call until then, also when the Work is thrown away.
///
/// **Only a Work that succeeded says that results are good.** Behind a call that failed the stream goes on over garbage, and events complete as if
/// nothing had happened. So a program waits for the Work, not for the stream, before it keeps what it has computed. When a
/// Work has failed, nothing of the call touches its buffers any more, unless the remedy is `exit_process`: NCCL's abort did not return, and only the
/// end of the process frees the device.
///
/// Calls with bytes are exact moves. **Reductions are not folded in rank order** as those on host memory are: NCCL's floating sums depend on
/// the world size, on its version and on its algorithm, and so do their bits (integers, min and max do not). Where bits have to be
/// the same in every world, exchange and fold in a fixed order, as a Job does.
///
/// All ranks make the same calls in the same order, whatever their streams, from one thread; calls on host memory have an order of their own. NCCL
/// does not notice other calls, lengths or a missing peer: such a call ends by its deadline. What does not fit is `invalid_argument` before
/// anything moves, and the group lives on.
class ELRUN_API DeviceCalls {
 public:
  /// In place. Types and operations are those of ProcessGroup::all_reduce.
  template <class T>
  [[nodiscard]] Work all_reduce(DeviceSpan<T> data, ReduceOp op = ReduceOp::sum) const {
    return all_reduce(data.data, data.size, DTypeOf<T>::value, op);
  }
  /// `in` has world size x n elements, `out` n: the reduced part of this rank. It may be this rank's part of `in`, and else lies outside.
  template <class T>
  [[nodiscard]] Work reduce_scatter(DeviceSpan<const T> in, DeviceSpan<T> out, ReduceOp op = ReduceOp::sum) const {
    return reduce_scatter(in.data, in.size, out.data, out.size, DTypeOf<T>::value, op);
  }
  /// `in` may be this rank's part of `out`, and else lies outside.
  [[nodiscard]] Work all_gather(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out) const;
  [[nodiscard]] Work broadcast(DeviceSpan<std::byte> data, Rank root) const;
  /// The two do not overlap.
  [[nodiscard]] Work all_to_all(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out) const;
  /// Between two, which alone make the call. Both are over when the bytes have arrived, or nearly. Each can wait for its other end in two places, until the deadline:
  /// * **In the call**: the first from one rank to another connects the two, and returns when the other has come to its end of it. Not with GroupOptions::connect_pairs, nor behind an `exchange` of the
  ///   two in both directions.
  /// * **On the device**: a `send` is over there when its bytes have been received, or fit in NCCL's buffers. What fits depends on the path, on NCCL's version and variables: a few KiB, no more is
  ///   to be counted on, and nothing while an earlier message of the two is there. Until then no later call of this group begins, on whatever stream: NCCL makes them one after the other.
  /// So ranks that all send before they receive, as in a ring, wait for each other, in the first call or with larger messages. They use `exchange`, in which nothing waits so.
  [[nodiscard]] Work send(DeviceSpan<const std::byte> data, Rank to) const;
  [[nodiscard]] Work receive(DeviceSpan<std::byte> data, Rank from) const;
  /// As ProcessGroup::exchange, also in what may not overlap; lists agree piece by piece. They are borrowed until this returns.
  [[nodiscard]] Work exchange(std::span<const DeviceSendList> sends, std::span<const DeviceReceiveList> receives) const;

 private:
  friend class ProcessGroup;
  DeviceCalls(ProcessGroup& group, Stream stream) : group_{&group}, stream_{stream} {}
  [[nodiscard]] Work all_reduce(void* data, std::uint64_t count, DType type, ReduceOp op) const;
  [[nodiscard]] Work reduce_scatter(const void* in, std::uint64_t in_count, void* out, std::uint64_t out_count, DType type,
                                    ReduceOp op) const;
  ProcessGroup* group_;
  Stream stream_;
};

/// One rank's hold on one generation. When that generation ends, or `revoke` is called, every call, also one that
/// waits, fails with `generation_over`; a peer that goes away is `peer_lost`, one whose host answers nothing for 15 s is
/// `unreachable` (the session's agent is told), and the group is over. After a failure
/// the contents of the buffers are unspecified and all later calls fail the same way.
/// Calls come from one thread, in the same order on all ranks; `revoke` from any. Buffers are host memory (device memory has `on`), borrowed
/// until the call returns. Every wait ends by its deadline (GroupOptions) and names the ranks that are missing.
/// What does not fit (lengths, a rank that is none, the average of integers, overlaps) is `invalid_argument` before anything moves,
/// and the group lives on. Ranks whose calls differ in the collective, its type, operation or root, or in a length learn it as `protocol` where bytes
/// of the one meet the other, and the group is over. (`exchange`, `send` and `receive` count as one collective, and so do roots 128 apart.)
///
/// Each call has a form that ends in `_async` and returns at once. Such calls run one after the other, in the order in
/// which they were begun, on a thread of the group's own; a call without `_async` waits for its turn behind them. Their
/// buffers are borrowed until the call is over, also when its Work is thrown away.
///
/// A group that was moved from refuses every call; it has no `membership`. In a forked child every call is refused, and the parent's group lives on. What ends a group ends its connections for the peers too, although a child
/// holds copies of their descriptors. A worker's death does not: while a child of it lives, its peers learn of the death from the agent alone, or by the
/// deadline of a call.
///
/// One class although it has nearly 30 methods: it is what programs call, each collective in two forms, and all of them share one order of calls.
class ELRUN_API ProcessGroup {
 public:
  /// Connects to all peers of the session's generation. Every pair proves the generation's key to each other. The session
  /// is there for as long as calls are made. `generation_over` where that generation has ended, or this process was started beside it, for the next one:
  /// a worker of the kind `staying` then calls `Session::next_generation`, and joins again.
  static Result<ProcessGroup> join(Session& session, const GroupOptions& options = {});

  [[nodiscard]] const Membership& membership() const;

  /// Reduces element by element over all ranks, in rank order, so that all ranks get the same bits. In place. `T` is
  /// float, double, bf16 (summed as float, rounded once) or an integer of 8, 32 or 64 bits (sums wrap around).
  template <class T>
  Result<void> all_reduce(std::span<T> data, ReduceOp op = ReduceOp::sum) {
    return all_reduce(data.data(), data.size(), DTypeOf<T>::value, op);
  }
  template <class T>
  [[nodiscard]] Work all_reduce_async(std::span<T> data, ReduceOp op = ReduceOp::sum) {
    return all_reduce_async(data.data(), data.size(), DTypeOf<T>::value, op);
  }
  /// `in` has world size x n elements, `out` n: the reduced part of this rank. It may be this rank's part of `in`; any other overlap is
  /// `invalid_argument`.
  template <class T>
  Result<void> reduce_scatter(std::span<const T> in, std::span<T> out, ReduceOp op = ReduceOp::sum) {
    return reduce_scatter(in.data(), in.size(), out.data(), out.size(), DTypeOf<T>::value, op);
  }
  template <class T>
  [[nodiscard]] Work reduce_scatter_async(std::span<const T> in, std::span<T> out, ReduceOp op = ReduceOp::sum) {
    return reduce_scatter_async(in.data(), in.size(), out.data(), out.size(), DTypeOf<T>::value, op);
  }
  /// `out` has world size x n bytes, `in` n: everybody's `in`, in rank order. `in` may be this rank's part of `out`; any other overlap is
  /// `invalid_argument`.
  Result<void> all_gather(std::span<const std::byte> in, std::span<std::byte> out);
  [[nodiscard]] Work all_gather_async(std::span<const std::byte> in, std::span<std::byte> out);
  /// Everybody gets the root's bytes; `data` has the same length on all ranks.
  Result<void> broadcast(std::span<std::byte> data, Rank root);
  [[nodiscard]] Work broadcast_async(std::span<std::byte> data, Rank root);
  /// `in` and `out` have world size equal parts: part r goes to rank r, part r of `out` came from rank r. The two do not overlap (checked).
  Result<void> all_to_all(std::span<const std::byte> in, std::span<std::byte> out);
  [[nodiscard]] Work all_to_all_async(std::span<const std::byte> in, std::span<std::byte> out);
  /// Between two: only they make the call. `send` returns when `data` may be used again, which can be before the other
  /// has it; the lengths agree.
  Result<void> send(std::span<const std::byte> data, Rank to);
  [[nodiscard]] Work send_async(std::span<const std::byte> data, Rank to);
  Result<void> receive(std::span<std::byte> data, Rank from);
  [[nodiscard]] Work receive_async(std::span<std::byte> data, Rank from);
  /// Returns when all ranks have come to it.
  Result<void> barrier();
  [[nodiscard]] Work barrier_async();

  /// A group of those ranks that pass the same `color`, numbered by (key, rank), with this group's options; nothing for a
  /// rank that passes no color. All ranks make the call. The new group has connections of its own: either may end before
  /// the other, and ranks in its failures are its own. The session must still be there.
  Result<std::optional<ProcessGroup>> split(std::optional<std::uint32_t> color, std::int32_t key = 0);

  /// The call that all others are made of: list r of `sends` goes to rank r, list r of `receives` comes from rank r.
  /// Both have one list per rank; the lengths on both sides agree (checked: `protocol`; in this rank's own lists, which are
  /// copied, `invalid_argument`). What comes from a peer overlaps no other piece of the call, sent or received: that is **not** checked, and
  /// its bytes would be unspecified. Nothing is allocated in proportion to the data.
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives);
  /// The lists too are borrowed until the call is over.
  [[nodiscard]] Work exchange_async(std::span<const SendList> sends, std::span<const ReceiveList> receives);

  /// Shows a buffer to the peers of this host, for as long as this group lives. What a call sends out of it, 64 KiB and more in
  /// one piece, and what a reduction over ranks of one host folds or returns there, is read where it lies: one copy instead
  /// of two. Results are the same, and no other rank has to do so. Such a call returns when its peers have read: a
  /// `send` waits for its `receive`. The buffer must outlive the calls that use it, not the group. Without a peer on this host
  /// nothing happens. A group made by `split` has to be shown it too. `exhausted` after 1024 buffers, or when a peer takes no notice.
  Result<void> share(const SharedBuffer& buffer);

  /// The group's calls on the memory of GroupOptions::device, in the order of `stream`: one that the program has made on that device. CUDA's default stream (null, cudaStreamLegacy,
  /// cudaStreamPerThread) is refused, for a thread of the group gives calls to streams, and to that thread it is another. What is refused, and all calls of a group without a device, is `invalid_argument`.
  [[nodiscard]] DeviceCalls on(Stream stream);

  /// The orderly end of a group that has done all its calls: all ranks come to it, within the deadline of calls. Afterwards every call fails,
  /// with `refused`. A group with a device has to be ended so where the others live on: without it, what a peer is still about to receive may be cut off. A
  /// program that ends then calls Session::finished first: otherwise, without elrun, the first process that is gone ends the generation of those that
  /// are not through yet.
  Result<void> finish();

  /// The deadline of calls that are begun from now on, instead of GroupOptions::collective. A call that was begun keeps its own, which counts from when
  /// its turn comes. Thread-safe.
  void set_deadline(Duration collective);

  /// Labels the calls that are begun from now on with a number of the program's own. A rank whose peer has another label fails with `mismatch`, which names
  /// both labels by `name`, called on the thread of a call that failed. Where it is null, or returns null, the numbers
  /// themselves are printed. 0 to begin with. By the thread that makes the calls.
  void set_label(std::uint16_t label, const char* (*name)(std::uint16_t label) = nullptr);

  /// Ends every call now, with this reason. Thread-safe; never waits. Without effect in a forked child.
  void revoke(const Failure& why);

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();  ///< Closes the connections at once, which ends the calls under way; waits for no peer.

 private:
  friend class DeviceCalls;
  class Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  Result<void> all_reduce(void* data, std::size_t count, DType type, ReduceOp op);
  Result<void> reduce_scatter(const void* in, std::size_t in_count, void* out, std::size_t out_count, DType type, ReduceOp op);
  Work all_reduce_async(void* data, std::size_t count, DType type, ReduceOp op);
  Work reduce_scatter_async(const void* in, std::size_t in_count, void* out, std::size_t out_count, DType type, ReduceOp op);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elrun::inline v0
