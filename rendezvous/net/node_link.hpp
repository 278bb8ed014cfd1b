#pragma once
/// \file NodeLink: an agent's one line to the coordinator, in this process or over gRPC.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/endpoint.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/net/access.hpp"

namespace elrun::inline v0 {

/// Where a line leads: a literal address as gRPC reads it, and the host that the coordinator's certificate has to be for.
struct LineTarget {
  std::string address;
  std::string host;
  friend bool operator==(const LineTarget&, const LineTarget&) = default;
};

/// All callbacks run on the agent's loop. The link reconnects by itself with jittered back-off (50 ms to 2 s), resolving
/// the name anew each time, until it is destroyed; the agent decides when to give up.
class NodeLink {
 public:
  struct Handler {
    /// The stream is up (again): the agent answers with Join.
    std::function<void()> connected;
    /// The stream is down, or could not be opened: says with whom and why. Called once per change of reason.
    std::function<void(const Failure&)> disconnected;  ///< `deadline_passed`: the other end gave no sign of life any more.
    std::function<void(const CoordinatorMessage&)> message;
    /// No longer `is_taking_leave`.
    std::function<void()> took_leave{};
  };
  virtual ~NodeLink() = default;  ///< Ends the stream at once.
  /// Messages sent while disconnected are dropped: Join tells all that matters.
  virtual void send(const NodeMessage& message) = 0;
  /// Resolves the name again, and reconnects if the address changed. Never waits.
  virtual void look_again() {}
  /// True while the confirmation of a verdict is under way, `leave_taking_max` at most. A process that ends earlier makes the coordinator wait in
  /// vain.
  [[nodiscard]] virtual bool is_taking_leave() const { return false; }
  /// This node's address as the coordinator's host sees it; "127.0.0.1" in process.
  [[nodiscard]] virtual std::string local_address() const = 0;
  /// While the stream is up. None: the coordinator is in this process.
  [[nodiscard]] virtual std::optional<LineTarget> leads_to() const { return {}; }
  /// While the stream is up: the literal address by which it leaves this host. Empty: the coordinator is in this process.
  [[nodiscard]] virtual std::string leaves_from() const { return {}; }
};

/// Over gRPC. Heartbeats (NodeAlive) are sent by the link itself every `timeouts.heartbeat`. The files of `access` are read
/// at each attempt. A token that the coordinator does not take ends the link with `Refused`.
std::unique_ptr<NodeLink> connect_to_coordinator(boost::asio::io_context& loop, const Endpoint& endpoint, const Timeouts& timeouts,
                                                 std::uint64_t jitter_seed, NodeLink::Handler handler, const Access& access = {});

/// Tells the coordinator there that an agent's process has ended, on a stream of its own. For the guard of that agent: a process of one thread, with no
/// loop, in which gRPC was not used before. Tries again until the coordinator has read it, for `within` at most. The files of `access` are read at each try.
[[nodiscard]] Result<void> tell_of_ended_agent(const LineTarget& target, const Access& access, const AgentEnded& ended, Duration within,
                                               const Clock& clock);

/// What an elected coordinator asks before it announces a generation or a verdict: whether it still is the elected one.
class Ledger {
 public:
  virtual ~Ledger() = default;
  /// Records a generation that is about to begin, where the next coordinator finds it. Without one, a verdict is about to be given. One at a
  /// time. `cleared` runs later, on the loop; never if another coordinator was elected, and then
  /// whoever owns both ends this one. `delayed` says why it takes long, whenever the reason changes.
  virtual void clear(std::optional<Generation> generation, std::function<void()> cleared,
                     std::function<void(const std::string& why)> delayed) = 0;
  /// Gives the leadership up, because the node in this process leaves. Whoever owns both ends this coordinator a little later.
  virtual void hand_over() = 0;
};

/// The coordinator with its shell: feeds the pure cores (round, store) on `loop`, keeps their timers, and answers.
class Coordinator {
 public:
  struct Options {
    RunId run;                                   ///< Empty: taken from the first node (`elrun store` without --rdzv_id)
    std::uint32_t nodes_min = 0, nodes_max = 0;  ///< 0: taken from the first node
    Timeouts timeouts;
    Access access{};                     ///< Read when the service is opened; certificates are read again when they change.
    std::uint64_t generation_floor = 0;  ///< The first generation's number is above it.
    Ledger* ledger = nullptr;            ///< Of an elected coordinator, which it outlives.
  };
  static std::unique_ptr<Coordinator> create(boost::asio::io_context& loop, const Clock& clock, const Log& log, Options options);
  virtual ~Coordinator() = default;
  /// Opens the gRPC service on `address:port` (port 0: any). Without it the coordinator serves this process alone, and
  /// gRPC is never initialised: a single node starts in milliseconds. Returns the port.
  virtual Result<std::uint16_t> serve(const std::string& address, std::uint16_t port) = 0;
  /// The hosting agent's own line.
  [[nodiscard]] virtual std::unique_ptr<NodeLink> connect_in_process(NodeLink::Handler handler) = 0;
  /// True once a verdict was given and every connected node has it (or the linger is over): the host may exit.
  [[nodiscard]] virtual bool may_exit() const = 0;
  /// How the job ended, once it has.
  [[nodiscard]] virtual const std::optional<Verdict>& verdict() const = 0;
  /// Called on the loop whenever `may_exit` may have become true.
  virtual void on_may_exit(std::function<void()> call) = 0;
};

}  // namespace elrun::inline v0
