#pragma once
/// \file Connections that gRPC has and of which nobody was let in yet. A thread of its own looks at them, for a stranger that
/// sends without end can hold up any thread that calls gRPC.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <elrun/units.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

constexpr Bytes door_bytes_max = 64_KiB;        ///< That a connection may have sent before somebody on it is let in, a TLS handshake included.
constexpr Duration door_look_every = 10ms;      ///< Its bytes are looked at so often; what comes in between is read.
constexpr Duration door_turn = 500ms;           ///< Who was idle for so long goes when others wait.

/// Every call from any thread.
class DoorWatch {
 public:
  /// `cut` is told of each connection that is ended, on the watch's thread: why, and whose.
  DoorWatch(const Clock& clock, Duration patience, std::function<void(std::string_view why, const std::string& whom)> cut);
  ~DoorWatch();  ///< Ends all that it watches.
  DoorWatch(const DoorWatch&) = delete;
  DoorWatch& operator=(const DoorWatch&) = delete;

  /// Another descriptor of the connection that gRPC gets. `peer` as `plain_peer` writes it.
  void add(Fd socket, std::string peer);
  /// It is watched no more.
  void let_in(std::string_view peer);
  [[nodiscard]] std::size_t size() const;
  /// Ends the oldest one that is idle; false when none is.
  bool make_room();

 private:
  struct Inside {
    Fd socket;
    std::string peer;
    Instant until, moved;     // when its bytes last grew
    std::uint64_t bytes = 0;  // that came
  };
  void watch();
  void look();
  void end(const Inside& one, std::string_view why);

  const Clock& clock_;
  const Duration patience_;
  const std::function<void(std::string_view, const std::string&)> cut_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Inside> inside_;  // oldest first
  bool over_ = false;
  bool untidy_ = false;       // something was ended, and what it took is still kept for the next
  std::thread thread_;
};

/// The other end of a connection, the same for each way to write it: "10.0.0.1:29500", "[fe80::1%eth0]:29500". `grpc_peer`: as
/// gRPC writes it, "ipv4:10.0.0.1:29500".
[[nodiscard]] std::string plain_peer(std::string_view grpc_peer);

}  // namespace elrun::inline v0
