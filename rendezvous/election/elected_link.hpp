#pragma once
/// \file ElectedLink: an agent's line to whoever is elected through etcd to coordinate; to itself, when that is this agent.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/net/access.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0 {

struct ElectionSetting {
  std::vector<Endpoint> etcd;  ///< Its servers, not empty; the one that answers is asked.
  RunId run;                   ///< Not empty: agents of one run elect one coordinator.
  bool campaigns = true;       ///< This agent may coordinate.
  std::string local_address;   ///< How other nodes reach this one; empty: the address that packets to etcd leave from.
  Timeouts timeouts;
  Access access;                       ///< To etcd, and to the coordinator
  std::uint64_t generation_floor = 0;  ///< As this agent knows it; etcd may know a larger one.
  std::uint64_t seed = 0;              ///< Of all that is left to chance.
};

/// Loop thread only. Reconnects, campaigns and steps down by itself, until it is destroyed.
class ElectedLink : public NodeLink {
 public:
  /// The coordinator, while it is this agent's.
  [[nodiscard]] virtual const Coordinator* coordinator() const = 0;
  /// The orderly end, once nothing more is to be sent: tells etcd, so that the next one is elected at once. `done` runs on
  /// the loop, when etcd has heard it, or after a second.
  virtual void resign(std::function<void()> done) = 0;
};

/// `log` is the coordinator's. `may_exit` is called as Coordinator::on_may_exit says, of whichever coordinator is here.
std::unique_ptr<ElectedLink> connect_through_etcd(boost::asio::io_context& loop, const Clock& clock, const Log& log,
                                                  ElectionSetting setting, NodeLink::Handler handler, std::function<void()> may_exit);

}  // namespace elrun::inline v0
