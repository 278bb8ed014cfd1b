#pragma once
/// \file Lanes: how the ranks of one host give each other bytes through memory.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/fd.hpp"
#include "lib/comm/call_limit.hpp"
#include "lib/comm/label.hpp"

namespace elrun::inline v0 {

/// The region of one rank in one generation, and its view of its peers'. Calls come from one thread; `attach` and `forget` before
/// the first of them; `lose` and `end` from any thread.
///
/// A call fails with `peer_lost` when a peer that it needs was lost (what that peer had posted before still counts),
/// `generation_over` after `end`, `deadline_passed`, `exhausted` when something threw, or `protocol` when a peer makes another call. Then no other may
/// follow: who owns the lanes ends them.
class Lanes {
 public:
  /// `local`: the ranks of this host, this one among them, in rising order; the same list on all of them.
  static Result<std::unique_ptr<Lanes>> make(const Membership& me, std::vector<Rank> local);
  ~Lanes();

  /// What that peer needs to attach. The descriptors stay here. Through `post` come the buffers that are shared with it later.
  struct Offer {
    int region = -1, doorbell = -1, post = -1;
    Bytes size;
  };
  [[nodiscard]] Offer offer(Rank peer) const;
  Result<void> attach(Rank peer, Fd region, Bytes size, Fd doorbell, Fd post);
  [[nodiscard]] bool attached(Rank peer) const;
  /// For a peer that could not attach this rank: nothing travels between the two through memory.
  void forget(Rank peer);

  /// From now on what is sent out of `buffer` to attached peers is read in place by them.
  Result<void> share(const SharedBuffer& buffer);

  /// Its connection ended: nothing will be posted any more.
  void lose(Rank peer) noexcept;
  /// Every call ends now. Peers that read this rank's shared buffers are told that these are not valid any more.
  void end() noexcept;

  /// As Mesh::transfer, with the attached peers and this rank itself only: the lists of other ranks are left alone.
  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                        const CallLimit& limit, const CallLabel& label = {});
  /// The same as a call of its own, which begins now.
  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit,
                        const CallLabel& label = {});
  /// All ranks of the world are attached. Element by element, in rank order, straight from the peers' memory. `gather`:
  /// `out` has `count` elements (it may be `in`) and gets all of them; otherwise it gets this rank's part alone.
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label = {});

 private:
  class State;
  explicit Lanes(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elrun::inline v0
