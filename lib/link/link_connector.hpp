#pragma once
/// \file A worker's attempts to connect: to its agent, or to rank 0 of an operator's job, again with a growing pause until the deadline.

#include <functional>
#include <string>
#include <variant>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/philox.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"
#include "lib/link/environment.hpp"
#include "lib/link/message.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// What differs between the two connections.
struct LinkTarget {
  Hello hello;
  std::string where;  ///< For people: the socket, or `rank 0 at node-a:29500`.
  std::variant<UnderAgent, InOperatorsJob> place;
  [[nodiscard]] const InOperatorsJob* operators() const { return std::get_if<InOperatorsJob>(&place); }
};

/// On the link thread alone. `loop`, `clock`, `log` and `target` outlive it. After the deadline it falls silent: whoever set it says so.
class LinkConnector {
 public:
  struct Handler {
    std::function<void(StreamSocket)> connected;
    std::function<void(Failure)> hopeless;  ///< The agent has gone: its socket was there before this process.
  };
  LinkConnector(boost::asio::io_context& loop, const Clock& clock, const Log& log, const LinkTarget& target, Deadline deadline,
                Handler handler);

  void connect();
  /// After a pause, because of `why`.
  void connect_later(Failure why);
  void stop() { retry_.cancel(); }
  [[nodiscard]] const std::string& last_problem() const { return last_problem_; }

 private:
  Result<SocketAddress> next_address();

  boost::asio::io_context& loop_;
  const Clock& clock_;
  const Log& log_;
  const LinkTarget& target_;
  const Deadline deadline_;
  const Handler handler_;
  const Instant started_ = clock_.now();
  boost::asio::steady_timer retry_;
  Rng jitter_;
  Duration backoff_;
  std::size_t attempts_ = 0;
  std::string last_problem_ = "no attempt was made";
  LogIfChanged waiting_{}, loopback_{};
};

}  // namespace elrun::inline v0
