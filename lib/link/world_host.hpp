#pragma once
/// \file WorldHost: rank 0's second role in an operator's job. It calls the roll, hands out the generation, hosts the
/// store, and tells all members when one is lost. Lives on rank 0's link thread; rank 0 itself is one of its clients.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/steady_timer.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/log.hpp"
#include "lib/base/log_limited.hpp"
#include "lib/link/roll_call.hpp"
#include "lib/link/server.hpp"
#include "lib/link/store_core.hpp"

namespace elrun::inline v0 {

class WorldHost {
 public:
  /// Listens where MASTER_ADDR and MASTER_PORT say. `proof`: what every member has to show; empty: nothing. Members that are missing at `deadline` are named to all others.
  static Result<std::unique_ptr<WorldHost>> open(boost::asio::io_context& loop, const Clock& clock, const Log& log,
                                                 const std::string& address, std::uint16_t port, WorldSize world, std::string proof,
                                                 Deadline deadline);

 private:
  WorldHost(boost::asio::io_context& loop, const Clock& clock, const Log& log, WorldSize world, std::string proof, Deadline deadline);
  void on_message(WorkerServer::Connection from, const Message& message);
  void on_closed(WorkerServer::Connection from, const Failure& why);
  void welcome_all();
  void give_up();
  void refuse(WorkerServer::Connection from, Failure why);
  void deliver(const std::vector<StoreAnswer>& answers);
  void on_job_over(WorkerServer::Connection from, Rank rank);
  void release_host();
  void beat();

  const Clock& clock_;
  const Log& log_;
  WorldSize world_;
  Generation generation_{.number = 1};
  Key256 key_{};
  RollCall roll_;
  std::optional<Failure> given_up_;  // not all came in time: nobody is taken any more
  LogIfChanged waiting_;
  LogLimited refused_;
  std::uint64_t beats_ = 0;
  StoreCore store_;
  EndOfJob end_;
  boost::asio::steady_timer heartbeat_, expiry_, deadline_timer_;
  std::unique_ptr<WorkerServer> server_;  // last: goes first, with the handlers that use the rest
};

}  // namespace elrun::inline v0
