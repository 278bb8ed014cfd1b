#pragma once
/// \file HostCollectives: collectives on host memory. It makes them of the mesh's transfers of lists, which go over TCP and through shared memory.

#include <memory>
#include <string>
#include <vector>

#include <elrun/session.hpp>

#include "lib/comm/collectives.hpp"
#include "lib/comm/mesh.hpp"

namespace elrun::inline v0 {

/// Connects to all peers of the session's generation. When a peer turns out to be unreachable, then or in a call, the session is told
/// (`Session::cannot_go_on`); it is there for as long as calls are made.
[[nodiscard]] Result<std::unique_ptr<Collectives>> join_host_collectives(Session& session, const GroupToJoin& group);

class HostCollectives final : public Collectives {
 public:
  HostCollectives(Session& session, std::unique_ptr<Mesh> mesh);
  /// Before the first call, on all ranks: whether all share memory, on which the schedule of a call depends.
  Result<void> agree(Duration limit);
  [[nodiscard]] const Membership& membership() const override { return membership_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, DType type, ReduceOp op, const CallOptions& call) override;
  Result<void> reduce_scatter(const std::byte* in, std::size_t in_count, std::byte* out, std::size_t out_count, DType type, ReduceOp op,
                              const CallOptions& call) override;
  Result<void> all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) override;
  Result<void> broadcast(std::span<std::byte> data, Rank root, const CallOptions& call) override;
  Result<void> all_to_all(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) override;
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const CallOptions& call) override;
  Result<void> send_receive(std::span<const std::byte> out, std::span<std::byte> in, Rank peer, const CallOptions& call) override;
  Result<void> share(const SharedBuffer& buffer) override { return mesh_->share(buffer); }
  void revoke(const Failure& why) override { mesh_->revoke(why); }
  void end(const Failure& why) override { mesh_->end(why); }
  [[nodiscard]] std::optional<Rank> lost_peer() const override { return mesh_->lost_peer(); }

 private:
  [[nodiscard]] std::uint32_t me() const { return membership_.rank.value(); }
  [[nodiscard]] std::uint32_t world() const { return membership_.world.value(); }
  void clear();
  /// all_gather whose arguments fit.
  Result<void> gather(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call);
  /// The lists of this object, as one call or as a part of one that has this limit.
  Result<void> transfer(const CallLimit& limit, const CallOptions& call, std::optional<Rank> peer = {},
                        const std::function<void()>& meanwhile = {});
  Result<void> told(Result<void> result);
  Result<void> reduce_small(std::byte* data, std::size_t count, DType type, ReduceOp op, const CallOptions& call);
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather,
                      const CallOptions& call);

  Session& session_;
  const Membership membership_;
  std::unique_ptr<Mesh> mesh_;
  bool all_local_ = false;  // every pair of ranks shares memory
  // Kept between calls, so that a call allocates nothing once the first of its size was made.
  std::vector<SendList> sends_;
  std::vector<ReceiveList> receives_;
  std::vector<std::byte> scratch_;
};

}  // namespace elrun::inline v0
