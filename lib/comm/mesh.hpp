#pragma once
/// \file Mesh: one connection to every peer of a generation, shared memory with those of this host, and the exchange that
/// everything else is made of.

#include <functional>
#include <memory>
#include <span>

#include <elrun/process_group.hpp>

#include "lib/comm/label.hpp"

namespace elrun::inline v0 {

/// Made and used by one thread; `revoke` from any. One communication thread, which user code never runs on.
class Mesh {
 public:
  /// Listens at the session's address, tells everybody where through its store, dials all lower ranks, is dialled by
  /// all higher ones, and returns when every pair has proved its key.
  /// `transport` says which peers may be reached through memory; it is chosen, the environment was asked. Groups of
  /// different names do not hear each other.
  static Result<std::unique_ptr<Mesh>> join(Session& session, Transport transport, const std::string& name, Duration connect);
  /// Aborts: closes all connections, waits for nobody.
  ~Mesh();

  /// Moves list r of `sends` to rank r and fills list r of `receives` from rank r, all at the same time. `whom` is one
  /// peer for a call between two, nothing for a call of all ranks; the two kinds are counted alike on both sides.
  /// `meanwhile` runs on the caller's thread while frames travel, once at most; it touches nothing of what is received.
  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit,
                        const CallLabel& label, const std::function<void()>& meanwhile = {});
  /// Whether all peers are reached through memory: then `reduce` is there too.
  [[nodiscard]] bool all_local() const;
  /// As Lanes::reduce.
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label);
  /// As Lanes::share; nothing where no peer is reached through memory.
  Result<void> share(const SharedBuffer& buffer);
  void revoke(const Failure& why);

 private:
  class State;
  explicit Mesh(std::shared_ptr<State> state);
  [[nodiscard]] Result<void> check_owner() const;
  std::shared_ptr<State> state_;
  const int owner_;  ///< The process that made it.
};

}  // namespace elrun::inline v0
