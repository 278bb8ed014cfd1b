#pragma once
/// \file FrameTransport: the part of a group's calls that goes through sockets, as frames. All its connections, and the call at hand.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/comm/tcp/frame_connection.hpp"

namespace elrun::inline v0 {

/// Used on the loop's thread.
class FrameTransport {
 public:
  /// `done`: all sides of the call are closed. Not called after `close`.
  FrameTransport(const Membership& me, std::function<void()> done, FrameEvents events)
      : me_{me}, sides_{.done = std::move(done)}, events_{std::move(events)} {}
  FrameTransport(const FrameTransport&) = delete;  // connections refer to it
  FrameTransport& operator=(const FrameTransport&) = delete;

  /// Begins to read. As in FrameConnection, `carries`: calls with this peer go through it.
  void add(Rank peer, StreamSocket socket, bool carries, bool checked);
  /// Begins a call: list r of `sends` goes to rank r, list r of `receives` comes from rank r, for the peers whose calls go through frames
  /// (one of them alone: `whom`). The lists of others are left alone.
  void begin(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, const CallLabel& label);
  /// Peers with which the call at hand is not over.
  [[nodiscard]] std::vector<Rank> busy() const;
  [[nodiscard]] bool is_busy_with(Rank peer) const;
  /// Looks at each connection that carries calls and has not ended. `look` says by its result that the peer is given up: the connection ends.
  void look(const std::function<bool(FrameConnection&)>& look);
  /// A connection here carries calls.
  [[nodiscard]] bool carries() const;
  /// Afterwards nothing touches the memory of a call.
  void close();

 private:
  const Membership me_;
  CallSides sides_;
  const FrameEvents events_;
  std::vector<std::unique_ptr<FrameConnection>> connections_;  // in rank order
  bool closed_ = false;
};

}  // namespace elrun::inline v0
