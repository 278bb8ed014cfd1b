#pragma once
/// \file RendezvousLine: this agent's way to the coordinator, which may be in this process.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agent.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/machine.hpp"
#include "rendezvous/election/elected_link.hpp"
#include "rendezvous/net/liveness.hpp"
#include "rendezvous/net/lookup.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0::launcher {

/// What is wrong with the access, so that nothing may start; nothing when it is sound. What is not wise about it is logged as a warning.
[[nodiscard]] std::optional<std::string> problem_of_access(const Access& access, const Clock& clock, const Log& log);
/// Says that the rendezvous is served at `endpoint`. Warns when anyone who reaches it can join.
void tell_of_service(const Log& log, const std::string& endpoint, const std::string& listen, const Access& access);
/// As a UUID looks, for programs that expect one.
[[nodiscard]] RunId random_run();
[[nodiscard]] std::uint64_t random_number();

/// The port of the next generation's workers: told with Join, and held until this node's workers start.
class GenerationPort {
 public:
  /// `wanted`: `--master_port`; none: any. `is_first`: the workers of rank 0 are this node's, as far as `--node_rank` says.
  GenerationPort(std::optional<std::uint16_t> wanted, bool is_first, const Log& log) : wanted_{wanted}, is_first_{is_first}, log_{log} {}
  /// A new port for each generation, from the first Join for it on: peers of the old one that are slow to die find nobody there. The
  /// Join follows `last`; while workers of that still run (`resuming`) the port stays.
  std::uint16_t hold(const Generation& last, bool resuming);
  void release() { held_.release(); }

 private:
  const std::optional<std::uint16_t> wanted_;
  const bool is_first_;
  const Log& log_;
  HeldPort held_;
  Generation after_{};  // the Join for which it is held followed this one
};

/// Lives on the agent's loop. It finds the coordinator, or serves it here (alone, at the endpoint, or elected through etcd), and takes
/// over when the endpoint leads here and nobody serves there. It completes what the supervisor sends to join: who this node is, its
/// address, and the port that it holds for the next generation's workers. Handlers are called on the loop, never by `send`. It has more than
/// 15 fields because a third of them are what it was made with, and three are the ways to a coordinator.
class RendezvousLine {
 public:
  struct Setting {
    const AgentSetting& agent;
    Incarnation who;
    RunId run;
    std::string endpoint;  ///< For people
    const Guard& guard;    ///< Tells the coordinator when this process was killed.
  };
  struct Handler {
    std::function<void()> up;
    std::function<void(const Failure&)> down;
    std::function<void(const CoordinatorMessage&)> message;
    /// `may_end` may have become true.
    std::function<void()> may_end;
    /// There is no way to the coordinator, before anything was started.
    std::function<void(const Failure&)> failed;
  };
  RendezvousLine(boost::asio::io_context& loop, const Clock& clock, const Log& log, LogStream& lines, Setting setting, Handler handler);

  void connect();
  /// Nothing happens before there is a line.
  void send(const NodeMessage& message);
  void look_again();
  [[nodiscard]] bool has_line() const { return link_ != nullptr; }
  /// This node's workers start: they may listen on the port that was held for them.
  void release_port() { port_.release(); }
  /// The newest generation of this node. A coordinator that begins here counts on from it.
  void saw_generation(const Generation& generation);
  /// The coordinator is in this process.
  [[nodiscard]] bool coordinates() const { return hosted() != nullptr; }
  /// The same, and its log tells the job's story.
  [[nodiscard]] bool logs_job() const;

  /// Nothing is left to do for this node: it takes over no more, and its end is no news.
  void finish();
  /// After `finish`: nobody here has to be told anything any more.
  [[nodiscard]] bool may_end() const;
  /// The orderly end; `done` runs later, on the loop.
  void resign(std::function<void()> done);

 private:
  [[nodiscard]] const LaunchOptions& options() const { return setting_.agent.options; }
  std::unique_ptr<NodeLink> connect_to_endpoint();
  Coordinator& make_coordinator(std::uint64_t generation_floor);
  Result<bool> try_to_host(std::vector<std::string> leads_to);
  NodeLink::Handler link_handler();
  void look_up_endpoint(std::function<void(std::vector<std::string>)> call);
  void take_over();
  void leave_death_notice();
  void join(Join join);
  [[nodiscard]] std::string address() const;
  [[nodiscard]] const Coordinator* hosted() const;

  boost::asio::io_context& loop_;
  const Clock& clock_;
  const Log& log_;
  const Log coordinator_log_;
  const Log quiet_{"", [](Level, std::string_view) {}};  // of a single node all is said by its supervisor
  const Setting setting_;
  const Handler handler_;
  const std::string place_;
  Generation newest_{};
  bool is_up_ = false, is_finished_ = false;
  LivenessPorts liveness_;
  NameLookup lookup_;  // whether the coordinator's name leads to this machine now
  bool looking_up_ = false, reported_taken_port_ = false;
  boost::asio::steady_timer take_over_timer_;  // while the line is down
  std::string not_hosted_;                     // why the last try to take over failed
  GenerationPort port_;
  std::string advertised_address_;
  std::string hosted_address_;  // of this node, when it serves the rendezvous for others
  std::unique_ptr<Coordinator> coordinator_;
  ElectedLink* elected_ = nullptr;  // link_, when etcd elects
  std::unique_ptr<NodeLink> link_;  // goes before the coordinator that it may belong to
};

}  // namespace elrun::inline v0::launcher
