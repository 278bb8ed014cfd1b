#pragma once
/// \file FrameConnection: the frames to and from one peer, over one connected socket.
///
/// It has a reading and a writing side that go on by themselves. The reading side always waits for the next frame's header, which is also how
/// the end of a peer is seen. A frame that arrives before its call stays in the socket, behind its header: that is the back-pressure.
/// The writing side cuts the call's pieces into frames. Payload goes between the caller's memory and the socket without a copy.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <elrun/process_group.hpp>

#include "lib/comm/cursor.hpp"
#include "lib/comm/label.hpp"
#include "lib/comm/tcp/frame.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// Counts the sides of all connections that a call still waits for. `done` is called when the last of them is closed.
struct CallSides {
  std::function<void()> done;
  std::size_t open = 0;
  void close() {
    if (--open == 0) done();
  }
};

struct FrameEvents {
  std::function<void(Rank, const boost::system::error_code&)> ended;             ///< The connection; nothing comes through it any more.
  std::function<void(Rank)> missed;                                              ///< A call needs this peer, whose connection has ended.
  std::function<void(Rank, std::uint16_t theirs, std::uint16_t mine)> differed;  ///< The labels of one call.
  std::function<void(Failure)> failed;                                           ///< What arrived is none of what a correct peer sends.
};

/// What the reading side waits for.
enum class Reading : std::uint8_t {
  header,   ///< The next frame.
  call,     ///< Its header is here. This rank has not begun that call yet.
  payload,  ///< It goes into the buffers of the call.
};

/// Used on the loop's thread. Stays where it is: handlers that are under way refer to it.
class FrameConnection {
 public:
  /// `carries`: calls go through it. Otherwise it only tells of the peer's end, and a frame is an error. `checked`: frames have checksums.
  FrameConnection(Rank peer, const Membership& me, StreamSocket socket, bool carries, bool checked, CallSides& sides,
                  const FrameEvents& events);
  /// Not in a forked child, whose parent goes on with the connection.
  ~FrameConnection() { close(); }
  FrameConnection(const FrameConnection&) = delete;
  FrameConnection& operator=(const FrameConnection&) = delete;

  /// Begins to read.
  void start() { read_header(); }
  /// Opens a side for each direction that has bytes. Both lists are borrowed until their side is closed, or `close` was called.
  void begin(const SendList& out, const ReceiveList& in, const CallLabel& label);
  /// A call is not over with this peer.
  [[nodiscard]] bool is_busy() const { return !in_.list.done() || !out_.list.done() || in_.reading == Reading::payload || out_.sending; }
  [[nodiscard]] bool carries() const { return carries_; }
  [[nodiscard]] bool has_ended() const { return ended_; }
  [[nodiscard]] Rank peer() const { return peer_; }
  /// What was sent had to be sent again, and was not answered.
  [[nodiscard]] bool is_unanswered() { return elrun::is_unanswered(socket_.native_handle()); }
  /// The connection is over, by what its owner has seen.
  void end(const boost::system::error_code& error);
  /// For the peer too, whatever copies of the descriptor forked children hold. Afterwards nothing touches the memory of a call.
  void close();

 private:
  void read_header();
  void match();
  void read_payload();
  void write_frame();

  const Rank peer_;
  const Membership me_;
  StreamSocket socket_;
  const bool carries_, checked_;
  CallSides& sides_;
  const FrameEvents& events_;
  bool closed_ = false, ended_ = false;
  std::uint64_t call_ = 0;  // number of the latest call with this peer
  CallLabel label_;         // of that call

  struct In {
    Reading reading = Reading::header;
    FrameHeaderBytes bytes{};
    FrameHeader frame{};  // the latest
    std::uint32_t left = 0, checksum = 0;
    Cursor<std::span<std::byte>> list;
    std::uint64_t total = 0;  // of the list
    std::array<std::span<std::byte>, pieces_max> pieces{};
  } in_;
  struct Out {
    bool sending = false;
    FrameHeaderBytes bytes{};
    Cursor<std::span<const std::byte>> list;
    std::uint64_t total = 0;  // of the list
    std::array<std::span<const std::byte>, pieces_max> pieces{};
  } out_;
};

}  // namespace elrun::inline v0
