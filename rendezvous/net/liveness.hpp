#pragma once
/// \file How a coordinator finds out at once that a process has ended whose stream broke, where nobody is left to tell: a container, or all
/// processes of a node, were killed.
///
/// An agent listens at a port until its end, and never takes a connection there. While it lives, the system lets a few connections wait. When it has
/// ended, the system refuses them and resets those that wait. So the answer is the host's own, and takes a round trip. A host that is gone and a firewall
/// that drops give none. Each question to an agent that lives leaves a connection in its listen backlog. A full one drops what comes, and then there is an
/// answer only where the process has ended before the question. A firewall that rejects answers like the host. So an answer is no proof, and costs a node that
/// lives no more than its grace: it comes back as a newcomer.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include <elrun/units.hpp>

#include "lib/base/fd.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

constexpr std::size_t liveness_ports_max = 8;         ///< Addresses by which one process may be asked.
constexpr int liveness_backlog = 4;                   ///< Connections that wait there; the system drops the beginnings of others.
constexpr std::size_t liveness_questions_max = 1024;  ///< Under way at one time; others get no answer.

/// The ports of this process. They close with it: an object of this class lives as long as the process has a part in the job.
class LivenessPorts {
 public:
  /// A port at this literal address, the same each time. Nothing where the address is empty or not this host's, or the system has no port.
  [[nodiscard]] std::optional<LivenessPort> at(const std::string& address);

 private:
  struct Held {
    Fd socket;
    LivenessPort port;
  };
  std::map<std::string, Held> held_;
};

/// Loop thread only.
class LivenessQuestions {
 public:
  /// An answer counts within `patience`.
  LivenessQuestions(boost::asio::io_context& loop, Duration patience) : loop_{loop}, patience_{patience} {}

  /// `ended` is called on the loop, later and at most once: the process that had this port has ended. It is not called where this object is gone.
  void ask(const LivenessPort& port, std::function<void()> ended);

 private:
  class Question;
  boost::asio::io_context& loop_;
  Duration patience_;
  std::shared_ptr<std::size_t> under_way_ = std::make_shared<std::size_t>(0);  // questions hold it weakly
};

}  // namespace elrun::inline v0
