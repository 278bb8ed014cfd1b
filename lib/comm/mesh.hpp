#pragma once
/// \file Mesh: all connections of one group, and the transfer of lists that every collective is made of.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <elrun/process_group.hpp>

#include "lib/comm/call_limit.hpp"
#include "lib/comm/label.hpp"

namespace elrun::inline v0 {

/// Which group of the session's generation is joined, and how.
struct GroupToJoin {
  Transport transport = Transport::automatic;  ///< The environment was asked already.
  std::string name{};                          ///< Tells apart the groups of one generation: they do not hear each other.
  Duration connect;                            ///< Once all peers have come, they are connected within this.
  std::optional<Duration> whole{};             ///< The whole join takes no longer, waiting for peers included. Nothing: than `connect`.
};

/// Made and used by one thread; `revoke` from any. It has one communication thread, on which no user code runs.
class Mesh {
 public:
  /// Returns when every pair of ranks has proved the generation's key and chosen a transport (see connect/connector.hpp).
  static Result<std::unique_ptr<Mesh>> join(Session& session, const GroupToJoin& group);
  /// Aborts: closes all connections, waits for nobody.
  ~Mesh();

  /// Moves list r of `sends` to rank r and fills list r of `receives` from rank r, all at the same time. `whom`: the peer, in a call of two
  /// ranks; nothing in a call of all ranks. Both kinds count as calls of the pair. `meanwhile` runs once on the caller's thread while
  /// frames travel; it touches nothing that is received.
  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                        const CallLimit& limit, const CallLabel& label, const std::function<void()>& meanwhile = {});
  /// This rank reaches all peers through shared memory. Where one pair of others does not, ranks differ in this.
  [[nodiscard]] bool all_local() const;
  /// False: no rank is `all_local`. The same answer on all ranks.
  [[nodiscard]] bool all_may_share_memory() const;
  /// As Lanes::reduce, where every rank is `all_local`.
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label);
  /// As Lanes::share. Does nothing where no peer is reached through shared memory.
  Result<void> share(const SharedBuffer& buffer);
  /// The first peer whose connection has ended. Fatal only to what still needs that peer. Thread-safe.
  [[nodiscard]] std::optional<Rank> lost_peer() const;
  /// Ends every call now, with `generation_over` and this reason. Thread-safe; never waits. Does nothing in a forked child.
  void revoke(const Failure& why);
  /// The same, with this failure as it is.
  void end(const Failure& why);

 private:
  class State;
  explicit Mesh(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  const int owner_;  ///< The process that made it.
};

}  // namespace elrun::inline v0
