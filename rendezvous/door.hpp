#pragma once
/// \file The listening port. gRPC is given only connections that began to speak as its clients do: what says nothing, or
/// anything else, costs one descriptor for a bounded time. gRPC's own listener stops for good when descriptors run out.
/// Until somebody on a connection is let in its bytes are counted, too (`door_watch.hpp`): gRPC keeps what a stranger sends.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0 {

/// What the first bytes of a connection are.
enum class FirstWords { unfinished, http2, tls, other };
[[nodiscard]] FirstWords first_words(ByteSpan bytes);
/// With so many bytes it is known in any case.
constexpr std::size_t first_words_size = 24;

/// What a client sends before it needs an answer: a TLS ClientHello, or HTTP/2's preface with its SETTINGS. No client of elrun
/// sends more than this.
constexpr Bytes first_flight_max = 8_KiB;
/// The size of that, told from its first bytes, which are `tls` or `http2`. With fewer than this many bytes: how many are needed
/// to tell. Nothing when no client begins like this.
constexpr std::size_t first_flight_header_max = 33;
[[nodiscard]] std::optional<std::size_t> first_flight_size(ByteSpan bytes);

/// Connections of which nobody was let in yet. More wait in the system's backlog until one of these is, or goes.
constexpr std::size_t door_waiting_max = 512;
constexpr std::uint64_t descriptor_reserve = 64;  ///< Of the process's descriptors, kept for what is not the door's.

/// Tells of what was turned away: of each kind at once, and then in one line per minute at most.
class TurnedAway {
 public:
  TurnedAway(const Log& log, const Clock& clock) : log_{log}, clock_{clock} {}
  /// `what` is one of a few kinds: "connections that are not elrun's". `whom`: an address.
  void tell(std::string_view what, std::string_view whom);
  /// True when `tell` would write a line now; else it is counted, and need not be told.
  [[nodiscard]] bool is_due(std::string_view what);

 private:
  struct Kind {
    Instant quiet_until{};
    std::uint64_t untold = 0;
  };
  const Log& log_;
  const Clock& clock_;
  std::map<std::string, Kind, std::less<>> kinds_;
};

/// Loop thread only.
class Door {
 public:
  struct Options {
    bool tls = false;  ///< What is let in: TLS alone, or plain HTTP/2 alone.
    Duration patience = 10s;  ///< To begin to speak; then twice as long to be let in.
    std::size_t waiting_max = door_waiting_max;
  };
  /// Hands a connection, which does not block, to gRPC, and calls `done` then, on any thread.
  using Enter = std::function<void(Fd connection, std::function<void()> done)>;
  /// On an address, or on all for an empty one; port 0: any.
  static Result<std::unique_ptr<Door>> open(boost::asio::io_context& loop, const Clock& clock, const std::string& address, std::uint16_t port,
                                            Options options, TurnedAway& turned_away, Enter enter);
  virtual ~Door() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Somebody on this connection may take part: it is watched no more. `peer`: its other end, as gRPC writes it.
  virtual void let_in(std::string_view peer) = 0;
};

}  // namespace elrun::inline v0
