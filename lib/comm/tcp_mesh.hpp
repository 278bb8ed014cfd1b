#pragma once
/// \file TcpMesh: one connection to every peer of a generation, and the exchange that everything else is made of.

#include <memory>
#include <span>

#include <elrun/process_group.hpp>

namespace elrun::inline v0 {

/// Made and used by one thread; `revoke` from any. One communication thread, which user code never runs on.
class TcpMesh {
 public:
  /// Listens at the session's address, tells everybody where through its store, dials all lower ranks, is dialled by
  /// all higher ones, and returns when every pair has proved its key.
  static Result<std::unique_ptr<TcpMesh>> join(Session& session, Duration connect);
  /// Aborts: closes all connections, waits for nobody.
  ~TcpMesh();

  /// Moves list r of `sends` to rank r and fills list r of `receives` from rank r, all at the same time. `whom` is one
  /// peer for a call between two, nothing for a call of all ranks; the two kinds are counted alike on both sides.
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit);
  void revoke(const Failure& why);

 private:
  class State;
  explicit TcpMesh(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  const int owner_;  ///< The process that made it.
};

}  // namespace elrun::inline v0
