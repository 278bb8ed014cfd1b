#pragma once
/// \file The listening port. elrun accepts connections itself, because gRPC's own listener stops for good when descriptors run
/// out. gRPC gets a connection once it has sent a client's first flight. One that sends nothing, or anything else, costs a
/// descriptor for a bounded time. What a connection may send and how long it may stay until somebody on it is admitted is
/// watched as well (`net/admission_watch.hpp`).

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
enum class FirstBytes { unfinished, http2, tls, other };
[[nodiscard]] FirstBytes first_bytes(ByteSpan bytes);
/// With so many bytes it is known in any case.
constexpr std::size_t first_bytes_size = 24;

/// What a client sends before it needs an answer: a TLS ClientHello, or HTTP/2's preface with its SETTINGS. No client of elrun
/// sends more than this.
constexpr Bytes first_flight_max = 8_KiB;
/// The size of the first flight, which its first bytes tell (`tls` or `http2`). If these bytes do not tell it yet: how many are needed, at
/// most `first_flight_header_max`. Nothing: no client begins like this.
constexpr std::size_t first_flight_header_max = 33;
[[nodiscard]] std::optional<std::size_t> first_flight_size(ByteSpan bytes);

/// Connections on which nobody was admitted yet. Others wait in the system's backlog until there is a place.
constexpr std::size_t unadmitted_max = 512;
constexpr std::uint64_t descriptor_reserve = 64;  ///< Of the process's descriptors, kept for what is not the acceptor's.

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
class GrpcAcceptor {
 public:
  struct Options {
    bool tls = false;         ///< True: only TLS is accepted. False: only plain HTTP/2.
    Duration patience = 10s;  ///< A client sends its first flight within this, and is admitted within twice as long.
    std::size_t waiting_max = unadmitted_max;
  };
  /// Hands a connection, which does not block, to gRPC, and calls `done` then, on any thread.
  using Enter = std::function<void(Fd connection, std::function<void()> done)>;
  /// On an address, or on all for an empty one; port 0: any.
  static Result<std::unique_ptr<GrpcAcceptor>> open(boost::asio::io_context& loop, const Clock& clock, const std::string& address,
                                                    std::uint16_t port, Options options, TurnedAway& turned_away, Enter enter);
  virtual ~GrpcAcceptor() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// A node or client on this connection was admitted: it is watched no longer. `peer`: its address, as gRPC writes it.
  virtual void let_in(std::string_view peer) = 0;
};

}  // namespace elrun::inline v0
